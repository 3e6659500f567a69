"""Mirrors of a GPU's arrays in page-locked memory of the host as a Space, and the jobs on them.

Used where the ranks have no native collectives. If only the steps of a plan work on a mirror, copying overlaps with
communicating (overlap.py); if anything else does (factors, packing), the mirror is complete first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np

from collectives.arrays import Array
from collectives.execution import Executor
from collectives.gpu.devices import DeviceStream, DeviceTarget, cuda
from collectives.gpu.overlap import OVERLAP_BYTES, CopyOverlap, Mirror, PinnedBufferPool
from collectives.operations import ArrayJob, HostSpace, Job, Packable, Part, Signature

_AT_ONCE: Final = ("gather", "scatter", "alltoall")
"""Collectives without a planned call that exchange the array once: an allgather may be tried and then run again."""


class Staging:
    """The page-locked memory and the copy streams of one communicator's operations."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._pool = PinnedBufferPool()
        self._copy_streams: dict[int, DeviceStream] = {}

    def release(self) -> None:
        """Forget the memory that the GPU may still read."""
        self._pool.release()

    def check(self) -> None:
        """Raises the transport's failure."""
        failure = self.executor.abort_signal.failure
        if failure is not None:
            raise failure

    def overlap(self, mirror: Mirror, target: Any, deadline: float) -> CopyOverlap:
        """The copies to and from one mirror, on the current stream and beside it."""
        stream = cuda().here()
        beside = self._copy_streams.get(stream.device)
        if beside is None:
            beside = self._copy_streams[stream.device] = stream.beside()
        beside.after(stream.mark())
        return CopyOverlap(mirror, stream, beside, target, deadline, self.check)

    def run(self, job: Job[Any], mirror: Mirror, target: Any, overlaps: bool, deadline: float) -> Any:
        """Run a job on a mirror, whose result goes to `target` on the GPU, if it is not None."""
        overlap = self.overlap(mirror, target, deadline)
        if overlaps:
            self.executor.overlap = overlap.hook
        else:
            overlap.gather()
        try:
            result = job.complete(deadline)
            overlap.finish()
        finally:
            self.executor.overlap = None
            self._pool.keep(mirror, self._copy_streams[cuda().here().device])  # if this failed half-way
        self.keep(mirror, deadline)
        return result

    def keep(self, mirror: Mirror, deadline: float) -> None:
        """The GPU may still be copying from a mirror, on the current stream."""
        self._pool.keep(mirror, cuda().here())
        self._pool.collect(deadline, self.check)


class _MirrorResult:
    """The result of a call that works in a mirror: in the end the mirror is copied to the GPU."""

    def __init__(self, mirror: Mirror, target: DeviceTarget) -> None:
        self.flat = mirror.host
        self.target = target

    def finish(self) -> _MirrorResult:
        """Itself: the job finishes the target once the copy is enqueued."""
        return self


class _HostResult:
    """A result in the host's memory that is copied to the GPU when it is finished."""

    def __init__(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._out = out
        self._array = np.empty(shape, dtype)
        self.flat = self._array.reshape(-1)

    def finish(self) -> Any:
        target = DeviceTarget(cuda().here(), self._out, self._array.shape, self._array.dtype)
        cuda().fill(target.flat, self.flat)
        return target.finish()


class MirrorSpace(HostSpace):
    """The mirrors of one call. To be used within the stream of the call."""

    def __init__(self, staging: Staging) -> None:
        super().__init__(staging.executor)
        self._staging = staging
        self._stream = cuda().here()
        self._mirrors: list[Mirror] = []
        self._results: list[_MirrorResult] = []

    def array(self, x: Any, name: str = "x", *, records: bool = False) -> Array:
        """The mirror of a GPU's array, not yet filled; of an `out`, which is only checked, the array itself."""
        array = self._stream.cuda.array(x, name)
        if name == "out":
            return array  # type: ignore[no-any-return]
        mirror = Mirror(self._stream.cuda.flat(array))
        self._mirrors.append(mirror)
        return mirror.host.reshape(array.shape)

    def pair(self, x: Any, array: Array, out: Any) -> tuple[Array, Any]:
        mirror = self._mirrors[len(self._results)]
        result = _MirrorResult(mirror, DeviceTarget(self._stream, out, array.shape, array.dtype))
        self._results.append(result)
        return result.flat, result

    def result(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
        return _HostResult(out, shape, dtype)

    def apart(self, source: Array, out: Any) -> Array:
        return source

    def job(self, job: Job[Any]) -> Job[Any]:
        """A job on these mirrors, which fills them first and copies the results back."""
        return _MirrorJob(job, self._staging, self._stream, self._mirrors, self._results)


class _MirrorJob(Job[Any]):
    """A job on mirrors. Runs within the stream of the call."""

    __slots__ = ("_job", "_mirrors", "_results", "_staging", "_stream")

    def __init__(
        self,
        job: Job[Any],
        staging: Staging,
        stream: DeviceStream,
        mirrors: Sequence[Mirror],
        results: Sequence[_MirrorResult],
    ) -> None:
        super().__init__(job.timeout)
        self._job = job
        self._staging = staging
        self._stream = stream
        self._mirrors = mirrors
        self._results = results

    @property
    def signature(self) -> Signature:
        return self._job.signature

    @property
    def packable(self) -> Packable | None:
        pack = self._job.packable
        if pack is None:
            return None
        return Packable(_Arriving(pack.parts, self._arrive), lambda: self._push(pack.finish))

    def run(self, deadline: float) -> Any:
        if len(self._mirrors) == 1 and len(self._results) <= 1:
            [mirror] = self._mirrors
            target = self._results[0].target.flat if self._results else None
            overlaps = self._exchanges_only() and mirror.array.nbytes > OVERLAP_BYTES
            return _finished(self._staging.run(self._job, mirror, target, overlaps, deadline))
        self._gather(deadline)
        result = self._job.complete(deadline)
        self._copy_back()
        return _finished(result)

    def _exchanges_only(self) -> bool:
        """True if nothing but the steps of one plan reads or writes the mirror."""
        job = self._job
        return job.planned.exchanges_only if isinstance(job, ArrayJob) else job.signature.kind in _AT_ONCE

    def _gather(self, deadline: float) -> None:
        for mirror in self._mirrors:
            self._staging.overlap(mirror, None, deadline).gather()

    def _copy_back(self) -> None:
        """Enqueue the copies of all mirrors that hold results."""
        for mirror, result in zip(self._mirrors, self._results, strict=False):
            mirror.push(range(len(mirror.segments)), result.target.flat, cuda().here())
            self._staging.keep(mirror, time.monotonic() + self.timeout)

    def _arrive(self) -> None:
        """Fill the mirrors, for a bundle of several operations."""
        with self._stream:
            self._gather(time.monotonic() + self.timeout)

    def _push(self, finish: Callable[[], Any]) -> Any:
        """The bundle's results are in the mirrors."""
        with self._stream:
            self._copy_back()
            return _finished(finish())


def _finished(result: Any) -> Any:
    """The result of a job on mirrors as arrays of the GPU."""
    if isinstance(result, list):
        return [_finished(one) for one in result]
    return result.target.finish() if isinstance(result, _MirrorResult) else result


class _Arriving(Sequence[Part]):
    """Parts whose memory is filled when the first of them is asked for."""

    def __init__(self, parts: Sequence[Part], arrive: Callable[[], None]) -> None:
        self._parts = parts
        self._arrive: Callable[[], None] | None = arrive

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            arrive()
        return self._parts[index]

    def __iter__(self) -> Iterator[Part]:
        return (self[index] for index in range(len(self)))
