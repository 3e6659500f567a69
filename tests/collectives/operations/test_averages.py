"""Averages stay in the range of their inputs (c6_average_range); those of integers are exact."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import trunc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.compression import BF16, FP16, Compressor, Int8, PowerSGD, TopK, Uncompressed
from collectives.jit import obstacle
from tests.worlds import Worlds
from transports.errors import MismatchError

Array = np.ndarray[Any, Any]

INTEGERS = [np.dtype(f"{kind}int{bits}") for kind in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [
    *(np.dtype(name) for name in ("float16", "float32", "float64")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
]
SIZES = [1, 2, 3, 4, 5]
ALGORITHMS = [None, *(name for name, found in algorithms("allreduce").items() if not found.native)]

MADE = ["local", "shm", "tcp"]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def limits(dtype: np.dtype[Any]) -> list[Any]:
    """The ends of the range, and numbers near to them."""
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        return [low, low + 1, high - 1, high, 0, 1, 100]
    high = float(ml_dtypes.finfo(dtype).max)
    return [high, -high, high / 2, 0.0, 1.0, float(ml_dtypes.finfo(dtype).smallest_normal)]


def numbers(dtype: np.dtype[Any], rank: int, count: int) -> Array:
    """Any numbers of a dtype, many of them at the ends of its range."""
    rng = np.random.default_rng([rank, count, dtype.itemsize])
    bits = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):
        finite = bits if dtype.kind in "iu" else np.where(np.isfinite(bits.astype(np.float64)), bits, dtype.type(1))
    ends = np.array(limits(dtype), dtype)[rng.integers(0, len(limits(dtype)), count)]
    return np.where(rng.integers(0, 2, count) == 0, finite, ends).astype(dtype)


def exact(x: Any) -> Fraction:
    return Fraction(int(x)) if x.dtype.kind in "iu" else Fraction(float(x))


def check(found: Array, xs: list[Array]) -> None:
    """Compare averages with the exact ones."""
    dtype = found.dtype
    for column, value in zip(zip(*xs, strict=True), found, strict=True):
        mean = sum(map(exact, column), Fraction()) / len(xs)
        if dtype.kind in "iu":
            assert int(value) == trunc(mean), (column, value)
            continue
        assert np.isfinite(value), (column, value)
        facts = ml_dtypes.finfo(dtype)
        largest = max(abs(exact(x)) for x in column)
        unit = largest * Fraction(float(facts.eps)) + Fraction(float(facts.smallest_subnormal))
        assert abs(exact(value) - mean) <= (len(xs) + 1) * unit, (column, value)


def agreed(results: list[Array]) -> Array:
    assert len({result.tobytes() for result in results}) == 1
    return results[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_c6_average_range_by_every_algorithm(worlds: Worlds, dtype: np.dtype[Any], size: int) -> None:
    world = worlds.get("local", size)
    xs = [numbers(dtype, rank, 101) for rank in range(size)]

    def body(comm: Communicator) -> list[Array]:
        results = []
        for name in ALGORITHMS:
            for in_place in (False, True):
                x = xs[comm.rank].copy()
                try:
                    results.append(comm.allreduce(x, "average", algorithm=name, out=x if in_place else None))
                except ValueError:  # not for these ranks
                    assert name is not None
        fixed = [comm.allreduce(xs[comm.rank], "average", algorithm=name, reproducible=True) for name in (None, "tree")]
        assert fixed[0].tobytes() == fixed[1].tobytes()
        return [*results, fixed[0]]

    for found in zip(*world.run(body), strict=True):
        check(agreed(list(found)), xs)


@pytest.mark.long
@given(data=st.data(), size=st.sampled_from(SIZES), dtype=st.sampled_from([*INTEGERS, *FLOATS]))
def test_averages_of_any_numbers(worlds: Worlds, data: st.DataObject, size: int, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "iu":
        number: st.SearchStrategy[Any] = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    else:
        high = float(ml_dtypes.finfo(dtype).max)
        number = st.floats(-high, high)
    rows = data.draw(st.lists(st.lists(number, min_size=size, max_size=size), min_size=1, max_size=4))
    xs = list(np.array(rows, np.float64 if dtype.kind not in "iu" else object).T.astype(dtype))
    name = data.draw(st.sampled_from([None, "tree", "ring", "recursive_doubling"]))
    found = worlds.get("local", size).run(lambda comm: comm.allreduce(xs[comm.rank], "average", algorithm=name))
    check(agreed(found), xs)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("transport", MADE)
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_c6_average_range_of_equal_numbers(worlds: Worlds, transport: str, size: int, compiled: str) -> None:
    """In all forms of the call, small and in several segments, in machine code and without."""
    if compiled == "on" and obstacle() is not None:
        pytest.skip("there is no compiled interpreter here")
    world = worlds.get(transport, size, compiled=(compiled,), stage_bytes=1 << 16)
    values = [
        *(np.int8(100), np.int64(2**62 + 3), np.int64(-(2**63)), np.uint64(2**64 - 1), np.int32(-(2**31))),
        *(np.float16(60000), ml_dtypes.bfloat16(3e38), np.float32(1.5 * 2**127), np.float64(-(2.0**1023))),
        np.complex64(complex(2.0**127, -(2.0**127))),
    ]

    def body(comm: Communicator) -> list[Array]:
        results = []
        for value in values:
            for count in (1, 3, 40_000):
                x = np.full(count, value)
                results.append(comm.allreduce(x, "average"))
                results.append(comm.allreduce(x, "average", reproducible=True))
                results += comm.grouped_allreduce([x[:1], x, x[:2]], "average")
                results.append(comm.allreduce_async(x, "average", name=f"{value} {count}").wait())
                out = x.copy()
                plan = comm.plan("allreduce", out, "average", out=out)
                for _ in range(2):
                    plan.run()
                results.append(out)
                results.append(comm.reduce_scatter(np.full(count * comm.size, value), "average"))
                rooted = comm.reduce(x, "average", root=comm.size - 1)
                results.append(x if rooted is None else rooted)
                shared = comm.empty(count, x.dtype)
                shared[...] = value
                results.append(comm.allreduce(shared, "average", out=shared).copy())
                results.append(comm.allreduce(shared, "average").copy())
        return results

    for results in world.run(body):
        for result in results:
            assert (result == result[0]).all()
            assert any(result[0] == value and result.dtype == value.dtype for value in values)


@pytest.mark.parametrize("size", [2, 3])
def test_factors_are_applied_around_an_average(worlds: Worlds, size: int) -> None:
    def body(comm: Communicator) -> list[Any]:
        results = []
        for value in (np.int8(100), np.int64(2**62), np.float16(60000), np.float32(2.0**127), np.float64(2.0**1023)):
            x = np.array([value, 0 * value])
            results.append(comm.allreduce(x, "average", prescale=0.5, postscale=2.0) == x)
            results.append(comm.allreduce(x, "average", prescale=0.5) == x / value.dtype.type(2))
        return results

    for results in worlds.get("local", size).run(body):
        assert all(result.all() for result in results)


@pytest.mark.parametrize(
    ("mine", "others", "options"),
    [
        (np.ones(6, np.int8), np.full(6, 300, np.int16), {"op": "average"}),
        (np.ones(3, np.int64), np.ones(6, np.int32), {"op": "average"}),  # both are exchanged as six numbers of 64 bits
        (np.ones(6, np.float16), np.ones(6, np.float32), {"op": "average"}),
        (np.ones(6, np.float16), np.ones(6, ml_dtypes.bfloat16), {"op": "sum", "reproducible": True}),
    ],
    ids=lambda value: value.dtype.name if isinstance(value, np.ndarray) else value["op"],
)
@pytest.mark.parametrize("name", ["allreduce", "reduce", "reduce_scatter", "grouped_allreduce"])
def test_dtypes_that_are_exchanged_alike_are_a_mismatch(
    worlds: Worlds, name: str, mine: Array, others: Array, options: dict[str, Any]
) -> None:
    def body(comm: Communicator) -> None:
        x: Any = mine if comm.rank == 0 else others
        given = [x, x] if name == "grouped_allreduce" else x
        with pytest.raises(MismatchError, match="do not fit together") as raised:
            getattr(comm, name)(given, **options)
        for shown in (mine.dtype, others.dtype):
            assert f"({shown}" in str(raised.value)

    worlds.get("local", 3).run(body)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_smallest_numbers_are_kept_by_two_ranks(worlds: Worlds, size: int) -> None:
    """With more ranks a mean may be off by as many of the smallest subnormal numbers."""
    tiny = np.array([5e-324, 2.2e-308, -5e-324])
    bound = 0 if size == 2 else size * 5e-324
    for found in worlds.get("local", size).run(lambda comm: comm.allreduce(tiny, "average")):
        assert (abs(found - tiny) <= bound).all()


def test_infinities_and_nans_are_kept(worlds: Worlds) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 1.0] * 1000, np.float32)
    for size in (2, 3):
        for found in worlds.get("local", size).run(lambda comm: comm.allreduce(x, "average")):
            np.testing.assert_allclose(found, x, 1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "compressor", [Uncompressed(), BF16(), FP16(), TopK(1.0), TopK(0.01), PowerSGD(), Int8()], ids=str
)
def test_compressed_averages_stay_in_range(worlds: Worlds, compressor: Compressor, size: int) -> None:
    wide = not isinstance(compressor, FP16)
    xs = [np.full(5000, 2.0**127 if wide else 6e4, np.float32), np.full(10, 2.0**1023)]
    given: list[Array] = [*xs, np.full(7, 2**62 + 3)] if isinstance(compressor, Uncompressed) else xs

    def body(comm: Communicator) -> list[Array]:
        return [compressor.allreduce(comm, x, "average") for x in given]

    for results in worlds.get("local", size).run(body):
        for result, x in zip(results, given, strict=True):
            sent = result[result != 0]  # TopK sends few numbers
            assert len(sent)
            np.testing.assert_allclose(sent, x[: len(sent)], 0.02)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("value", [np.float32(2.0**127), np.float64(2.0**1023), np.float64(2.0**-600), np.float16(6e4)])
def test_adasum_of_equal_tensors_is_the_tensor(worlds: Worlds, value: Any, size: int) -> None:
    x = np.full(9, value)
    for found in worlds.get("local", size).run(lambda comm: comm.allreduce(x, "adasum")):
        np.testing.assert_allclose(found, x, 1e-3)


def test_machine_code_and_numpy_give_the_same_bits() -> None:
    """On ranks of one world, which differ in that."""
    if obstacle() is not None:
        pytest.skip("there is no compiled interpreter here")
    opened = Worlds()
    try:
        world = opened.get("shm", 3, compiled=("on", "off", "on"))
        for dtype in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64)):
            given = numbers(np.dtype(np.float32), 5, 3 * 64).reshape(3, 64).astype(dtype)
            found = world.run(lambda comm, given=given: comm.allreduce(given[comm.rank], "average", algorithm="direct"))
            agreed(found)
    finally:
        opened.close()
