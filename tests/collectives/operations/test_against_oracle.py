"""Every collective equals NumPy, whatever the transport, ranks, dtype, count and memory layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import OPS, Communicator
from collectives.algorithms import algorithms
from collectives.arrays.ops import allowed_ops
from tests.worlds import THERE, Worlds

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    *(np.dtype(name) for name in ("float16", "float32", "float64", "longdouble", "complex64", "complex128", "bool")),
    *(np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    BFLOAT16,
]
COUNTS = st.sampled_from([0, 1, 2, 3, 5, 7, 64, 1001, 20_011])
LAYOUTS = ("contiguous", "strided", "reversed", "fortran", "read-only")
UFUNCS: dict[str, Any] = {
    "sum": np.add, "average": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
}  # fmt: skip


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def values(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int, top: int = 4) -> np.ndarray[Any, Any]:
    """Small whole numbers: every sum and product of five of them is exact in every dtype."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, top, shape)
    if dtype.kind == "c":
        return (numbers + 1j * rng.integers(0, top, shape)).astype(dtype)
    return np.asarray(numbers).astype(dtype)


def laid_out(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """The same elements in another arrangement in memory."""
    if layout == "strided":
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        return wide[..., 0]
    if layout == "reversed" and array.ndim:
        return array[::-1].copy()[::-1]
    if layout == "fortran":
        return np.asfortranarray(array)
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


def combined(op: str, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    dtype = parts[0].dtype
    total = reduce(UFUNCS[op], parts)
    if (
        op == "average" and dtype.kind == "c"
    ):  # part by part, where NumPy's division of complex numbers rounds more often
        parts_of = np.dtype(f"f{dtype.itemsize // 2}")
        return (np.ascontiguousarray(total).view(parts_of) / parts_of.type(len(parts))).view(dtype).reshape(total.shape)
    if op == "average":
        wide = np.float64 if dtype.kind in "iu" or dtype == BFLOAT16 or dtype == np.float16 else dtype
        return (total.astype(wide) / np.asarray(len(parts), wide)).astype(dtype)
    if op in ("land", "lor", "lxor"):
        total = total.astype(bool) if len(parts) == 1 else total
    return np.asarray(total).astype(dtype)


def same_bits(results: list[Any]) -> None:
    if results[0].dtype == np.longdouble:
        return  # its padding bytes have no value
    assert len({np.ascontiguousarray(result).tobytes() for result in results}) == 1


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    rows = draw(COUNTS)
    shape = draw(st.sampled_from([(rows,), (rows, 1), (rows, 3)])) if rows < 5000 else (rows,)
    return {
        "transport": draw(st.sampled_from(["local", *THERE])),
        "size": draw(st.integers(1, 5)),
        "dtype": dtype,
        "shape": shape,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "out": draw(st.sampled_from(["new", "given", "in place", "strided"])),
    }


def give_out(kind: str, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Any:
    if kind == "in place" and x.flags.writeable and x.shape == shape:
        return x
    if kind == "given":
        return np.empty(shape, x.dtype)
    if kind == "strided":
        return np.empty((*shape, 2), x.dtype)[..., 1]
    return None


def algorithm_for(data: st.DataObject, collective: str, *, tree_order: bool = False) -> str | None:
    """Any algorithm that runs anywhere, or the planner's own choice."""
    names = [
        name
        for name, known in algorithms(collective).items()
        if not (known.onesided or known.multihost or known.uniform) and (known.tree_order or not tree_order)
    ]
    return data.draw(st.sampled_from([None, *names]), label="algorithm")


@given(case=cases(), data=st.data())
def test_allreduce(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    op = data.draw(st.sampled_from([op for op in OPS if op in allowed_ops(case["dtype"])]), label="op")
    algorithm = algorithm_for(data, "allreduce")
    parts = [
        values(case["shape"], case["dtype"], case["seed"] + rank, top=3 if op == "prod" else 4)
        for rank in range(case["size"])
    ]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        out = give_out(case["out"], x, x.shape)
        result = comm.allreduce(x, op, out=out, algorithm=algorithm)
        assert out is None or result is out
        if out is not x:
            np.testing.assert_array_equal(x, parts[comm.rank])
        return np.array(result)

    results = worlds.get(case["transport"], case["size"]).run(body)
    expected = combined(op, parts)
    for result in results:
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    same_bits(results)


@given(case=cases(), data=st.data())
def test_reduce(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    size = case["size"]
    op = data.draw(st.sampled_from([op for op in OPS if op in allowed_ops(case["dtype"])]), label="op")
    root = data.draw(st.integers(0, size - 1), label="root")
    algorithm = algorithm_for(data, "reduce")
    parts = [
        values(case["shape"], case["dtype"], case["seed"] + rank, top=3 if op == "prod" else 4) for rank in range(size)
    ]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        out = give_out(case["out"], x, x.shape)
        result = comm.reduce(x, op, root, out=out, algorithm=algorithm)
        if comm.rank != root:
            np.testing.assert_array_equal(x, parts[comm.rank])
        return result

    results = worlds.get(case["transport"], size).run(body)
    assert [result is None for result in results] == [rank != root for rank in range(size)]
    np.testing.assert_array_equal(results[root], combined(op, parts))


@pytest.mark.long
@given(case=cases(), data=st.data())
def test_reduce_scatter(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    size, rows = case["size"], case["shape"][0]
    op = data.draw(st.sampled_from([op for op in OPS if op in allowed_ops(case["dtype"])]), label="op")
    counts = draw_counts(data, rows, size)
    algorithm = algorithm_for(data, "reduce_scatter")
    parts = [
        values(case["shape"], case["dtype"], case["seed"] + rank, top=3 if op == "prod" else 4) for rank in range(size)
    ]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        result = comm.reduce_scatter(x, op, counts=counts, algorithm=algorithm)
        np.testing.assert_array_equal(x, parts[comm.rank])
        return result

    results = worlds.get(case["transport"], size).run(body)
    expected = combined(op, parts)
    sizes = counts or [len(part) for part in np.array_split(np.arange(rows), size)]
    for result, part in zip(results, np.split(expected, np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(result, part)


@given(case=cases(), data=st.data())
def test_broadcast(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    root = data.draw(st.integers(0, case["size"] - 1), label="root")
    algorithm = algorithm_for(data, "broadcast")
    sent = values(case["shape"], case["dtype"], case["seed"])

    def body(comm: Communicator) -> Any:
        x = laid_out(sent.copy() if comm.rank == root else np.zeros_like(sent), case["layout"])
        out = give_out(case["out"], x, x.shape)
        result = comm.broadcast(x, root, out=out, algorithm=algorithm)
        assert out is None or result is out
        return np.array(result)

    for result in worlds.get(case["transport"], case["size"]).run(body):
        np.testing.assert_array_equal(result, sent)


@pytest.mark.long
@given(case=cases(), data=st.data())
def test_allgather_and_gather(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    size, rest = case["size"], case["shape"][1:]
    root = data.draw(st.integers(0, size - 1), label="root")
    rows = data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size), label="rows")
    rows[0] += case["shape"][0] // 7
    algorithm = algorithm_for(data, "allgather")
    one = algorithm_for(data, "gather")
    parts = [values((count, *rest), case["dtype"], case["seed"] + rank) for rank, count in enumerate(rows)]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        out = give_out(case["out"], x, (sum(rows), *rest))
        everything = comm.allgather(x, out=out, algorithm=algorithm)
        return np.array(everything), comm.gather(x, root, algorithm=one)

    results = worlds.get(case["transport"], size).run(body)
    expected = np.concatenate(parts)
    for rank, (everything, at_root) in enumerate(results):
        np.testing.assert_array_equal(everything, expected)
        if rank == root:
            np.testing.assert_array_equal(at_root, expected)
        else:
            assert at_root is None


@pytest.mark.long
@given(case=cases(), data=st.data())
def test_scatter(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    size, rows = case["size"], case["shape"][0]
    root = data.draw(st.integers(0, size - 1), label="root")
    counts = draw_counts(data, rows, size)
    algorithm = algorithm_for(data, "scatter")
    whole = values(case["shape"], case["dtype"], case["seed"])

    def body(comm: Communicator) -> Any:
        x = laid_out(whole.copy(), case["layout"]) if comm.rank == root else None
        return comm.scatter(x, root, counts=counts, algorithm=algorithm)

    results = worlds.get(case["transport"], size).run(body)
    sizes = counts or [len(part) for part in np.array_split(np.arange(rows), size)]
    for result, part in zip(results, np.split(whole, np.cumsum(sizes)[:-1]), strict=True):
        assert result.dtype == whole.dtype
        np.testing.assert_array_equal(result, part)


@given(case=cases(), data=st.data())
def test_alltoall(worlds: Worlds, case: dict[str, Any], data: st.DataObject) -> None:
    size, rest = case["size"], case["shape"][1:]
    uneven = data.draw(st.booleans(), label="uneven")
    each = case["shape"][0] // size
    row = st.lists(st.integers(0, 30), min_size=size, max_size=size)
    table = [data.draw(row, label="splits") if uneven else [each] * size for _ in range(size)]
    algorithm = algorithm_for(data, "alltoall")
    parts = [values((sum(counts), *rest), case["dtype"], case["seed"] + rank) for rank, counts in enumerate(table)]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        return comm.alltoall(x, table[comm.rank] if uneven else None, return_splits=True, algorithm=algorithm)

    results = worlds.get(case["transport"], size).run(body)
    pieces = [np.split(part, np.cumsum(counts)[:-1]) for part, counts in zip(parts, table, strict=True)]
    for rank, (result, received) in enumerate(results):
        np.testing.assert_array_equal(result, np.concatenate([pieces[src][rank] for src in range(size)]))
        assert received.tolist() == [counts[rank] for counts in table]


def draw_counts(data: st.DataObject, rows: int, size: int) -> list[int] | None:
    """A division of a first dimension among the ranks: None for the default, or any counts."""
    if data.draw(st.booleans(), label="default counts"):
        return None
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), min_size=size - 1, max_size=size - 1), label="cuts"))
    return [end - start for start, end in zip([0, *cuts], [*cuts, rows], strict=True)]


@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@given(case=cases(), data=st.data())
def test_one_sided_algorithms(
    worlds: Worlds, transport: str, size: int, case: dict[str, Any], data: st.DataObject
) -> None:
    """Every one-sided algorithm by name, on arrays larger and smaller than its stage."""
    collective = data.draw(
        st.sampled_from(["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce"])
    )
    names = [name for name, known in algorithms(collective).items() if known.onesided and not known.windows]
    name = data.draw(st.sampled_from(names), label="algorithm")
    most = 20_000 if algorithms(collective)[name].segmented else 200  # the others must fit into the stage as a whole
    rows = min(case["shape"][0], most) // size * size
    parts = [values((rows,), case["dtype"], case["seed"] + rank) for rank in range(size)]
    op = "max" if case["dtype"].kind == "b" else "sum"

    def body(comm: Communicator) -> Any:
        options: dict[str, Any] = {"algorithm": name}
        if "reduce" in collective:
            options["op"] = op
        return getattr(comm, collective)(parts[comm.rank].copy(), **options)

    results = worlds.get(transport, size, stage_bytes=4096 * 8).run(body)
    total = combined(op, parts)
    blocks = [np.split(part, size) for part in parts]
    for rank, result in enumerate(results):
        expected = {
            "allreduce": total,
            "reduce": total if rank == 0 else None,
            "reduce_scatter": np.split(total, size)[rank],
            "broadcast": parts[0],
            "allgather": np.concatenate(parts),
            "alltoall": np.concatenate([block[rank] for block in blocks]),
        }[collective]
        if expected is None:
            assert result is None
        else:
            np.testing.assert_array_equal(result, expected)
