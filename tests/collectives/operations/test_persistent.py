"""Calls that are planned once and run many times."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from collectives import ClosedError, Communicator, MismatchError
from tests.worlds import world_of

TRANSPORTS = ["local", "shm", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_run_uses_the_current_content_of_the_arrays(transport: str, size: int) -> None:
    def rank(comm: Communicator) -> None:
        x, y, part = np.zeros((2, 6)), np.zeros((2, 6)), np.zeros((6 // size, 4))
        shared = comm.empty(5)
        several = [np.zeros(3), np.zeros(4)]
        calls = {
            "sum": comm.plan("allreduce", x, out=y),
            "max": comm.plan("allreduce", x, "max", out=y),
            "average": comm.plan("allreduce", x, op="average", out=y),
            "in place": comm.plan("allreduce", shared, out=shared),
            "new": comm.plan("allreduce", x),
            "strided": comm.plan("allreduce", x[:, ::2], out=y[:, ::2]),
            "broadcast": comm.plan("broadcast", x, size - 1, out=y),
            "scatter": comm.plan("reduce_scatter", x.reshape(6, 2)),
            "gather": comm.plan("allgather", x),
            "alltoall": comm.plan("alltoall", np.zeros((6, 4)), out=np.zeros((6, 4))),
            "group": comm.plan("grouped_allreduce", several, out=several),
            "barrier": comm.plan("barrier"),
            "reduce": comm.plan("reduce", x, root=0),
        }
        del part
        for turn in range(3):
            x[...] = 10 * turn + comm.rank
            total = size * 10 * turn + size * (size - 1) / 2
            assert calls["sum"].run() is y
            np.testing.assert_array_equal(y, np.full((2, 6), total))
            np.testing.assert_array_equal(calls["max"].run(), np.full((2, 6), 10 * turn + size - 1))
            np.testing.assert_allclose(calls["average"].run(), np.full((2, 6), total / size))
            shared[...] = comm.rank
            np.testing.assert_array_equal(calls["in place"].run(), np.full(5, size * (size - 1) / 2))
            first, second = calls["new"].run(), calls["new"].start().wait()
            assert first is not second
            np.testing.assert_array_equal(first, second)
            y[...] = -1
            calls["strided"].run()
            np.testing.assert_array_equal(y, np.tile([total, -1.0], (2, 3)))
            np.testing.assert_array_equal(calls["broadcast"].run(), np.full((2, 6), 10 * turn + size - 1))
            assert (calls["scatter"].run() == total).all()
            np.testing.assert_array_equal(calls["gather"].run()[::2, 0], 10 * turn + np.arange(size))
            assert not calls["alltoall"].run().any()
            for array in several:
                array[...] = 1
            calls["group"].run()
            np.testing.assert_array_equal(several[1], np.full(4, size))
            calls["barrier"].run()
            result = calls["reduce"].run()
            assert (result is None) == (comm.rank > 0)
            pending = [calls["sum"].start(), calls["max"].start()]
            pending[0].wait()
            np.testing.assert_array_equal(pending[1].wait(), np.full((2, 6), 10 * turn + size - 1))
            comm.barrier()

    with world_of(transport, size) as world:
        world.run(rank)


def test_it_pairs_with_plain_calls_of_other_ranks_and_memory_that_grows() -> None:
    def rank(comm: Communicator) -> None:
        x = np.ones(100, np.float32)
        call = comm.plan("allreduce", x, out=x, op="sum")
        for turn in range(4):
            if comm.rank:
                call.run()
            else:
                comm.allreduce(x, out=x)
            comm.allreduce(np.ones(10 ** (turn + 2)), algorithm="ring")  # takes ever more scratch memory
        np.testing.assert_array_equal(x, np.full(100, 16))

    with world_of("shm", 2) as world:
        world.run(rank)


def test_bad_arguments_raise_immediately() -> None:
    def rank(comm: Communicator) -> None:
        x = np.zeros(4)
        with pytest.raises(ValueError, match=r"collective='allreduc': .*allreduce, reduce, "):
            comm.plan("allreduc", x)
        with pytest.raises(ValueError, match="op='summ'"):
            comm.plan("allreduce", x, "summ", out=x)
        with pytest.raises(ValueError, match=r"out: .*5,.*4,"):
            comm.plan("allreduce", x, out=np.zeros(5))
        with pytest.raises(TypeError):
            comm.plan("allreduce", x, bogus=1)
        with pytest.raises(TypeError):
            comm.plan("allreduce", x, name="x")  # persistent calls are made in the order of calls
        with pytest.raises(TypeError):
            comm.plan("allreduce")

    with world_of("local", 1) as world:
        world.run(rank)


def test_mismatch_and_closing() -> None:
    def rank(comm: Communicator) -> Any:
        x = np.zeros(4)
        call = comm.plan("allreduce", x, "sum" if comm.rank else "max", out=x)
        with pytest.raises(MismatchError, match="op=max"):
            call.run()
        return call

    with world_of("shm", 2) as world:
        calls = world.run(rank)
    for call in calls:
        with pytest.raises(ClosedError):
            call.run()
        with pytest.raises(ClosedError):
            call.start()


def test_arrays_live_as_long_as_the_call() -> None:
    def rank(comm: Communicator) -> None:
        x = np.ones(4)
        alive = weakref.ref(x)
        call = comm.plan("allreduce", x, out=x)
        del x
        call.run()
        assert alive() is not None
        del call
        gc.collect()
        assert alive() is None

    with world_of("local", 2) as world:
        world.run(rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # of NumPy 2.5
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_an_array_may_be_given_another_shape_after_the_plan(transport: str, compiled: str) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")

    def rank(comm: Communicator) -> None:
        x, apart = np.ones(6), np.ones(6)
        in_place, into = comm.plan("allreduce", x, out=x), comm.plan("allreduce", x, out=apart)
        x.shape = apart.shape = (2, 3)
        assert in_place.run() is x
        assert into.run() is apart
        assert (x.tolist(), apart.tolist()) == ([[2.0] * 3] * 2, [[4.0] * 3] * 2)

    with world_of(transport, 2, compiled=(compiled,)) as world:
        world.run(rank)


@pytest.mark.parametrize("compiled", ["on", "off"])
def test_an_array_may_not_be_written_to_any_more_after_the_plan(compiled: str) -> None:
    def rank(comm: Communicator) -> None:
        x, y = np.ones(4), np.zeros(4)
        calls = [comm.plan("allreduce", x, out=y), comm.plan("allreduce", y, out=y)]
        root = comm.plan("broadcast", y, out=y)
        y.flags.writeable = False
        for call in calls:
            with pytest.raises(ValueError, match=r"out: .*read-only"):
                call.run()
        y.flags.writeable = comm.rank != 0
        root.run()  # keeps the array on the root, as the plain call does
        y.flags.writeable = True
        calls[0].run()
        assert y.tolist() == [2.0] * 4

    with world_of("local", 2, compiled=(compiled,)) as world:
        world.run(rank)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_a_repeated_call_takes_other_arrays_each_time(transport: str) -> None:
    def body(comm: Communicator) -> Any:
        like, rank, found = np.zeros(3), comm.rank, []
        add = comm.repeated("allreduce", like, "max", out=like)
        for number in range(3):
            x, out = np.full(3, rank + 10.0 * number), np.zeros(3)
            add(x, out)
            again = add.again(x, out)
            found.append((out.tolist(), again in (True, False)))
        found.append(add(np.full((2, 2), rank), None).tolist())  # another shape and dtype, and a new array
        shared = np.full(3, float(rank))
        add(shared, shared)
        found.append(shared.tolist())
        assert not add.again("no array", shared)
        assert not add.again(np.zeros(4), np.zeros(5))
        return found

    sums = [([1.0 + 10 * number] * 3, True) for number in range(3)]
    with world_of(transport, 2) as world:
        assert world.run(body) == [[*sums, [[1, 1], [1, 1]], [1.0] * 3]] * 2


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_repeated_call_in_bytes_fits_a_plain_one_on_bytes(transport: str) -> None:
    def body(comm: Communicator) -> Any:
        found = []
        give = comm.repeated("broadcast", None, 1, in_bytes=True)
        gather = comm.repeated("allgather", None, in_bytes=True)
        for number in range(3):
            data = np.full((2, 2), comm.rank + number, np.float32)
            seen = data.reshape(-1).view(np.uint8)
            everything = np.zeros((2, 2, 2), np.float32)
            if comm.rank:
                give(data, data)
                gather(data, everything)
            else:
                comm.broadcast(seen, 1, out=seen)
                comm.allgather(seen, out=everything.reshape(-1).view(np.uint8))
            found.append((data.tolist(), everything[:, 0, 0].tolist()))
        with pytest.raises(ValueError, match="contiguous"):
            give(np.zeros((4, 2))[:, 0], None)
        with pytest.raises(ValueError, match="collective"):
            comm.repeated("barrier")
        return found

    expected = [([[1.0 + number] * 2] * 2, [1.0 + number] * 2) for number in range(3)]
    with world_of(transport, 2) as world:
        assert world.run(body) == [expected] * 2


def test_a_repeated_call_is_planned_anew_after_its_window_is_gone() -> None:
    def body(comm: Communicator) -> Any:
        like = np.zeros(3)
        add, found = comm.repeated("allreduce", like, out=like), []
        for _ in range(3):
            window = comm.empty(3)
            for x in (window, np.zeros(3)):
                x[:] = comm.rank
                add(x, x)
                found.append(float(x[0]))
            del x, window  # the plans are forgotten with its memory
        return found

    with world_of("shm", 2) as world:
        assert world.run(body) == [[1.0] * 6] * 2
