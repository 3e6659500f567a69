"""Several allreduces as one: which ones go together, and that the results are what they were alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.execution.windows import Windows
from collectives.operations.fusion import CACHED, LARGEST, WINDOW, Buffer, BundleItem, bundles
from collectives.operations.signature import Signature
from tests.worlds import World, Worlds, kept_plans, world_of
from transports.errors import MismatchError
from transports.onesided import NoRoom

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


SHAPES = st.sampled_from([(), (0,), (3,), (10, 10), (LARGEST // 4,), (LARGEST,)])
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int64"])


@st.composite
def operations(draw: st.DrawFn) -> Signature:
    kind = draw(st.sampled_from(["allreduce", "grouped_allreduce", "broadcast"]))
    count = draw(st.integers(0, 4)) if kind == "grouped_allreduce" else 1
    return Signature(
        kind,
        tuple(draw(DTYPES) for _ in range(count)),
        tuple(draw(SHAPES) for _ in range(count)),
        op=draw(st.sampled_from(["sum", "average", "adasum"])),
        prescale=draw(st.sampled_from([None, 0.5])),
        reproducible=draw(st.booleans()),
    )


def nbytes(signature: Signature, array: int) -> int:
    return math.prod(signature.shapes[array]) * np.dtype(signature.dtypes[array]).itemsize


@given(st.lists(operations(), max_size=12), st.sampled_from([0, 100, 1000, LARGEST, 1 << 26]))
def test_bundles(given_operations: list[Signature], limit: int) -> None:
    found = bundles(given_operations, limit)
    places = [place for bundle in found for place in bundle]
    assert len(set(places)) == len(places)
    expected = set()
    for number, signature in enumerate(given_operations):
        whole = signature.kind == "broadcast" or signature.op == "adasum"
        expected |= (
            {BundleItem(number, -1)} if whole else {BundleItem(number, array) for array in range(len(signature.shapes))}
        )
    assert set(places) == expected
    assert [bundle[0] for bundle in found] == sorted(bundle[0] for bundle in found)
    for bundle in found:
        if len(bundle) > 1:
            sizes = [nbytes(given_operations[place.operation], place.array) for place in bundle]
            assert sum(sizes) <= limit
            assert max(sizes) <= LARGEST
        for place in bundle[1:]:
            one, other = given_operations[bundle[0].operation], given_operations[place.operation]
            assert one.dtypes[bundle[0].array] == other.dtypes[place.array]
            assert (one.op, one.prescale, one.reproducible) == (other.op, other.prescale, other.reproducible)


def test_bundles_are_as_full_as_they_may_be() -> None:
    small = Signature("allreduce", ("float32",), ((10,),), "sum")
    assert [len(bundle) for bundle in bundles([small] * 7, 120)] == [3, 3, 1]
    halves = small._replace(dtypes=("float16",))
    assert [len(bundle) for bundle in bundles([small, halves] * 3, 1000)] == [3, 3]


def in_windows(comm: Any, *, named: bool) -> int:
    """The number of plans for arrays in windows."""
    return sum(plan.call.windows is not None for plan in kept_plans(comm, named=named))


def test_the_buffer_is_kept() -> None:
    buffer = Buffer()
    assert buffer.limit(1 << 30) == 1 << 30
    first = buffer.take(100, FLOAT32)
    assert np.shares_memory(first, buffer.take(50, np.dtype(np.float64)))
    assert not np.shares_memory(first, larger := buffer.take(150, FLOAT32))
    assert np.shares_memory(larger, buffer.take(200, FLOAT32)), "it grows by more than it must"


def test_the_buffer_lies_in_a_window() -> None:
    buffer, window = Buffer(), np.zeros(WINDOW, np.uint8)
    buffer.share(window)
    assert (buffer.limit(1 << 30), buffer.limit(10)) == (CACHED, 10)
    assert np.shares_memory(buffer.take(100, FLOAT32), window)
    assert np.shares_memory(buffer.take(CACHED // 2, FLOAT32), window)
    assert not np.shares_memory(buffer.take(CACHED, FLOAT32), window), "that is more than it has"


def test_the_buffer_is_private_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> Any:
        raise NoRoom("no room")

    monkeypatch.setattr(Windows, "make", full)

    def body(comm: Any) -> None:
        works = [comm.allreduce_async(np.full(10, number), name=f"{number}") for number in range(5)]
        assert [work.wait()[3] for work in works] == [2 * number for number in range(5)]
        assert not in_windows(comm, named=True)

    with world_of("local", 2) as world:
        world.run(body)
    assert "small arrays are packed into private memory: no room" in caplog.text


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("transport", ["local", "shm"])
def test_bundles_are_combined_in_windows(worlds: Worlds, transport: str, joins: bool) -> None:
    """Named and in the order of calls; a rank that has joined takes part."""

    def body(comm: Any) -> None:
        arrays = [np.full(50_000, number + comm.rank, np.float32) for number in range(12)]
        if not joins:
            for found in (comm.grouped_allreduce(arrays), comm.grouped_allreduce_async(arrays, name="g").wait()):
                assert [one[7] for one in found] == [3 * number + 3 for number in range(12)]
            assert not in_windows(comm, named=False)
            assert in_windows(comm, named=True) == 2, "of 5 arrays, and of 2"
        if comm.rank != 1 or not joins:
            works = [comm.allreduce_async(x, name=f"{number}") for number, x in enumerate(arrays)]
            wanted = [2 * number + 2 if joins else 3 * number + 3 for number in range(12)]
            assert [work.wait()[7] for work in works] == wanted
        comm.join()
        assert in_windows(comm, named=True)

    worlds.get(transport, 3).run(body)


CASES: list[tuple[Any, str, float | None, float | None]] = [
    (np.float32, "sum", None, None),
    (np.float32, "average", 0.3, 0.7),
    (np.float64, "average", None, 1 / 3),
    (np.float16, "average", 0.1, None),
    (np.float16, "sum", None, 3.3),
    (BFLOAT16, "average", 1.5, 0.3),
    (np.int32, "average", 0.3, None),
    (np.int64, "sum", None, 0.7),
    (np.uint8, "max", None, None),
    (np.complex64, "average", 0.5, None),
    (np.bool_, "lor", None, None),
    (np.int16, "land", None, None),
]


@pytest.mark.long
@pytest.mark.parametrize(("size", "reproducible"), [(2, False), (2, True), (3, True)])
def test_results_are_those_of_the_arrays_alone(worlds: Worlds, size: int, reproducible: bool) -> None:
    """Bit by bit, where the order of adding is the same: with two ranks, or with `reproducible`."""
    opened = worlds.get("local", size)

    def body(comm: Any) -> None:
        rng = np.random.default_rng(comm.rank)
        works: list[tuple[Any, Any, str, dict[str, Any]]] = []
        for case, (dtype, op, before, after) in enumerate(CASES):
            options: dict[str, Any] = {"prescale": before, "postscale": after, "reproducible": reproducible}
            arrays = [rng.integers(0, 50, shape).astype(dtype) for shape in [(7,), (), (3, 5), (0,), (70_000,)]]
            for number, array in enumerate(arrays):
                begin = comm.allreduce_async(array, op, name=f"{case}/{number}", **options)
                works.append((begin, array, op, options))
            group = comm.grouped_allreduce_async(arrays, op, name=f"{case}", **options)
            together = comm.grouped_allreduce_async([a.copy() for a in arrays], op, **options)
            works += [(group, arrays, op, options), (together, arrays, op, options)]
        for work, x, op, options in works:
            result = work.wait(30.0)
            for one, array in zip(result, x, strict=True) if isinstance(x, list) else [(result, x)]:
                alone = comm.allreduce(array, op, **options)
                assert one.dtype == alone.dtype
                np.testing.assert_array_equal(one, alone)

    opened.run(body)


def test_scale_factors_are_rounded_as_horovod_rounds_them(worlds: Worlds) -> None:
    """float32: the factor as float32; halves: computed in float32; integers: in float64, cut off toward zero."""
    x32 = np.array([1.1, -3.7, 1e30, 1e-40], np.float32)
    x16 = np.array([0.1, 3.14159, -65504.0, 6e-8], np.float16)
    whole = np.array([7, -7, 3, 2**40 + 1], np.int64)
    factor = 1 / 3

    def body(comm: Any) -> Any:
        names = iter("abcdef")
        results = [
            comm.allreduce_async(x, name=next(names), **{scale: factor}).wait(30.0)
            for x in (x32, x16, whole)
            for scale in ("prescale", "postscale")
        ]
        return results[:]

    before32, after32, before16, after16, before_int, after_int = worlds.get("local", 1).run(body)[0]
    for result in (before32, after32):
        np.testing.assert_array_equal(result, x32 * np.float32(factor))
    for result in (before16, after16):
        np.testing.assert_array_equal(result, (x16.astype(np.float32) * np.float32(factor)).astype(np.float16))
    for result in (before_int, after_int):
        np.testing.assert_array_equal(result, np.trunc(whole * factor).astype(np.int64))


def test_overlapping_and_other_memory(worlds: Worlds) -> None:
    def body(comm: Any) -> None:
        memory = np.arange(20.0)
        x = memory[:10]
        strided, out = np.arange(12.0).reshape(3, 4)[:, ::2], np.zeros((3, 4))[:, ::2]
        works = [
            comm.allreduce_async(x, out=memory[5:15], name="overlapping"),
            comm.allreduce_async(strided, out=out, name="strided"),
        ]
        np.testing.assert_array_equal(works[0].wait(30.0), 2 * np.arange(10.0))
        assert works[1].wait(30.0) is out
        np.testing.assert_array_equal(out, 2 * strided)

    worlds.get("local", 2).run(body)


def test_errors_of_groups_name_the_array(worlds: Worlds) -> None:
    two: World = worlds.get("local", 2)

    def body(comm: Any) -> None:
        with pytest.raises(TypeError, match=r"xs\[1\]"):
            comm.grouped_allreduce_async([np.ones(1), "text"], name="x")
        with pytest.raises(ValueError, match=r"out: .*1 arrays.* 2"):
            comm.grouped_allreduce_async([np.ones(1)] * 2, out=[np.ones(1)], name="x")
        assert comm.grouped_allreduce_async([], name="x").wait(30.0) == []
        assert comm.grouped_allreduce([]) == []

    two.run(body)


@pytest.mark.parametrize("name", [None, "group"])
@pytest.mark.parametrize("size", [4, LARGEST])  # packed together, and one after the other
def test_results_in_the_memory_of_other_inputs(worlds: Worlds, size: int, name: str | None) -> None:
    """Each result is that of the inputs as they were: in exchanged places, of an array given twice, of slices."""

    def body(comm: Any) -> None:
        def total(xs: Any, out: Any) -> None:
            assert all(map(operator.is_, comm.grouped_allreduce_async(xs, out=out, name=name).wait(30.0), out))

        a, b = np.full((2, size), [[1.0], [10.0]])
        total([a, b], [b, a])
        assert set(a) == {20.0}
        assert set(b) == {2.0}
        total([a, a], [a, a])
        assert set(a) == {40.0}
        total([a, a], [a, b])
        assert set(a) == set(b) == {80.0}
        c = np.repeat([1.0, 10.0], size)
        total([c[:size], c[size:]], [c[size:], c[:size]])
        np.testing.assert_array_equal(c, np.repeat([20.0, 2.0], size))

    worlds.get("local", 2).run(body)


@pytest.mark.parametrize("factor", ["prescale", "postscale"])
def test_factors_that_are_nan_are_equal_on_all_ranks(worlds: Worlds, factor: str) -> None:
    def body(comm: Any) -> None:
        for _ in range(3):
            assert np.isnan(comm.allreduce_async(np.ones(2), name="x", **{factor: math.nan}).wait(30.0)).all()
            group = comm.grouped_allreduce_async([np.ones(2)] * 2, name="g", **{factor: np.float32("nan")})
            assert np.isnan(group.wait(30.0)).all()

    worlds.get("local", 2).run(body)


@pytest.mark.parametrize("name", [None, "group"])
def test_arrays_of_other_sizes_on_a_rank_are_no_group(name: str | None) -> None:
    """2 + 3 elements and 3 + 2 are as many, and would be added to each other's."""

    def body(comm: Any) -> None:
        sizes = (1, 1, 2, 3) if comm.rank else (1, 1, 3, 2)
        with pytest.raises(MismatchError, match="do not fit together") as raised:
            comm.grouped_allreduce_async([np.ones(size) for size in sizes], name=name).wait(30.0)
        for shown in ("[2] float64 (3,), [3]", "[2] float64 (2,), [3]") if name else ("1 + 3 + 2", "1 + 2 + 3"):
            assert shown in str(raised.value)

    with world_of("local", 2) as world:
        world.run(body)
