"""Arrays of GPUs through the host's memory: where the transport has no collectives of its own for them, or the ranks
share a GPU, or some ranks have their arrays on a GPU and others do not.

The host works in page-locked *mirrors* of the arrays. A mirror is filled in segments, on a stream of their own, in
the order in which the plan needs them: before each step of a plan stands a wait for the segments that it touches, and
behind the last step that writes a segment the copy back, so that copying and communicating overlap. To the other ranks
there is nothing to see of it: steps and messages are those of arrays in the host's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays import Array, Target
from collectives.execution import RowHook
from collectives.gpu.devices import DeviceStream, check_out, cuda, is_device_array, wait_until_done
from collectives.operations import HostAccess
from collectives.planning import Plan
from collectives.schedule import Buf, Instruction, Kind, Span

SEGMENT_BYTES: Final = 1 << 20
MAX_SEGMENTS: Final = 64
OVERLAP_BYTES: Final = 1 << 15
"""Calls on fewer bytes are never overlapped: among them are the agreements on sizes."""
_MOST_KEPT: Final = 8
"""Calls whose page-locked memory the GPU may still be copying from before a new one waits for the oldest."""


def segments(count: int, itemsize: int) -> list[tuple[int, int]]:
    """Start and stop of the segments of `count` elements: at least SEGMENT_BYTES each, MAX_SEGMENTS at most."""
    width = max(SEGMENT_BYTES // itemsize, -(-count // MAX_SEGMENTS), 1)
    return [(start, min(start + width, count)) for start in range(0, count, width)]


class Mirror:
    """A contiguous array on a GPU, and page-locked memory of its size."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.host: Array = cuda().pinned(array.nbytes).view(array.dtype)
        self.segments = segments(array.size, array.dtype.itemsize)
        self._events: list[Any] = [None] * len(self.segments)
        self._here = [False] * len(self.segments)

    def touched(self, start: int, stop: int) -> range:
        """The segments that elements start..stop are in."""
        if start >= stop:
            return range(0)
        width = self.segments[0][1]
        return range(start // width, (stop - 1) // width + 1)

    def fetch(self, numbers: Sequence[int], place: DeviceStream) -> None:
        """Enqueue the copies of segments to the host, in this order, after all earlier work of `place`."""
        for number in numbers:
            piece = slice(*self.segments[number])
            place.cuda.to_host(self.host[piece], self.array[piece], place)
            self._events[number] = place.mark()

    def arrive(self, numbers: Sequence[int], deadline: float, attend: Callable[[], None]) -> None:
        """Wait until segments that are being fetched are here."""
        for number in numbers:
            event = self._events[number]
            if not self._here[number] and event is not None:
                wait_until_done(event, deadline, attend, "copying an array from the GPU")
            self._here[number] = True

    def push(self, numbers: Sequence[int], target: Any, place: DeviceStream) -> None:
        """Enqueue the copies of segments from the host into `target`."""
        for number in numbers:
            piece = slice(*self.segments[number])
            place.cuda.to_device(target[piece], self.host[piece], place)


class PinnedBufferPool:
    """Keeps page-locked memory until the GPU is done with it."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, object]] = deque()

    def keep(self, memory: object, place: DeviceStream) -> None:
        """Keep `memory` until `place` has come past this point."""
        self._kept.append((place.mark(), memory))

    def collect(self, deadline: float, attend: Callable[[], None]) -> None:
        """Release completed copies; wait for them if there are many. Raises DeadlineExceeded, and errors of
        `attend`."""
        while self._kept and (self._kept[0][0].done or len(self._kept) > _MOST_KEPT):
            wait_until_done(self._kept[0][0], deadline, attend, "copying an array to the GPU")
            self._kept.popleft()

    def release(self) -> None:
        """Forget all."""
        self._kept.clear()


class CopyOverlap:
    """Puts the copies of one mirror between the steps of a plan whose source it is, or its target, or both (in place).

    aside    the place to fetch in
    target   the array on the GPU that gets the final content of the mirror; None if there is none
    """

    def __init__(
        self,
        mirror: Mirror,
        place: DeviceStream,
        aside: DeviceStream,
        target: Any,
        deadline: float,
        attend: Callable[[], None],
    ) -> None:
        self._mirror = mirror
        self._place = place
        self._aside = aside
        self._target = target
        self._deadline = deadline
        self._attend = attend
        self._fetched = False
        self._unwritten: Sequence[int] | None = None

    def hook(self, plan: Plan, source: Array, target: Array) -> RowHook | None:
        """The hook that overlaps copies with the steps of a plan, None without overlap; see execution.RowHook."""
        if source.nbytes + target.nbytes <= OVERLAP_BYTES:
            return None
        mirror, steps = self._mirror, plan.program.instructions
        brings, takes = _same(source, mirror.host), self._target is not None and _same(target, mirror.host)
        if self._fetched or plan.algorithm.single_copy or not (brings or takes):  # exposed arrays are read as a whole
            self.gather()
            return None
        self._fetched = True
        touched: list[list[int]] = [[] for _ in steps]
        if brings:
            buf = Buf.IN if plan.call.alias is None else Buf.OUT
            touched = [_touched(mirror, step, buf) for step in steps]
            mirror.fetch(list(dict.fromkeys(number for numbers in touched for number in numbers)), self._aside)
        written = last_written(mirror, steps) if takes else {}
        if takes:
            covered = {number for numbers in written.values() for number in numbers}
            self._unwritten = [number for number in range(len(mirror.segments)) if number not in covered]
        return self._between(touched, written)

    def gather(self) -> None:
        """Copy the whole mirror to the host and wait for it."""
        everything = range(len(self._mirror.segments))
        if not self._fetched:
            self._mirror.fetch(everything, self._aside)
            self._fetched = True
        self._mirror.arrive(everything, self._deadline, self._attend)

    def finish(self) -> None:
        """Copy the rest to the target: the whole mirror, or with copy overlap, the parts that no step has written."""
        if self._target is None:
            return
        if self._unwritten is None:
            self._mirror.push(range(len(self._mirror.segments)), self._target, self._place)
            return
        for number in self._unwritten:
            piece = slice(*self._mirror.segments[number])
            np.copyto(self._target[piece], self._mirror.array[piece])

    def _between(self, touched: Sequence[Sequence[int]], written: Mapping[int, Sequence[int]]) -> RowHook:
        """The copies after each step, and then a wait for the memory that the next step touches."""
        steps = iter(range(len(touched) + 1))

        def copy() -> None:
            at = next(steps)
            if at - 1 in written:
                self._mirror.push(written[at - 1], self._target, self._place)
            if at < len(touched) and touched[at]:
                self._mirror.arrive(touched[at], self._deadline, self._attend)

        return copy


def _same(array: Array, other: Array) -> bool:
    """True if two arrays are the same memory."""
    return array.nbytes == other.nbytes and array.ctypes.data == other.ctypes.data


def _touched(mirror: Mirror, step: Instruction, buf: Buf) -> list[int]:
    """The segments of a buffer that a step reads or writes."""
    spans = [span for span in (step.a, step.b, step.dst) if span is not None and span.buf is buf and span.rank < 0]
    return sorted({number for span in spans for number in mirror.touched(span.start, span.stop)})


def last_written(mirror: Mirror, steps: Sequence[Instruction]) -> dict[int, list[int]]:
    """Step -> the segments of OUT whose last write it is. Received data count as written when they are awaited."""
    begun: dict[int, Span] = {}
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        span = step.dst
        if step.kind is Kind.RECV and span is not None:
            begun[step.request] = span
            continue
        if step.kind is Kind.AWAIT:
            span = begun.get(step.request)
        if span is not None and span.buf is Buf.OUT:
            last.update(dict.fromkeys(mirror.touched(span.start, span.stop), at))
    behind: dict[int, list[int]] = {}
    for number, at in sorted(last.items()):
        behind.setdefault(at, []).append(number)
    return behind


class DeviceAccess(HostAccess):
    """The arrays of messages, of the host or of GPUs: those of GPUs are copied to and from the host."""

    def array(self, x: Any, deadline: float, name: str = "x") -> Array:
        if not is_device_array(x):
            return super().array(x, deadline, name)
        with cuda().stream_of(x) as stream:
            array = stream.cuda.array(x, name)
            mirror = Mirror(stream.cuda.flat(array))
            everything = range(len(mirror.segments))
            mirror.fetch(everything, stream)
            mirror.arrive(everything, deadline, lambda: None)
        return mirror.host.reshape(array.shape)

    def kind(self, x: Any, name: str = "x") -> tuple[tuple[int, ...], np.dtype[Any]]:
        if not is_device_array(x):
            return super().kind(x, name)
        with cuda().stream_of(x) as stream:
            found = stream.cuda.array(x, name)
        return tuple(found.shape), found.dtype

    def target(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None, name: str = "out"
    ) -> Target:
        given = out if out is not None else like
        if given is None or not is_device_array(given):
            return super().target(out, shape, dtype, like, name)
        return _CopiedTarget(out, shape, dtype, like, name)


class _CopiedTarget(Target):
    """A Target for a GPU, filled in the host's memory and copied when it is finished."""

    def __init__(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any, name: str) -> None:
        """Raises as Target."""
        self._given = out if out is not None else like
        self._stream = cuda().stream_of(self._given)
        self._device: Any = None
        if out is not None:
            with self._stream:
                self._device = check_out(self._stream, out, shape, dtype)
        super().__init__(None, shape, dtype)

    def finish(self) -> Any:
        result = super().finish()
        with self._stream as stream:
            target = stream.cuda.empty(result.shape, result.dtype) if self._device is None else self._device
            stream.cuda.fill(target, result)
            return self._given if self._device is not None else stream.cuda.like(target, self._given)
