"""Random collectives whose results are known exactly.

Call `number` of a seed is the same on every rank. Values are small integers, so that every order of combining gives
the same bits in every dtype, and each rank can tell alone whether its result is right.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from collectives import Communicator, RondeError
from collectives.algorithms import algorithms
from collectives.arrays.ops import LOGICAL, UFUNCS, allowed_ops

Array = np.ndarray[Any, Any]

DTYPES: Final = tuple(
    np.dtype(kind)
    for kind in (
        *("float32", "float64", "float16", "int32", "int64", "uint8", "bool", "complex64"),
        ml_dtypes.bfloat16,
    )
)
OPS: Final = frozenset(UFUNCS)
"""Those whose results are exact."""


class Wrong(AssertionError):
    """A result that is not right, or an input of an out-of-place call that has changed."""


@dataclass(frozen=True)
class Draw:
    """The dice of one call, and what all calls need.

    largest   arrays have up to 2 ** largest elements
    options   of every call
    """

    comm: Communicator
    dice: random.Random
    largest: float
    options: Mapping[str, Any]

    def count(self) -> int:
        return int(2 ** self.dice.uniform(0, self.largest)) - 1

    def root(self) -> int:
        return self.dice.randrange(self.comm.size)

    def dtype(self) -> np.dtype[Any]:
        return self.dice.choice(DTYPES)

    def dtype_and_op(self) -> tuple[np.dtype[Any], str]:
        dtype = self.dtype()
        known = OPS if dtype.kind == "f" and dtype.itemsize >= 4 else OPS - {"average"}
        return dtype, self.dice.choice(sorted(allowed_ops(dtype) & known))

    def try_any(self, collective: str, *args: Any, **options: Any) -> Any:
        """The collective, by any algorithm that can do it, or by the one that is chosen without a word."""
        method = getattr(self.comm, collective)
        algorithm = self.dice.choice([None, *algorithms(collective)])
        try:
            return method(*args, algorithm=algorithm, **self.options, **options)
        except ValueError:  # it cannot do this call, on any rank
            return method(*args, **self.options, **options)


def perform(
    comm: Communicator,
    seed: int,
    number: int,
    *,
    timeout: float | None = None,
    largest: float = 12.0,
    objects: bool = True,
) -> None:
    """Run call `number` of `seed` and check it. `timeout` None takes the configured one.

    Raises Wrong; RondeError as the call does, once it is known that its inputs are as they were.
    """
    dice = random.Random(f"{seed}/{number}")
    kinds = KINDS if objects else KINDS[: -len(WITH_OBJECTS)]
    dice.choice(kinds)(Draw(comm, dice, largest, {} if timeout is None else {"timeout": timeout}))


def values(count: int, dtype: np.dtype[Any], rank: int, op: str = "sum") -> Array:
    """The values of `rank`. For an average, multiples of 60: the result is exact for up to 6 ranks."""
    steps = np.arange(count, dtype=np.int64) + rank
    if dtype.kind == "b":
        return steps % 3 == 0
    if op == "prod":
        return (1 + steps % 2).astype(dtype)
    return (60 * (steps % 7) if op == "average" else steps % 8).astype(dtype)


def combined(count: int, dtype: np.dtype[Any], size: int, op: str) -> Array:
    """The combination of all ranks' values."""
    parts = [values(count, dtype, rank, op) for rank in range(size)]
    if dtype.kind != "b":
        parts = [part.astype(np.complex128 if dtype.kind == "c" else np.int64) for part in parts]
    if op in LOGICAL:
        parts = [part != 0 for part in parts]
    total: Array = functools.reduce(UFUNCS[op], parts)
    return (total // size if op == "average" else total).astype(dtype)


def expect(got: object, want: Array, what: str) -> None:
    """Raises Wrong unless they are equal in shape, dtype and every element."""
    if not isinstance(got, np.ndarray) or got.dtype != want.dtype or got.shape != want.shape:
        raise Wrong(f"{what}: got {got!r:.80}, expected {want.dtype} of shape {want.shape}")
    if not np.array_equal(got, want):
        at = int(np.flatnonzero(got != want)[0])
        raise Wrong(f"{what}: element {at} of {want.size} is {got.flat[at]}, expected {want.flat[at]}")


@contextlib.contextmanager
def untouched(*inputs: Array) -> Iterator[None]:
    """Raises Wrong if a call changes what it was only to read, also when it fails."""
    before = [x.copy() for x in inputs]

    def check() -> None:
        for x, kept in zip(inputs, before, strict=True):
            expect(x, kept, "an input, after the call")

    try:
        yield
    except RondeError:
        check()
        raise
    check()


def _allreduce(draw: Draw) -> None:
    (dtype, op), count, size = draw.dtype_and_op(), draw.count(), draw.comm.size
    x = values(count, dtype, draw.comm.rank, op)
    with untouched(x):
        result = draw.try_any("allreduce", x, op)
    expect(result, combined(count, dtype, size, op), f"allreduce {op}")


def _allreduce_plain(draw: Draw) -> None:
    """Without options, as most callers do: small ones have a way of their own."""
    (dtype, op), count = draw.dtype_and_op(), draw.count()
    x = values(count, dtype, draw.comm.rank, op)
    with untouched(x):
        result = draw.comm.allreduce(x, op, **draw.options)
    expect(result, combined(count, dtype, draw.comm.size, op), f"allreduce {op}")


def _allreduce_in_place(draw: Draw) -> None:
    (dtype, op), count = draw.dtype_and_op(), draw.count()
    x = values(count, dtype, draw.comm.rank, op)
    draw.try_any("allreduce", x, op, out=x)
    expect(x, combined(count, dtype, draw.comm.size, op), f"allreduce {op} in place")


def _reduce(draw: Draw) -> None:
    (dtype, op), count, root = draw.dtype_and_op(), draw.count(), draw.root()
    x = values(count, dtype, draw.comm.rank, op)
    with untouched(x):
        result = draw.try_any("reduce", x, op, root)
    if draw.comm.rank == root:
        expect(result, combined(count, dtype, draw.comm.size, op), f"reduce {op}")
    elif result is not None:
        raise Wrong(f"reduce: got {result!r:.80} off the root")


def _reduce_scatter(draw: Draw) -> None:
    (dtype, op), count, comm = draw.dtype_and_op(), draw.count(), draw.comm
    cuts = sorted(draw.dice.randint(0, count) for _ in range(comm.size - 1))
    uneven = draw.dice.random() < 0.5
    counts = [stop - start for start, stop in zip([0, *cuts], [*cuts, count], strict=True)] if uneven else None
    x = values(count, dtype, comm.rank, op)
    with untouched(x):
        result = draw.try_any("reduce_scatter", x, op, counts=counts)
    total = combined(count, dtype, comm.size, op)
    parts = np.split(total, cuts) if uneven else np.array_split(total, comm.size)
    expect(result, parts[comm.rank], f"reduce_scatter {op}")


def _broadcast(draw: Draw) -> None:
    dtype, count, root = draw.dtype(), draw.count(), draw.root()
    x = values(count, dtype, draw.comm.rank)
    with untouched(x):
        result = draw.try_any("broadcast", x, root)
    expect(result, values(count, dtype, root), "broadcast")


def _gathered(draw: Draw, collective: str) -> tuple[Array, object]:
    """The whole, and what an allgather or gather of uneven parts returned."""
    dtype, comm = draw.dtype(), draw.comm
    counts = [draw.count() for _ in range(comm.size)]
    parts = [values(count, dtype, rank) for rank, count in enumerate(counts)]
    x = parts[comm.rank]
    root = (draw.root(),) if collective == "gather" else ()
    with untouched(x):
        result = draw.try_any(collective, x, *root)
    off_root = bool(root) and comm.rank != root[0]
    if off_root and result is not None:
        raise Wrong(f"gather: got {result!r:.80} off the root")
    whole = np.concatenate(parts)
    return whole, whole if off_root else result


def _allgather(draw: Draw) -> None:
    whole, result = _gathered(draw, "allgather")
    expect(result, whole, "allgather")


def _gather(draw: Draw) -> None:
    whole, result = _gathered(draw, "gather")
    expect(result, whole, "gather")


def _scatter(draw: Draw) -> None:
    dtype, count, root, comm = draw.dtype(), draw.count(), draw.root(), draw.comm
    whole = values(count, dtype, root)
    x = whole.copy()
    with untouched(x):
        result = draw.try_any("scatter", x if comm.rank == root else None, root)
    expect(result, np.array_split(whole, comm.size)[comm.rank], "scatter")


def _alltoall(draw: Draw) -> None:
    dtype, comm = draw.dtype(), draw.comm
    if draw.dice.random() < 0.5:
        table = [[draw.count() for _ in range(comm.size)] for _ in range(comm.size)]
    else:
        table = [[draw.count()] * comm.size] * comm.size
    rows = [values(sum(splits), dtype, rank) for rank, splits in enumerate(table)]
    x = rows[comm.rank]
    with untouched(x):
        result = draw.try_any("alltoall", x, table[comm.rank])
    pieces = [np.split(row, np.cumsum(splits)[:-1])[comm.rank] for row, splits in zip(rows, table, strict=True)]
    expect(result, np.concatenate(pieces), "alltoall")


def _barrier(draw: Draw) -> None:
    draw.try_any("barrier")


def _grouped(draw: Draw) -> None:
    comm = draw.comm
    shapes = [(draw.count(), draw.dice.choice(DTYPES[:2])) for _ in range(draw.dice.randint(1, 4))]
    xs = [values(count, dtype, comm.rank) for count, dtype in shapes]
    with untouched(*xs):
        results = comm.grouped_allreduce(xs, **draw.options)
    for (count, dtype), result in zip(shapes, results, strict=True):
        expect(result, combined(count, dtype, comm.size, "sum"), "grouped_allreduce")


def _several_at_once(draw: Draw) -> None:
    comm = draw.comm
    counts = [draw.count() for _ in range(3)]
    xs = [values(count, DTYPES[0], comm.rank) for count in counts]
    with untouched(*xs):
        works = [comm.allreduce_async(x, **draw.options) for x in xs]
        results = [work.wait() for work in works]
    for count, result in zip(counts, results, strict=True):
        expect(result, combined(count, DTYPES[0], comm.size, "sum"), "allreduce_async")


def _around_the_ring(draw: Draw) -> None:
    dtype, count, comm = draw.dtype(), draw.count(), draw.comm
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    x = values(count, dtype, comm.rank)
    with untouched(x):
        result = comm.sendrecv(x, right, left, tag=7, **draw.options)
    expect(result, values(count, dtype, left), "sendrecv")


def _objects(draw: Draw) -> None:
    count, comm = draw.count() % 1000, draw.comm
    got = comm.allgather_object((comm.rank, "x" * count), **draw.options)
    if got != [(rank, "x" * count) for rank in range(comm.size)]:
        raise Wrong(f"allgather_object: got {got!r:.80}")


def _object(draw: Draw) -> None:
    root, comm = draw.root(), draw.comm
    got = comm.broadcast_object({"from": comm.rank}, root, **draw.options)
    if got != {"from": root}:
        raise Wrong(f"broadcast_object: got {got!r:.80}")


WITH_OBJECTS: Final = (_objects, _object)
KINDS: Final[tuple[Callable[[Draw], None], ...]] = (
    _allreduce,
    _allreduce_plain,
    _allreduce_in_place,
    _reduce,
    _reduce_scatter,
    _broadcast,
    _allgather,
    _gather,
    _scatter,
    _alltoall,
    _barrier,
    _grouped,
    _several_at_once,
    _around_the_ring,
    *WITH_OBJECTS,
)
