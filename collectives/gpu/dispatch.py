"""Operations on arrays of GPUs: placed on a stream, done natively or through the host.

The work of a call goes to the current stream of the library that its array belongs to:

    x on a GPU, native   -> operations in DeviceSpace  (NCCL, or schedules on native messages)
    x on a GPU, else     -> operations in MirrorSpace  (page-locked memory of the host)

A job that another thread runs (an asynchronous one) works on a stream beside the current one, so that the caller's
next work need not wait for it. A wait for its Work makes the waiting thread's current stream wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from collectives.execution import Executor
from collectives.gpu.devices import DeviceStream, cuda, is_device_array, wait_until_done
from collectives.gpu.enqueue import Enqueuer
from collectives.gpu.native import DeviceBuffer, DeviceSpace
from collectives.gpu.staged import MirrorSpace, Staging
from collectives.numeric import flag
from collectives.operations import (
    DeferredResult,
    HostOperations,
    Job,
    Make,
    Packable,
    PlannedCalls,
    Signature,
    Start,
    Starter,
)
from collectives.planning import Call

R = TypeVar("R")


class DeviceCalls:
    """Finds the calls on arrays of GPUs, for operations that are ordered among themselves.

    host   the same operations on arrays of the host's memory
    """

    def __init__(self, host: HostOperations) -> None:
        self.host = host
        self._devices: DeviceOperations | None = None
        self._lock = threading.Lock()

    def starter(self, start: Start[R], message: Callable[..., R]) -> Starter[R]:
        """Starts calls on arrays of the host, and on those of GPUs."""
        return Starter(self.host.arrays, self.host.jobs, self.find, start, message)

    def find(self, x: Any, out: Any, stream: Any, blocking: bool) -> Callable[[Make], Job[Any]] | None:
        """The function that makes the job of a call on an array of a GPU; None for arrays of the host.

        x                  the call's array, or a sequence whose first array decides; None: `out` decides
        stream, blocking   the arguments of the call

        Raises ValueError for a stream with an array of the host.
        """
        found = _device_array(x, out)
        if found is None:
            if stream is not None:
                raise ValueError(f"stream={stream!r}: must be None, because x is not on a GPU")
            return None
        place = cuda().stream_of(found, stream)
        return lambda make: self.devices.job(make, place, found, flag(blocking, "blocking"))

    @property
    def devices(self) -> DeviceOperations:
        """The operations on arrays of GPUs; made when there is the first."""
        with self._lock:
            if self._devices is None:
                self._devices = DeviceOperations(self.host)
            return self._devices

    @property
    def used(self) -> bool:
        """True if arrays on GPUs were communicated: then `close` is collective."""
        return self._devices is not None

    def close(self, deadline: float) -> None:
        """Release all memory, also the host's. Collective if arrays on GPUs were communicated. Raises
        DeadlineExceeded."""
        devices, self._devices = self._devices, None
        try:
            if devices is not None:
                devices.close(deadline)
        finally:
            self.host.close()


class DeviceOperations:
    """Makes the jobs on arrays of GPUs for one set of operations."""

    def __init__(self, host: HostOperations) -> None:
        self._host = host
        self._enqueuer = Enqueuer(host.executor)
        self._staging = Staging(host.executor)
        space = DeviceSpace(self._enqueuer)
        self._native = host.arrays_in(space, PlannedCalls(space), DeviceBuffer())
        self._beside: dict[int, DeviceStream] = {}

    @property
    def executor(self) -> Executor:
        return self._host.executor

    def job(self, make: Make, stream: DeviceStream, like: Any, blocking: bool) -> Job[Any]:
        """The job that `make` makes, on arrays of a GPU.

        like      one of the arrays
        blocking  the job is done when the GPU is, not when the work has been enqueued
        """
        with stream:
            refused = self._enqueuer.refused(self._host.arguments.deadline())
            inner = None if refused else make(self._native)
            if inner is None or inner.signature.for_host:
                return _DeviceJob(self, self._staged(make), None, stream, like, blocking)
        return _DeviceJob(self, inner, make, stream, like, blocking)

    def run(self, job: Job[Any], otherwise: Make | None, stream: DeviceStream, deadline: float) -> Any:
        """Run a job on the current stream. `otherwise` makes it anew if the ranks find that they cannot do it
        natively; None if it is staged already."""
        if otherwise is None or self._enqueuer.join(stream, deadline):
            return job.complete(deadline)
        return self._staged(otherwise).complete(deadline)

    def check(self) -> None:
        """Raises the transport's failure."""
        self._staging.check()

    def beside(self, stream: DeviceStream) -> DeviceStream:
        """A stream beside another one, whose work begins behind the work enqueued there."""
        beside = self._beside.get(stream.device)
        if beside is None:
            beside = self._beside[stream.device] = stream.beside()
        beside.after(stream.mark())
        return beside

    def bare_allreduce(self, x: Any, out: Any, op: str) -> Callable[[], None] | None:
        """The transport's own allreduce of flat arrays on the current stream; see Enqueuer.bare."""
        return self._enqueuer.bare(Call("allreduce", x.dtype, (x.size,), op), x, out, cuda().here())

    def close(self, deadline: float) -> None:
        """Release all resources for GPUs. Raises DeadlineExceeded."""
        self._staging.release()
        self._beside.clear()
        self._enqueuer.close(deadline)

    def _staged(self, make: Make) -> Job[Any]:
        """The job on mirrors of its arrays."""
        space = MirrorSpace(self._staging)
        return make(self._host.arrays_in(space, self._host.calls, self._host.buffer, space.job))


class _DeviceJob(Job[Any]):
    """A job on arrays of a GPU."""

    __slots__ = ("_blocking", "_job", "_like", "_operations", "_otherwise", "_stream", "_thread")

    def __init__(
        self,
        operations: DeviceOperations,
        job: Job[Any],
        otherwise: Make | None,
        stream: DeviceStream,
        like: Any,
        blocking: bool,
    ) -> None:
        super().__init__(job.timeout)
        self._operations = operations
        self._job = job
        self._otherwise = otherwise
        self._stream = stream
        self._like = like
        self._blocking = blocking
        self._thread = threading.get_ident()

    @property
    def signature(self) -> Signature:
        return self._job.signature

    @property
    def packable(self) -> Packable | None:
        pack, like = self._job.packable, self._like
        if pack is None:
            return None
        return Packable(pack.parts, lambda: DeferredResult(partial(_take, pack.finish(), None, like)))

    def run(self, deadline: float) -> Any:
        own, like = self._stream, self._like
        stream = own if threading.get_ident() == self._thread else self._operations.beside(own)
        with stream:
            result = self._operations.run(self._job, self._otherwise, stream, deadline)
            done = None if stream is own and not self._blocking else stream.mark()
            if self._blocking:
                wait_until_done(done, deadline, self._operations.check, self.signature.describe())
            if stream is own:
                return own.cuda.like(result, like)
        return DeferredResult(partial(_take, result, done, like))


def _take(result: Any, event: Any, like: Any) -> Any:
    """A result that the GPU is at work on, for the calling thread: in the library of `like`, whose current stream waits
    for the event, if there is one."""
    with cuda().stream_of(like) as stream:
        if event is not None:
            stream.after(event)
        return stream.cuda.like(result, like)


def _device_array(x: Any, out: Any) -> Any:
    """The array that tells the stream of a call; None for arrays in the host's memory."""
    if type(x) is np.ndarray:
        return None
    if is_device_array(x):
        return x
    if isinstance(x, (list, tuple)):  # the others must be where the first is
        return x[0] if x and is_device_array(x[0]) else None
    return out if x is None and is_device_array(out) else None
