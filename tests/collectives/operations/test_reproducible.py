"""Bits: the same on every rank always; and with reproducible=True the same however they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.arrays.ops import FLOAT16, FLOAT32, UFUNCS, allowed_ops, is_small_float, kernel, one_element
from collectives.schedule.topology import canonical_tree
from tests.worlds import Worlds

Array = np.ndarray[Any, Any]

FLOATS = [
    *(np.dtype(name) for name in ("float16", "float32", "float64", "longdouble", "complex64", "complex128")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, 6e-8]
COUNTS = st.sampled_from([0, 1, 2, 3, 16, 17, 1000, 2049, 30_001])

WORLDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "local": ("local", {}),
    "local, small stage": ("local", {"stage_bytes": 4096}),
    "shm": ("shm", {}),
    "shm, small stage": ("shm", {"stage_bytes": 4096}),
    "tcp": ("tcp", {}),
    "auto": ("auto", {}),
    "auto, two hosts in turn": ("auto", {"hosts": "ababa"}),
    "auto, two hosts one after the other": ("auto", {"hosts": "aaabb"}),
    "tcp, a host for each": ("tcp", {"hosts": "abcde"}),
}


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def world(worlds: Worlds, name: str, size: int, **more: Any) -> Any:
    transport, settings = WORLDS[name]
    settings = {key: value[:size] if key == "hosts" else value for key, value in settings.items()}
    return worlds.get(transport, size, **settings, **more)


def numbers(count: int, dtype: np.dtype[Any], seed: int, special: float = 0.0) -> Array:
    """Random numbers whose sums are rounded, with a share of special ones."""
    rng = np.random.default_rng(seed)

    def part() -> Array:
        values = rng.standard_normal(count) * 2.0 ** rng.integers(-3, 4, count)
        chosen = rng.random(count) < special
        values[chosen] = rng.choice(SPECIAL, int(chosen.sum()))
        return values

    with np.errstate(all="ignore"):
        return np.asarray(part() + 1j * part() if dtype.kind == "c" else part()).astype(dtype)


def bits(array: Any) -> bytes:
    """The bits of an array, without the padding that long doubles have."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.longdouble:
        return array.reshape(-1, 1).view(np.uint8).reshape(-1, array.itemsize)[:, :10].tobytes()
    return array.tobytes()


def with_one_nan(array: Array) -> Array:
    """The same, but with one and the same NaN for all."""
    if array.dtype.kind == "c":
        parts = with_one_nan(array.reshape(-1).view(array.real.dtype))
        return parts.view(array.dtype)
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array)


# What the arithmetic must be


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
def test_a_kernel_gives_an_element_the_same_bits_wherever_it_stands(dtype: np.dtype[Any], data: st.DataObject) -> None:
    """So it cannot matter how arrays are cut, nor which memory is reused. Of two NaNs any may come out."""
    op = data.draw(st.sampled_from(sorted(allowed_ops(dtype))), label="op")
    count, seed = data.draw(COUNTS, label="count"), data.draw(st.integers(0, 2**32), label="seed")
    special = data.draw(st.sampled_from([0.0, 0.5]), label="special")
    a, b = numbers(count, dtype, seed, special), numbers(count, dtype, seed + 1, special)
    combine, whole = kernel(op, dtype), np.empty_like(a)
    with np.errstate(all="ignore"):
        combine(a, b, whole)
        cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=4), label="cuts"))
        for start, end in zip([0, *cuts], [*cuts, count], strict=True):
            for aliased in (None, "a", "b"):
                x, y = a[start:end].copy(), b[start:end].copy()
                out = {None: np.empty_like(x), "a": x, "b": y}[aliased]
                (combine if end - start != 1 else one_element(combine, dtype))(x, y, out)
                assert bits(with_one_nan(out)) == bits(with_one_nan(whole[start:end]))


def expected(parts: list[Array], op: str, before: float | None, after: float | None) -> Array:
    """The result that reproducible=True defines: the canonical tree, evaluated by NumPy on whole arrays."""
    given, size = parts[0].dtype, len(parts)
    wide = size > 2 and is_small_float(given) and op in ("sum", "average", "prod")
    dtype = FLOAT32 if wide else given

    def rounded(through: Any, x: Array, factor: float) -> Array:
        if is_small_float(x.dtype):
            return np.asarray(through(x.astype(FLOAT32), FLOAT32.type(factor))).astype(x.dtype)
        return np.asarray(through(x, x.dtype.type(factor)))

    share = 0.5 ** (size - 1).bit_length()

    def by_parts(through: Any, x: Array, factor: float) -> Array:
        real = x.view(x.dtype.char.lower() if x.dtype.kind == "c" else x.dtype)
        return np.asarray(through(real, real.dtype.type(factor))).view(x.dtype)

    def value(node: Any) -> Array:
        if isinstance(node, int):
            x = parts[node].astype(dtype)
            x = x if before is None else rounded(np.multiply, x, before)
            return by_parts(np.multiply, x, share) if op == "average" and size > 2 else x
        result, (a, b) = np.empty(parts[0].shape, dtype), map(value, node)
        if op == "average" and size == 2:
            if is_small_float(dtype):
                a, b = a.astype(FLOAT32), b.astype(FLOAT32)
            total, halves = a + b, by_parts(np.multiply, a, 0.5) + by_parts(np.multiply, b, 0.5)
            return np.where(np.isfinite(total), by_parts(np.multiply, total, 0.5), halves).astype(dtype)
        if dtype.kind == "c" and op == "prod":
            result.real, result.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
        elif is_small_float(dtype) and dtype != FLOAT16:  # for that NumPy knows itself; zeros' signs depend on it
            result[...] = UFUNCS[op](a.astype(FLOAT32), b.astype(FLOAT32)).astype(dtype)
        else:
            result[...] = UFUNCS[op](a, b)
        return result

    with np.errstate(all="ignore"):
        result = value(canonical_tree(size))
        if op == "average" and size > 2:
            result = by_parts(np.divide, result, size * share)
        if after is not None:
            result = rounded(np.multiply, result, after)
        return result.astype(given)


# Reproducible calls


NAMES = {
    collective: [
        None,
        *(name for name, known in algorithms(collective).items() if known.tree_order and not known.windows),
    ]
    for collective in ("allreduce", "reduce", "reduce_scatter")
}
"""The algorithms that reproducible calls may use."""


def by(algorithm: str | None, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Make a call with an algorithm, or without if that needs what there is not, here or for so large an array."""
    try:
        return call(*args, algorithm=algorithm, **options)
    except ValueError:
        return call(*args, **options)


def ways(comm: Communicator, x: Array, op: str, options: dict[str, Any], drawn: Mapping[str, Any]) -> Iterator[Any]:
    """The whole result, in one way after another; None where another rank has it."""
    options = {**options, "reproducible": True}
    count, cut, allreduce = len(x), drawn["cut"] * len(x) // 10, drawn["allreduce"]
    parts = x[:cut], x[cut:]
    yield by(allreduce, comm.allreduce, x, op, **options)
    yield by(allreduce, comm.allreduce, np.repeat(x, 2)[::2], op, **options)
    y = x.copy()
    yield by(allreduce, comm.allreduce, y, op, out=y, **options)
    yield comm.allreduce_async(x, op, **options).wait()
    yield comm.allreduce_async(x, op, name="named", **options).wait()
    yield np.concatenate(comm.grouped_allreduce(parts, op, **options))
    works = [comm.allreduce_async(part, op, name=f"{number}", **options) for number, part in enumerate(parts)]
    yield np.concatenate([work.wait() for work in works])
    for root in range(comm.size):
        yield by(drawn["reduce"], comm.reduce, x, op, root, **options)
    yield comm.allgather(by(drawn["reduce_scatter"], comm.reduce_scatter, x, op, **options))
    counts = [count] if comm.size == 1 else [count - cut, cut, *[0] * (comm.size - 2)]
    yield comm.allgather(by(drawn["reduce_scatter"], comm.reduce_scatter, x, op, counts=counts, **options))


@pytest.mark.long
@given(data=st.data())
def test_reproducible(worlds: Worlds, data: st.DataObject) -> None:
    where = data.draw(st.sampled_from(list(WORLDS)), label="where")
    size = data.draw(st.integers(1, 5), label="size")
    dtype = data.draw(st.sampled_from(FLOATS), label="dtype")
    op = data.draw(st.sampled_from(sorted(allowed_ops(dtype))), label="op")
    count, seed = data.draw(COUNTS, label="count"), data.draw(st.integers(0, 2**32), label="seed")
    scales = [data.draw(st.sampled_from([None, None, 1 / 3]), label=scale) for scale in ("prescale", "postscale")]
    options = dict(zip(("prescale", "postscale"), scales, strict=True))
    drawn: dict[str, Any] = {name: data.draw(st.sampled_from(NAMES[name]), label=name) for name in NAMES}
    drawn["cut"] = data.draw(st.integers(0, 10), label="cut")
    special = data.draw(st.sampled_from([0.0, 0.3]), label="special")
    parts = [numbers(count, dtype, seed + rank, special) for rank in range(size)]

    def body(comm: Communicator) -> list[Any]:
        return [None if way is None else np.array(way) for way in ways(comm, parts[comm.rank], op, options, drawn)]

    wanted = bits(with_one_nan(expected(parts, op, *scales)))
    for results in world(worlds, where, size).run(body):
        for number, result in enumerate(results):
            if result is not None:
                assert bits(with_one_nan(result)) == wanted, f"way {number}"


# All calls


@pytest.mark.long
@given(data=st.data())
def test_all_ranks_get_the_same_bits(worlds: Worlds, data: st.DataObject) -> None:
    """Also of NaNs, and whether a rank gives `out` or not."""
    where = data.draw(st.sampled_from(list(WORLDS)), label="where")
    size = data.draw(st.integers(2, 5), label="size")
    anywhere = [name for name, known in algorithms("allreduce").items() if not known.windows]
    algorithm = data.draw(st.sampled_from([None, *anywhere]), label="algorithm")
    dtype = data.draw(st.sampled_from(FLOATS), label="dtype")
    op = data.draw(st.sampled_from(sorted(allowed_ops(dtype))), label="op")
    count, seed = data.draw(COUNTS, label="count"), data.draw(st.integers(0, 2**32), label="seed")
    special = data.draw(st.sampled_from([0.0, 0.5]), label="special")
    scale = data.draw(st.sampled_from([None, 1 / 3]), label="scale")
    in_place = data.draw(st.lists(st.booleans(), min_size=size, max_size=size), label="in place")
    parts = [numbers(count, dtype, seed + rank, special) for rank in range(size)]
    for rank, part in enumerate(parts):
        if dtype in (np.float32, np.float64):  # NaNs that can be told apart
            words = part.view(f"u{dtype.itemsize}")
            words[np.isnan(part)] += rank

    def body(comm: Communicator) -> list[bytes]:
        x = parts[comm.rank].copy()
        y = x.copy()
        group = comm.grouped_allreduce([x[: count // 2], x[count // 2 :]], op, prescale=scale)
        out = y if in_place[comm.rank] else None
        whole = by(algorithm, comm.allreduce, y, op, out=out, postscale=scale)
        return [bits(part) for part in (*group, whole)]

    assert len({tuple(results) for results in world(worlds, where, size).run(body)}) == 1
