"""The streams of enqueued work, and the waits between streams and host."""

from __future__ import annotations

import sys
import threading
import time
import types
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, DeadlineExceeded
from tests.gpu.bodies import host
from tests.gpu.gpus import Gpus, gpus

ONES = np.ones(4, np.float32)


def enqueued_by(some: Gpus, comm: Communicator) -> list[int]:
    """The streams that a rank's NCCL calls went to."""
    return [entry[3] for entry in list(some.machine.log) if entry[0] == "nccl" and entry[1] == comm.rank]


def test_a_call_goes_to_the_current_stream_and_returns_before_the_gpu_is_done() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        comm.allreduce(cupy.asarray(ONES))
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            release = some.machine.gate(stream.ptr)
            x = cupy.asarray(ONES)
            y = comm.allreduce(x)  # nothing has been done, not even x
            z = y + y  # ordered behind it
            assert not stream.done
        comm.barrier()
        release()
        with stream:
            np.testing.assert_array_equal(host(z), np.full(4, 4))
        assert enqueued_by(some, comm) == [0, stream.ptr]

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


class Foreign:
    """A stream of another library."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def test_the_stream_argument() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        x = cupy.asarray(ONES)
        streams = [cupy.cuda.Stream() for _ in range(3)]
        cupy.cuda.Stream.null.synchronize()
        comm.allreduce(x, stream=streams[0])
        comm.allreduce(x, stream=streams[1].ptr)
        comm.allreduce(x, stream=Foreign(streams[2].ptr))
        comm.allreduce(x, stream=0)
        assert enqueued_by(some, comm) == [*(stream.ptr for stream in streams), 0]
        assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


@pytest.mark.parametrize("subclass", [False, True])
def test_the_current_stream_of_torch(subclass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a tensor, and of one of a subclass from anywhere, goes to torch's current stream; the result is a
    tensor."""

    class Tensor:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.array.__dlpack__(**kwargs)

    class Marked(Tensor):
        pass

    Tensor.__module__ = "torch"
    made = Marked if subclass else Tensor
    torch: Any = types.ModuleType("torch")
    torch.from_dlpack = Tensor
    current = threading.local()
    torch.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=current.handle))
    monkeypatch.setitem(sys.modules, "torch", torch)

    def body(comm: Communicator, cupy: Any) -> None:
        stream = cupy.cuda.Stream()
        current.handle = stream.ptr
        with stream:
            x = made(cupy.asarray(ONES))
        y = comm.allreduce(x)
        assert isinstance(y, Tensor)
        assert comm.allreduce(x, out=x) is x
        with stream:
            np.testing.assert_array_equal(host(y.array), np.full(4, 2))
            np.testing.assert_array_equal(host(x.array), np.full(4, 2))
        assert enqueued_by(some, comm) == [stream.ptr] * 2

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


def test_an_asynchronous_call_works_beside_and_wait_orders_the_stream_not_the_host() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        comm.allreduce(cupy.asarray(ONES))
        produce, consume = cupy.cuda.Stream(), cupy.cuda.Stream()
        with produce:
            release = some.machine.gate(produce.ptr)
            x = cupy.asarray(ONES)
            work = comm.allreduce_async(x)
            while not work.test():
                time.sleep(0.001)
        with consume:
            y = work.wait()  # at once: the gate is closed
            z = y * np.float32(3)
            assert not consume.done
            late = some.machine.event()
            some.machine.record(late, consume.ptr)
        assert not some.machine.happened(late)
        comm.barrier()
        release()
        with consume:
            np.testing.assert_array_equal(host(z), np.full(4, 6))
        streams = enqueued_by(some, comm)
        assert streams[0] == 0
        assert streams[1] not in (0, produce.ptr, consume.ptr)
        some.machine.forget(late)

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


def test_asynchronous_calls_keep_their_arrays_until_the_gpu_is_done() -> None:
    """The fake finds every access to memory that nobody refers to."""

    def body(comm: Communicator, cupy: Any) -> None:
        comm.allreduce(cupy.asarray(ONES))
        stream = cupy.cuda.Stream()
        with stream:
            release = some.machine.gate(stream.ptr)
            for number in range(5):
                wide = cupy.asarray(np.full((4, 2), number, np.float32))
                comm.allreduce_async(wide[:, 0], prescale=2.0)  # packed, scaled, and forgotten
                del wide
        comm.barrier()
        release()
        cupy.cuda.Device().synchronize()

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


def test_a_blocking_call_waits_for_the_gpu_and_not_for_ever() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        comm.allreduce(cupy.asarray(ONES))
        stream = cupy.cuda.Stream()
        with stream:
            release = some.machine.gate(stream.ptr)
            threading.Timer(0.05, release).start()
            x = cupy.asarray(ONES)
            comm.allreduce(x, out=x, blocking=True)
            assert stream.done
            release = some.machine.gate(stream.ptr)
            work = comm.allreduce_async(x, blocking=True)
            time.sleep(0.05)
            assert not work.test()
            release()
            np.testing.assert_array_equal(host(work.wait(10)), np.full(4, 4))
            release = some.machine.gate(stream.ptr)
            with pytest.raises(DeadlineExceeded, match="in time"):
                comm.allreduce(x, blocking=True, timeout=0.1)
            release()

    with gpus() as some, some.world(2) as world:
        some.run(world, body)


@pytest.mark.parametrize("transport", ["nccl", "local"])
def test_named_calls(transport: str) -> None:
    """In any order; results are ordered for whoever waits."""

    def body(comm: Communicator, cupy: Any) -> None:
        xs = [cupy.asarray(np.full(5, number + comm.rank, np.float32)) for number in range(4)]
        order = range(4) if comm.rank else reversed(range(4))
        works = {number: comm.allreduce_async(xs[number], name=f"x{number}") for number in order}
        for number in range(4):
            np.testing.assert_array_equal(host(works[number].wait(20)), np.full(5, 2 * number + 1))
        gather = comm.allgather_async(xs[0], name="gather")
        np.testing.assert_array_equal(host(gather.wait(20)), [0] * 5 + [1] * 5)

    with gpus() as some, some.world(2, transport) as world:
        some.run(world, body)


def test_threads_of_one_rank() -> None:
    """Two threads call at once; calls of one communicator have one order, which names give."""

    def body(comm: Communicator, cupy: Any) -> None:
        def call(number: int) -> None:
            with cupy.cuda.Device(comm.rank), cupy.cuda.Stream():
                x = cupy.asarray(np.full(3, number, np.float32))
                for step in range(5):
                    found = comm.allreduce_async(x, name=f"{number}/{step}").wait(20)
                    np.testing.assert_array_equal(host(found), np.full(3, 2 * number))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with gpus() as some, some.world(2) as world:
        some.run(world, body)
