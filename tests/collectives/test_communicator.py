"""The contract of calls beyond their results: errors, order, groups, messages, objects, opening and closing."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import os
import pickle
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args, get_overloads

import ml_dtypes
import numpy as np
import pytest

import collectives as ronde
from collectives import (
    AbortedError,
    ClosedError,
    Communicator,
    DeadlineExceeded,
    MismatchError,
    RendezvousError,
    TransportError,
    functions,
)
from collectives.arrays import ALIASES
from docs._tools import twins
from tests.collectives.launch.launcher import ronde as ronde_command
from tests.worlds import World, Worlds, world_of

MANY = 10_000 if os.environ.get("RONDE_PROOF") == "long" else 2_500


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def two(worlds: Worlds) -> World:
    return worlds.get("local", 2)


@pytest.fixture
def three(worlds: Worlds) -> World:
    return worlds.get("local", 3)


def still_usable(world: World) -> None:
    results = world.run(lambda comm: comm.allreduce(np.arange(5.0)))
    for result in results:
        np.testing.assert_array_equal(result, np.arange(5.0) * world.size)
    assert world.sound


# ---- bad input: the error names the argument, the value and what is allowed; nothing is lost

X = np.zeros(6, np.float32)
WRAPPED = np.array([-1, 7]).astype(np.uint64)
"""Their sum as NumPy makes it is 6."""
BAD_CALLS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("allreduce", {"x": [1, 2]}, TypeError, r"x=\[1, 2\]: .*array.* not list"),
    ("allreduce", {"x": "text"}, TypeError, r"x='text': .*array"),
    ("allreduce", {"x": np.array([object()])}, TypeError, r"x: dtype object .*\*_object"),
    ("allreduce", {"x": np.array(["a"])}, TypeError, r"x: dtype <U1 "),
    ("allreduce", {"x": np.zeros(2, "M8[s]")}, TypeError, r"x: dtype datetime64\[s\] "),
    ("allreduce", {"x": np.zeros(2, [("a", "f4")])}, TypeError, r"x: dtype \[\('a'"),
    ("allreduce", {"x": np.zeros(2, ">f4")}, TypeError, r"x: dtype dtype\('>f4'\) .*byte order.*x\.astype"),
    ("allreduce", {"x": X, "op": ["sum"]}, ValueError, r"op=\['sum'\]: .*sum, "),
    ("allreduce", {"x": X, "op": "median"}, ValueError, r"op='median': .*sum, average, prod"),
    ("allreduce", {"x": X, "op": "band"}, TypeError, r"op='band': .*float32; .*sum, average"),
    ("allreduce", {"x": X > 0, "op": "sum"}, TypeError, r"op='sum': .*bool; .*min, max, band"),
    ("allreduce", {"x": X * 1j, "op": "max"}, TypeError, r"op='max': .*complex64"),
    ("allreduce", {"x": X, "out": np.zeros(5, np.float32)}, ValueError, r"out: .*\(5,\).* \(6,\)"),
    ("allreduce", {"x": X, "out": np.zeros(6)}, TypeError, r"out: .*float64, .*float32"),
    ("allreduce", {"x": X, "out": [0]}, TypeError, r"out=\[0\]: .*array"),
    ("allreduce", {"x": X, "out": np.broadcast_to(X[:1], 6)}, ValueError, r"out: is read-only"),
    ("allreduce", {"x": X, "prescale": "2"}, TypeError, r"prescale='2': .*number"),
    ("allreduce", {"x": X, "postscale": 10**400}, ValueError, r"postscale: .*too large"),
    ("allreduce", {"x": X > 0, "op": "lor", "postscale": 2}, TypeError, r"postscale=2: bool "),
    ("allreduce", {"x": X, "timeout": 0}, ValueError, r"timeout=0: .*positive"),
    ("allreduce", {"x": X, "timeout": float("nan")}, ValueError, r"timeout=nan: .*positive"),
    ("allreduce", {"x": X, "algorithm": "rign"}, ValueError, r"algorithm='rign'.*ring"),
    ("broadcast", {"x": X, "root": 2}, ValueError, r"root=2: .*rank.* 0 to 1"),
    ("broadcast", {"x": X, "root": -1}, ValueError, r"root=-1: .*rank"),
    ("broadcast", {"x": X, "root": "0"}, TypeError, r"root='0': .* int"),
    ("reduce", {"x": X, "root": 7}, ValueError, r"root=7: .*rank"),
    ("gather", {"x": X, "root": 1.0}, TypeError, r"root=1.0: .* int"),
    ("scatter", {"x": np.float32(3)}, ValueError, r"x: .*axis"),
    ("scatter", {"x": X, "counts": [1, 2, 3]}, ValueError, r"counts=\[1, 2, 3\]: .*2 ints"),
    ("reduce_scatter", {"x": X, "counts": [3, 4]}, ValueError, r"counts=\[3, 4\]: .*at least 0 .*6 tog"),
    ("reduce_scatter", {"x": X, "counts": [7, -1]}, ValueError, r"counts=\[7, -1\]: .*at least 0"),
    ("alltoall", {"x": X[:5]}, ValueError, r"x: .*first dimension 5 .*2 ranks; .*splits="),
    ("alltoall", {"x": X, "splits": [[1], [2, 3]]}, ValueError, r"splits=\[\[1\], \[2, 3\]\]: .*2 ints"),
    ("grouped_allgather", {"xs": [X, "a"]}, TypeError, r"xs\[1\]='a': .*array"),
    ("grouped_allgather", {"xs": [X, X], "expected": [None, [1]]}, ValueError, r"expected\[1\]=\[1\]: .*2 ints"),
    ("alltoall", {"x": X, "splits": [1.5, 4.5]}, ValueError, r"splits=\[1.5, 4.5\]: .*2 ints"),
    ("send", {"x": X, "dst": 2}, ValueError, r"dst=2: .*rank"),
    ("send", {"x": X, "dst": 0, "tag": -1}, ValueError, r"tag=-1: .* int, 0 to 2\*\*31 - 1"),
    ("recv", {"x": np.broadcast_to(X[:1], 6), "src": 0}, ValueError, r"x: is read-only"),
    ("broadcast_object", {"obj": lambda: 0}, TypeError, r"obj: .*function.* pickled"),
    ("split", {"color": "a"}, TypeError, r"color='a': .* int or None"),
    ("split", {"color": -2}, ValueError, r"color=-2: .*0 to"),
    ("split", {"color": 2**63}, ValueError, r"color=9223372036854775808: .*0 to"),
    ("split", {"color": 0, "key": 2**63}, ValueError, r"key=9223372036854775808: .*-2\*\*63 to"),
    ("split", {"color": 0, "key": np.uint64(2**63)}, ValueError, r"key=9223372036854775808: .*-2\*\*63 to"),
    ("split", {"color": 0, "key": None}, TypeError, r"key=None: .* int$"),
    ("allreduce", {"x": X, "timeout": "5"}, ValueError, r"timeout='5': .*positive"),
    ("allreduce", {"x": X, "timeout": np.float32("nan")}, ValueError, r"timeout=.*nan.*: .*positive"),
    ("allreduce_async", {"x": X, "name": "\ud800"}, ValueError, r"name='.ud800': .*surrogates"),
    ("empty", {"shape": 2.5}, TypeError, r"shape=2.5: .* int"),
    ("empty", {"shape": (2.5,)}, TypeError, r"shape=\(2.5,\): .* int"),
    ("empty", {"shape": "3"}, TypeError, r"shape='3': .* int"),
    ("empty", {"shape": 2, "dtype": "float99"}, TypeError, r"dtype='float99': .*dtype"),
    ("empty", {"shape": 2, "dtype": 5}, TypeError, r"dtype=5: .*dtype"),
    ("empty", {"shape": (2, -1)}, ValueError, r"shape=\(2, -1\): .*0 or more"),
    (
        "empty",
        {"shape": (2**40, 2**40), "name": "large"},
        ValueError,
        r"shape=.*: .* bytes of 2 ranks",
    ),
    ("empty", {"shape": 2**45}, RendezvousError, r"cannot make window"),
    ("recv", {"x": 5, "src": 0}, TypeError, r"x=5: .*array.* not int"),
    ("grouped_allreduce", {"xs": iter([X])}, TypeError, r"xs=<list_iterator .*: .*list of arrays"),
    ("grouped_allgather", {"xs": iter([X])}, TypeError, r"xs=<list_iterator .*: .*list of arrays"),
    ("grouped_allreduce", {"xs": None}, TypeError, r"xs=None: .*list of arrays"),
    ("grouped_allreduce", {"xs": [X], "out": 5}, TypeError, r"out=5: .*list of arrays.* not int"),
    ("grouped_allgather", {"xs": [X], "expected": 5}, TypeError, r"expected=5: .*list of rows"),
    ("scatter_object", {"objs": 5}, TypeError, r"objs=5: .*list of objects.* not int"),
    ("allreduce", {"x": X, "op": X}, ValueError, r"op=array\(.*: .*sum, "),
    ("allreduce", {"x": X, "algorithm": ["ring"]}, ValueError, r"algorithm=\['ring'\]: .*circulant.*ring"),
    ("barrier", {"algorithm": ["ring"]}, ValueError, r"algorithm=\['ring'\]: .*dissemination"),
    ("reduce_scatter", {"x": X, "counts": WRAPPED}, ValueError, r"counts=.*: .*at least 0 .*6 tog"),
    ("alltoall", {"x": X, "splits": WRAPPED}, ValueError, r"splits=.*: .*at least 0"),
    ("recv", {"src": 0, "status": {}}, TypeError, r"status=\{\}: .*Status, not dict"),
    ("recv_object", {"src": 0, "pickler": 5}, TypeError, r"pickler=5: .*dumps and loads"),
    ("send_object", {"obj": 1, "dst": 0, "pickler": 5}, TypeError, r"pickler=5: .*dumps and loads"),
    ("allgather_object", {"obj": 1, "pickler": 5}, TypeError, r"pickler=5: .*dumps and loads"),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), BAD_CALLS)
def test_a_bad_argument_is_refused_and_nothing_is_lost(
    two: World, method: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    def body(comm: Communicator) -> None:
        call = dict(arguments)
        if comm.rank == 1 and method in ("scatter", "scatter_object", "broadcast_object"):
            return  # only the root looks at these
        with pytest.raises(error, match=text) as raised:
            getattr(comm, method)(*[call.pop(name) for name in ("x", "obj", "color") if name in call], **call)
        assert not isinstance(raised.value.__context__, KeyError)  # which a traceback would show first

    two.run(body)
    still_usable(two)


def test_a_bool_is_refused_also_after_an_equal_number(two: World) -> None:
    """True == 1 and False == 0: the planned call of the number must not be found for the bool."""

    def body(comm: Communicator) -> None:
        for method, number, option in (
            ("allreduce", 0.0, "prescale"),
            ("reduce", 1, "root"),
            ("broadcast", 1, "root"),
            ("gather", 1, "root"),
        ):
            for _ in range(2):
                getattr(comm, method)(X.copy(), **{option: number})
            with pytest.raises(TypeError):
                getattr(comm, method)(X.copy(), **{option: bool(number)})

    two.run(body)
    still_usable(two)


def test_a_stream_is_for_arrays_on_gpus(two: World) -> None:
    def body(comm: Communicator) -> None:
        for call in (comm.allreduce, comm.allgather_async, comm.alltoall):
            call(X)  # the planned call is known
            with pytest.raises(ValueError, match="stream"):
                call(X, stream=3)

    two.run(body)
    still_usable(two)


def expects(comm: Communicator, receiver: int, call: Callable[[], object]) -> None:
    """Every rank is told which receiver's sizes do not fit, and can go on."""
    with pytest.raises(MismatchError) as error:
        call()
    assert error.value.peer == receiver
    assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("receiver", [0, 1])
def test_an_out_that_does_not_fit_what_comes_is_an_error_on_all_ranks(
    worlds: Worlds, transport: str, receiver: int
) -> None:
    def body(comm: Communicator) -> None:
        rows = np.full((comm.rank + 1, 2), float(comm.rank))
        for _ in range(3):  # an allgather is speculative, or cautious after one that was not even
            for wrong in (np.empty((9, 2)), np.empty((3, 1)), np.empty(6), np.empty((5, 2))):
                out = wrong if comm.rank == receiver else None
                expects(comm, receiver, lambda out=out: comm.allgather(rows, out=out))
                expects(comm, receiver, lambda out=out: comm.gather(rows, receiver, out=out))
                expects(comm, receiver, lambda out=out: comm.scatter(np.zeros((8, 2)), 0, out=out))
                expects(comm, receiver, lambda out=out: comm.alltoall(np.zeros((4, 2)), [1, 3], out=out))
            out = np.empty((9, 2)) if comm.rank == receiver else None
            expects(comm, receiver, lambda out=out: comm.allgather(np.zeros((2, 2)), out=out))

    world = worlds.get(transport, 2)
    world.run(body)
    still_usable(world)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_expected_rows_that_do_not_come_are_an_error_on_all_ranks(worlds: Worlds, transport: str) -> None:
    def body(comm: Communicator) -> None:
        rank, size = comm.rank, comm.size
        given = np.arange(float(rank + 1))
        right = list(range(1, size + 1))
        wrong = [2, 1, 3] if rank == 1 else right  # as many in sum
        for _ in range(3):
            gathered = comm.allgather(given, expected=right)
            assert gathered.tolist() == [0, 0, 1, 0, 1, 2]
            expects(comm, 1, lambda: comm.allgather(given, expected=wrong))
            expects(comm, 1, lambda: comm.gather(given, 1, expected=wrong))
            expects(comm, 1, lambda: comm.grouped_allgather([given, given], expected=[right, wrong]))
            assert comm.allgather(given[:1], expected=[1, 1, 1]).tolist() == [0, 0, 0]
            expects(comm, 1, lambda: comm.allgather(given[:1], expected=[1, 0, 2] if rank == 1 else [1, 1, 1]))
            expects(comm, 0, lambda: comm.allgather(given[:1], expected=[2, 1, 0]))
        x = np.arange(6.0) + 10 * rank
        splits = [[3, 1, 2], [1, 2, 3], [2, 3, 1]]
        column = [row[rank] for row in splits]
        parts = [10 * peer + sum(row[:rank]) + i for peer, row in enumerate(splits) for i in range(row[rank])]
        assert comm.alltoall(x, splits[rank], expected=column).tolist() == parts
        expects(comm, 2, lambda: comm.alltoall(x, splits[rank], expected=[3, 2, 1] if rank == 2 else column))
        expects(comm, 0, lambda: comm.alltoall(x.reshape(-1, 1 + (rank == 1)), [2, 1, 3 if rank != 1 else 0]))

    world = worlds.get(transport, 3)
    world.run(body)
    still_usable(world)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
@pytest.mark.parametrize("name", [None, "rows"])
def test_rows_of_numpy_are_those_of_python(two: World, dtype: type, name: str | None) -> None:
    """One rank gives an array of few bytes, whose sums and products wrap, and the other one a list."""

    def body(comm: Communicator) -> None:
        def given(*rows: int) -> Any:
            return np.array(rows, dtype) if comm.rank else list(rows)

        x = np.arange(100.0 * (comm.rank + 1))[:120]
        both = [*range(100), *range(120)]
        assert comm.allgather_async(x, expected=given(100, 120), name=name).wait().tolist() == both
        assert comm.allgather_async(x, expected=given(100, 120), agreed=True, name=name).wait().tolist() == both
        [found] = comm.grouped_allgather_async([x], expected=[given(100, 120)], name=name).wait()
        assert found.tolist() == both
        assert comm.alltoall(np.arange(220.0), given(100, 120), expected=given(*[100 + 20 * comm.rank] * 2)).sum() > 0
        assert comm.gather(x, np.int64(1), expected=given(100, 120)) is None or comm.rank == 1
        assert comm.reduce_scatter(np.zeros((220, 9)), counts=given(100, 120)).shape == (100 + 20 * comm.rank, 9)

    two.run(body)


def test_expected_rows_must_be_numbers_for_each_rank(two: World) -> None:
    def body(comm: Communicator) -> None:
        for bad in ([1], [1, -1], [1, 1.5], [1, 2, 3]):
            for call in (comm.allgather, comm.gather, lambda x, expected: comm.alltoall(x, [1, 1], expected=expected)):
                with pytest.raises(ValueError, match="expected="):
                    call(np.zeros(2), expected=bad)  # type: ignore[operator]
        with pytest.raises(TypeError, match="expected="):
            comm.allgather(np.zeros(2), expected=3)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="expects"):
            comm.alltoall(np.zeros(2), expected=[2, 0])
        with pytest.raises(ValueError, match="expected"):
            comm.grouped_allgather([np.zeros(2)], expected=[])

    two.run(body)
    still_usable(two)


def test_arrays_of_other_rows_are_a_mismatch_that_all_ranks_see_alike(three: World) -> None:
    def body(comm: Communicator) -> str:
        with pytest.raises(MismatchError) as caught:
            comm.allgather(np.zeros((2, 3 if comm.rank != 1 else 4), np.float32 if comm.rank != 2 else np.float64))
        return caught.value.message

    messages = three.run(body)
    assert len(set(messages)) == 1
    assert "rank 0: (2, 3) float32; rank 1: (2, 4) float32; rank 2: (2, 3) float64" in messages[0]
    still_usable(three)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.allreduce(np.zeros(5))),
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.allreduce(np.zeros(4, np.int64))),
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.allreduce(np.zeros(4), "max")),
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.alltoall(np.zeros(6))),
        (lambda comm: comm.barrier(), lambda comm: comm.allreduce(np.zeros(4))),
        # their exchanges of sizes and of short objects have no root of their own
        (lambda comm: comm.scatter(np.zeros(4), 0), lambda comm: comm.scatter(np.zeros(4), 1)),
        (lambda comm: comm.scatter(np.zeros(4), 1), lambda comm: comm.scatter(np.zeros(4), 0)),
        (lambda comm: comm.gather_object(1, 0), lambda comm: comm.gather_object(1, 1)),
        # the difference is in other arguments than dtype, size, op and root
        # (each rank has a part: one without receives nothing, and may have ended by then)
        (lambda comm: comm.reduce_scatter(np.ones(4), counts=[1, 2, 1]), lambda comm: comm.reduce_scatter(np.ones(4))),
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.allreduce(np.zeros(4), algorithm="ring")),
        (lambda comm: comm.allreduce(np.zeros(4)), lambda comm: comm.allreduce(np.zeros(4), reproducible=True)),
    ],
)
@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_calls_that_do_not_fit_together_are_a_mismatch_on_every_rank(transport: str, mine: Any, theirs: Any) -> None:
    def body(comm: Communicator) -> list[str]:
        with pytest.raises(MismatchError, match="do not fit together") as caught:
            (theirs if comm.rank == 1 else mine)(comm)
        assert comm.failure is not None
        *rows, noticed = str(caught.value).splitlines()[1:]
        assert noticed.startswith("  (noticed: ")
        return [line.split(", called from ")[0].strip() for line in rows]

    with world_of(transport, 3, timeout=10.0) as world:
        tables = world.run(body)
    assert tables[0] == tables[1] == tables[2]
    assert [row[:8] for row in tables[0]] == ["rank 0: ", "rank 1: ", "rank 2: "]
    assert tables[0][0][8:] == tables[0][2][8:] != tables[0][1][8:]
    assert all(row.endswith(", its call 1") for row in tables[0])


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_later_calls_of_all_kinds_tell_of_a_mismatch_by_the_same_table(transport: str) -> None:
    def body(comm: Communicator) -> None:
        part, channel = comm.split(0), comm.channel()
        with pytest.raises(MismatchError) as caught:
            comm.allreduce(np.zeros(4 + comm.rank))
        table = str(caught.value)
        view = memoryview(bytearray(4))
        for call in (
            lambda: comm.send(np.ones(1), 1 - comm.rank),
            lambda: comm.recv(np.ones(1), 1 - comm.rank),
            lambda: comm.recv_async(np.ones(1), 1 - comm.rank).wait(),
            lambda: comm.probe(),
            lambda: comm.allreduce(np.ones(1)),
            lambda: comm.allreduce_async(np.ones(1)).wait(),
            lambda: comm.allreduce_async(np.ones(1), name="named").wait(),
            lambda: comm.split(0),
            lambda: part.allreduce(np.ones(1)),
            lambda: channel.send(view, 1 - comm.rank, 0, 20.0),
            lambda: channel.receive(view, 1 - comm.rank, range(1), 20.0).wait(),
            lambda: channel.probe(None, range(1), None),
        ):
            with pytest.raises(MismatchError) as caught:
                call()
            assert str(caught.value).startswith(table)

    with world_of(transport, 2, timeout=20.0) as world:
        world.run(body)


@pytest.mark.parametrize("number", [np.float32(20), np.int64(20), np.float16(20), 10**400, math.inf])
def test_timeouts_are_numbers_of_any_kind(two: World, number: Any) -> None:
    def body(comm: Communicator) -> None:
        assert comm.allreduce(1, timeout=number) == 2
        assert comm.allreduce_async(1).wait(number) == 2
        work = comm.recv_async(np.empty(1), comm.rank)
        with pytest.raises(TypeError, match=r"timeout='5': .*seconds"):
            work.wait("5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout=nan"):
            work.wait(math.nan)
        comm.send_async(np.ones(1), comm.rank).wait(number)
        assert work.wait(number) == 1

    two.run(body)


# ---- semantics


def test_numbers_and_other_kinds_of_arrays(two: World) -> None:
    class Foreign:
        """An array of another library, as the array interface shows it."""

        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.__array_interface__ = array.__array_interface__
            self._keep = array

    def body(comm: Communicator) -> None:
        assert comm.allreduce(2.5) == 5.0
        assert isinstance(comm.allreduce(2.5), np.float64)
        assert comm.allreduce(np.float32(1)) == 2
        assert comm.allreduce(np.array(3)).shape == ()
        np.testing.assert_array_equal(comm.allgather(comm.rank), [0, 1])
        np.testing.assert_array_equal(comm.allreduce(Foreign(np.ones(3))), [2, 2, 2])

    two.run(body)


def test_scale_factors(two: World) -> None:
    def body(comm: Communicator) -> None:
        x = np.arange(4.0)
        np.testing.assert_array_equal(comm.allreduce(x, prescale=0.5), x)
        np.testing.assert_array_equal(comm.allreduce(x, postscale=0.5), x)
        np.testing.assert_array_equal(x, np.arange(4.0))
        np.testing.assert_array_equal(comm.allreduce(x.copy(), out=x, prescale=0.25, postscale=4), np.arange(4.0) * 2)
        whole = np.array([3, -3, 5])
        np.testing.assert_array_equal(comm.allreduce(whole, prescale=0.5), [2, -2, 4])  # 1.5 -> 1, -1.5 -> -1
        np.testing.assert_array_equal(comm.allreduce(np.float16([2048]), prescale=2.0**-12), np.float16([1]))
        # average of integers truncates toward zero
        np.testing.assert_array_equal(comm.allreduce(np.array([3, -3]) * comm.rank, "average"), [1, -1])

    two.run(body)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_combined_in_float32_and_rounded_once(two: World, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    parts = [rng.standard_normal(10_001).astype(dtype) for _ in range(2)]
    parts[0][:3], parts[1][:3] = [np.inf, np.nan, np.inf], [1, 1, -np.inf]
    results = two.run(lambda comm: comm.allreduce(parts[comm.rank]))
    with np.errstate(all="ignore"):
        expected = (parts[0].astype(np.float32) + parts[1].astype(np.float32)).astype(dtype)
    for result in results:
        np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_reproducible_results_have_the_same_bits_whatever_the_algorithm(worlds: Worlds, dtype: Any, size: int) -> None:
    from collectives.algorithms import algorithms

    parts = np.random.default_rng(size).standard_normal((size, 3001)).astype(dtype)
    names = [
        name
        for name, known in algorithms("allreduce").items()
        if known.tree_order and not (known.multihost or known.windows)
    ]
    assert len(names) >= 3

    def body(comm: Communicator) -> list[bytes]:
        return [comm.allreduce(parts[comm.rank], algorithm=name, reproducible=True).tobytes() for name in names]

    bits = {result for results in worlds.get("local", size).run(body) for result in results}
    assert len(bits) == 1
    wide = np.add.reduce(parts.astype(np.float64))
    got = np.frombuffer(bits.pop(), dtype).astype(np.float64)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(got, wide, rtol=epsilon, atol=4e-6)


def test_signed_zeros_and_nans_have_the_same_bits_on_all_ranks(worlds: Worlds) -> None:
    from collectives.algorithms import algorithms

    quiet = np.array([0x7FC00001, 0x7FC00002, 0x7FC00003], np.uint32).view(np.float32)

    def body(comm: Communicator) -> list[bytes]:
        x = np.array([-0.0 if comm.rank % 2 else 0.0, quiet[comm.rank], 1.0], np.float32)
        return [
            comm.allreduce(x, op, algorithm=name).tobytes()
            for op in ("min", "max", "sum")
            for name, known in algorithms("allreduce").items()
            if not (known.multihost or known.windows)
        ]

    results = worlds.get("local", 3).run(body)
    assert results[0] == results[1] == results[2]


def test_in_place_parts_and_overlapping_memory(two: World) -> None:
    def body(comm: Communicator) -> None:
        memory = np.arange(10.0)
        np.testing.assert_array_equal(comm.allreduce(memory[:6], out=memory[2:8]), np.arange(6.0) * 2)
        whole = np.full(4, -1.0)
        whole[comm.rank * 2 : comm.rank * 2 + 2] = comm.rank
        np.testing.assert_array_equal(comm.allgather(whole[comm.rank * 2 :][:2], out=whole), [0, 0, 1, 1])
        swap = np.arange(4.0) + 10 * comm.rank
        comm.alltoall(swap, out=swap)
        np.testing.assert_array_equal(swap, [[0, 1, 10, 11], [2, 3, 12, 13]][comm.rank])

    two.run(body)


def test_grouped(two: World) -> None:
    def body(comm: Communicator) -> None:
        xs = [np.ones(3), np.ones((2, 2), np.int32), np.float64(4), np.zeros(0)]
        results = comm.grouped_allreduce(xs, "sum", postscale=0.5)
        for result, x in zip(results, xs, strict=True):
            np.testing.assert_array_equal(result, x)
            assert np.shape(result) == np.shape(x)
        outs = [np.empty(3), np.empty((2, 2), np.int32)]
        assert comm.grouped_allreduce(xs[:2], out=outs)[1] is outs[1]
        with pytest.raises(ValueError, match=r"out: .*2 arrays.* 4"):
            comm.grouped_allreduce(xs, out=outs)
        gathered = comm.grouped_allgather([np.full(comm.rank, 7), np.ones((1, 2))])
        assert [part.shape for part in gathered] == [(1,), (2, 2)]
        assert comm.grouped_allreduce([]) == []

    two.run(body)
    still_usable(two)


def test_asynchronous_calls_run_in_order_and_return_the_results_of_blocking_ones(three: World) -> None:
    def body(comm: Communicator) -> None:
        works = [comm.allreduce_async(np.full(100 * i, i)) for i in range(20)]
        works.append(comm.allgather_async(np.arange(comm.rank)))
        direct = comm.allreduce(1)  # comes after all of them
        assert direct == 3
        assert all(work.test() for work in works)
        for i, work in enumerate(works[:20]):
            np.testing.assert_array_equal(work.wait(), np.full(100 * i, 3 * i))
        assert works[20].wait().shape == (3,)
        failing = comm.scatter_async(np.zeros(3), 0, out=np.empty(5))
        with pytest.raises(MismatchError):
            failing.wait()

    three.run(body)
    still_usable(three)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_calls_without_a_deadline(worlds: Worlds, transport: str) -> None:
    def body(comm: Communicator) -> Any:
        if comm.rank == 1:
            time.sleep(0.1)
        forever = math.inf
        x = np.full(3, comm.rank + 1.0)
        seen = [comm.allreduce(x, timeout=forever)[0], comm.allreduce_async(x, timeout=forever).wait(forever)[0]]
        comm.barrier(timeout=forever)
        part = comm.split(0, timeout=forever)
        part.close(forever)
        if comm.rank == 1:
            comm.send(x, 0, timeout=forever)
        else:
            seen.append(comm.recv(np.empty(3), 1, timeout=forever)[0])
        return [*seen, comm.broadcast_object(comm.rank, timeout=forever)]

    assert worlds.get(transport, 2).run(body) == [[3.0, 3.0, 2.0, 0], [3.0, 3.0, 0]]


def test_waiting_for_a_work_is_bounded(two: World) -> None:
    late = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert late.wait(20)
        work = comm.allreduce_async(1)
        if comm.rank == 0:
            assert not work.test()
            with pytest.raises(DeadlineExceeded, match="still in flight"):
                work.wait(0.02)
            with pytest.raises(ValueError, match="timeout=nan"):
                work.wait(math.nan)
            late.set()
        assert work.wait() == 2

    two.run(body)


def test_calls_from_many_threads(two: World) -> None:
    """Threads of a rank may call at once; here each has a communicator of its own, so that the order is theirs."""

    def body(comm: Communicator) -> None:
        parts = [comm.split(0) for _ in range(3)]
        errors: list[BaseException] = []

        def work(part: Communicator | None) -> None:
            try:
                assert part is not None
                for i in range(50):
                    assert part.allreduce(i) == 2 * i
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors
        for part in parts:
            assert part is not None
            part.close()

    two.run(body)


# ---- messages


def test_messages(three: World) -> None:
    def body(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        np.testing.assert_array_equal(comm.sendrecv(np.full(3, comm.rank), right, left), np.full(3, left))
        if comm.rank == 0:
            first = comm.send_async(np.arange(3), 1, tag=5)
            comm.send(np.float32(7), 1, tag=4)
            first.wait()
            comm.send_async(np.arange(6).reshape(2, 3).T, 2).wait()
        elif comm.rank == 1:
            seven = np.empty((), np.float32)
            assert comm.recv(seven, 0, tag=4) is seven
            assert seven == 7
            np.testing.assert_array_equal(comm.recv(np.empty(3, np.int64), 0, tag=5), [0, 1, 2])
        else:
            wide = np.zeros((3, 4), np.int64)
            work = comm.recv_async(wide[:, 1:3], 0)
            np.testing.assert_array_equal(work.wait(), [[0, 3], [1, 4], [2, 5]])
            assert work.test()
            assert wide[:, (0, 3)].max() == 0
        np.testing.assert_array_equal(comm.sendrecv(np.arange(2) + comm.rank, comm.rank), np.arange(2) + comm.rank)

    three.run(body)


def test_a_message_that_does_not_fit_is_lost_and_nothing_else(two: World) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(3), 1)
            comm.send(np.zeros(4, np.int64), 1)
        else:
            for _ in range(2):
                with pytest.raises(MismatchError, match=r"receive from rank 0: .*4 elements of float64"):
                    comm.recv(np.empty(4), 0)

    two.run(body)
    still_usable(two)


# ---- groups


@pytest.mark.long
def test_threads_split_their_communicators_at_the_same_time(worlds: Worlds) -> None:
    """The communicators that are made have numbers of their own, and so messages and windows of their own."""
    callers, turns = 4, 5

    def body(comm: Communicator) -> list[list[float]]:
        own, begin = [comm.split(0) for _ in range(callers)], threading.Barrier(callers)

        def call(caller: int) -> list[float]:
            found, mine = [], own[caller]
            assert mine is not None
            for _ in range(turns):
                begin.wait(60)
                with mine.split(0) as part:
                    sums = [part.allreduce(np.full(100, caller + 1.0)) for _ in range(20)]
                    found += [float(value) for one in sums for value in (one.min(), one.max())]
            return sorted(set(found))

        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(call, range(callers)))

    for transport in ("local", "shm", "tcp"):
        found = worlds.get(transport, 2).run(body)
        assert found == [[[2.0 * (caller + 1)] for caller in range(callers)]] * 2


def test_split(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        odd = comm.split(comm.rank % 2, key=-comm.rank)
        assert odd is not None
        assert odd.size == (2 if comm.rank % 2 else 3)
        np.testing.assert_array_equal(odd.allgather(comm.rank), sorted(range(comm.rank % 2, 5, 2), reverse=True))
        assert comm.split(None if comm.rank else 3) is None or comm.rank == 0
        pair = odd.split(0 if odd.rank < 2 else None)
        if pair is not None:
            assert pair.allreduce(1) == 2
            if pair.rank == 0:
                pair.send(np.ones(1), 1)
            else:
                pair.recv(np.ones(1), 0)
        assert comm.allreduce(1) == 5
        odd.close()
        with pytest.raises(ClosedError):
            odd.barrier()

    worlds.get("local", 5).run(body)


def test_local_and_cross_ranks() -> None:
    world = ronde.init(transport="local")
    try:
        assert (ronde.rank(), ronde.size(), ronde.local_rank(), ronde.local_size()) == (0, 1, 0, 1)
        assert (ronde.cross_rank(), ronde.cross_size()) == (0, 1)
        assert ronde.world() is world
        assert ronde.allreduce(3) == 3
        assert ronde.allgather_object("x") == ["x"]
        assert ronde.init() is world
        assert ronde.init(transport="local", config={"timeout": 1800}, rank=0) is world
        with pytest.raises(RuntimeError, match=r"differs: timeout=5.0 \(.*1800.0\), size=2 \(.* 1\)"):
            ronde.init(config={"timeout": 5.0}, size=2)
        with pytest.raises(RuntimeError, match=r"ProcessSet\(\[1\]\) \(.*world"):
            ronde.init(process_sets=[[0], [1]])
        with pytest.raises(RuntimeError, match=r"differs: tcp=.*spin_us=0.*world .*spin_us"):
            ronde.init(config={"tcp": {"spin_us": 0}})
        ours = world, world.allreduce_async(X), world.repeated("allreduce", X), world.plan("allreduce", X)
        for attempt, one in itertools.product((pickle.dumps, copy.deepcopy), ours):
            with pytest.raises(TypeError, match=r"(Communicator|Queued|repeated).* .*pickled"):
                attempt(one)
        for timeout in (-1, "soon"):  # nothing is done
            with pytest.raises(ValueError, match=f"timeout={timeout!r}: "):
                ronde.shutdown(timeout)  # type: ignore[arg-type]
        assert ronde.allreduce(1.0) == 1.0
    finally:
        ronde.shutdown()
    assert not ronde.is_initialized()
    with pytest.raises(RuntimeError, match=r"call ronde.init\(\) first"):
        ronde.rank()
    ronde.shutdown()


# ---- objects


def test_objects(three: World) -> None:
    def body(comm: Communicator) -> None:
        thing = {"rank": comm.rank, "list": list(range(comm.rank * 1000))}
        assert comm.broadcast_object(thing if comm.rank == 1 else None, 1)["list"][-1] == 999
        assert [item["rank"] for item in comm.allgather_object(thing)] == [0, 1, 2]
        assert comm.broadcast_object(None) is None

    three.run(body)


def test_objects_are_refused_on_links_that_are_not_authenticated(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TransportError, match=r"not authenticated: .*secret"):
            comm.allgather_object({})

    with world_of("local", 2) as world:
        for comm in world.communicators:
            monkeypatch.setattr(type(comm.transport), "authenticated", property(lambda self: False))
        world.run(body)


# ---- failure and end


def test_abort_reaches_every_rank_and_the_first_cause_stays() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 2:
            comm.abort("the data set is empty")
            comm.abort("another reason")
        for _ in range(2):
            with pytest.raises(AbortedError, match=r"rank 2 .*data set is empty"):
                comm.allreduce(np.zeros(3))
        with pytest.raises(AbortedError):
            comm.allreduce_async(np.zeros(3)).wait()

    with world_of("local", 3) as world:
        world.run(body)


def test_a_rank_that_does_not_come_ends_the_wait_of_the_others() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=r"in allreduce\(float64, 3 elements, op=sum\), call 1"):
                comm.allreduce(np.zeros(3), timeout=0.1)
            assert time.monotonic() - began < 30

    with world_of("local", 2) as world:
        world.run(body)


def test_after_close_every_call_says_so(tmp_path: Path) -> None:
    with world_of("local", 2) as world:
        world.run(lambda comm: comm.close())

        def body(comm: Communicator) -> None:
            comm.close()
            with pytest.raises(ClosedError):
                comm.allreduce(1)
            with pytest.raises(ClosedError):
                comm.allreduce_async(1)
            with pytest.raises(ClosedError):
                comm.send(1, 0)
            with pytest.raises(ClosedError):
                comm.changes_pending()
            with pytest.raises(ClosedError):  # nothing would end what these begin
                comm.serve_metrics()
            with pytest.raises(ClosedError):
                comm.start_timeline(tmp_path / "late.json")

        world.run(body)
        assert not list(tmp_path.iterdir())


# ---- the written face

METHODS = {name: method for name, method in inspect.getmembers(Communicator, inspect.isfunction) if name[0] != "_"}
FUNCTIONS = {name: function for name, function in vars(functions).items() if name in ronde.__all__ and name in METHODS}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [item for item in inspect.signature(function).parameters.values() if item.name != "self"]


def test_every_method_but_these_is_a_function_of_the_package() -> None:
    assert set(METHODS) - set(FUNCTIONS) == {"close"}
    assert all(getattr(ronde, name) is function for name, function in FUNCTIONS.items())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_signature_of_its_method(name: str) -> None:
    function, method = FUNCTIONS[name], METHODS[name]
    for one, other in zip([function, *get_overloads(function)], [method, *get_overloads(method)], strict=True):
        assert parameters(one) == parameters(other)
        assert inspect.signature(one).return_annotation == inspect.signature(other).return_annotation
    assert f"Communicator.{name}." in inspect.cleandoc(function.__doc__ or "").replace("\n", " ")


@pytest.mark.processes
def test_the_asynchronous_twins_are_up_to_date() -> None:
    assert twins.TARGET.read_text("utf-8") == twins.twins(), "run: python -m docs._tools.twins"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_documents_its_arguments(name: str) -> None:
    method = METHODS[name]
    text = method.__doc__ or ""
    assert text
    if name.endswith("_async"):
        assert f"`{name.removesuffix('_async')}`" in text
        text += METHODS[name.removesuffix("_async")].__doc__ or ""
    explained = {word for line in text.splitlines() for word in re.split(r"  +|, ", line.strip())}
    assert {item.name for item in parameters(method)} <= explained
    assert all(item.kind is not item.VAR_KEYWORD for item in parameters(method)) or name in ("plan", "repeated")


def test_only_collectives_that_are_begun_take_a_name() -> None:
    messages = {"send_async", "recv_async", "sendrecv_async", "send_object_async", "recv_object_async", "join_async"}
    named = {name for name, method in METHODS.items() if "name" in inspect.signature(method).parameters}
    assert named == {name for name in METHODS if name.endswith("_async")} - messages | {"empty"}


def test_the_ops_are_those_of_the_type() -> None:
    assert set(get_args(ronde.OpName)) == {*ronde.OPS, *ALIASES}


@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.parametrize(("transport", "calls"), [("auto", MANY), ("tcp", MANY), ("shm", MANY)])
def test_thousands_of_mixed_collectives_leave_nothing_behind(transport: str, calls: int) -> None:
    """Descriptors, memory and segments are looked at in mixed.py itself."""
    script = Path(__file__).with_name("mixed.py")
    done = ronde_command("run", "-np", "2", "--transport", transport, sys.executable, str(script), str(calls))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(b"%d calls" % calls) == 2


RELEASING: dict[str, Callable[[Communicator, Any], Any]] = {
    "allreduce": lambda comm, x: comm.allreduce(x),
    "in place": lambda comm, x: comm.allreduce_async(x, out=x).wait(),
    "named": lambda comm, x: comm.allreduce_async(x, name="x").wait(),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "allgather": lambda comm, x: comm.allgather(x),
    "alltoall": lambda comm, x: comm.alltoall_async(x).wait(),
    "sendrecv": lambda comm, x: comm.sendrecv(x, 1 - comm.rank),
    "recv": lambda comm, x: (comm.send_async(x.copy(), 1 - comm.rank), comm.recv(x, 1 - comm.rank)),
    "recv from any": lambda comm, x: (comm.send_async(x.copy(), 1 - comm.rank), comm.recv(x)),
}


@pytest.mark.parametrize("call", RELEASING)
@pytest.mark.parametrize("size", [1000, 300_000, 1_500_000])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_no_array_of_a_call_is_kept_after_it(worlds: Worlds, transport: str, size: int, call: str) -> None:
    """Memory of the program is free when the program has dropped it, not with the next call."""

    def body(comm: Communicator) -> list[bool]:
        x = np.ones(size)
        result = RELEASING[call](comm, x)
        arrays = [x, *(result if isinstance(result, tuple) else [result])]
        there = [weakref.ref(array) for array in arrays if isinstance(array, np.ndarray)]
        if isinstance(result, tuple):
            result[0].wait()
        del x, result, arrays
        deadline = time.monotonic() + 5
        while any(ref() is not None for ref in there) and time.monotonic() < deadline:
            time.sleep(0.001)  # the worker of asynchronous calls drops its own references after the caller has gone on
        return [ref() is not None for ref in there]

    for kept in worlds.get(transport, 2).run(body):
        assert not any(kept)


def test_ops_have_the_names_of_other_libraries_too(worlds: Worlds) -> None:
    """Also where some ranks use one name and some another."""

    def body(comm: Communicator) -> None:
        x = np.arange(4.0) + comm.rank
        expected = np.arange(4.0) + 1
        for op in ("avg", "mean"):
            np.testing.assert_array_equal(comm.allreduce(x, op), expected)
            np.testing.assert_array_equal(comm.grouped_allreduce([x], op)[0], expected)
        np.testing.assert_array_equal(comm.reduce_scatter(np.ones(3) * comm.rank, op="mean"), [1.0])
        mixed = ("avg", "mean", "average")[comm.rank]
        np.testing.assert_array_equal(comm.allreduce(x, mixed), expected)  # type: ignore[arg-type]
        named = comm.allreduce_async(x, mixed, name="x")  # type: ignore[call-overload]
        np.testing.assert_array_equal(named.wait(), expected)
        with pytest.raises(ValueError, match=r"op='average': .*scan"):
            comm.scan(x, "mean")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"op=\['mean'\]: .*sum, "):
            comm.allreduce(x, ["mean"])  # type: ignore[arg-type]

    worlds.get("local", 3).run(body)
