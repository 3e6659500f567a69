"""Program -> calls: an instruction becomes a call without arguments, once for a plan and for every later run of it.

What never changes (the stage, scratch, peers, tags, kernels) is bound then. The caller's arrays change from run to
run: the calls find them, cut as each instruction needs it, in the list `views` of the Run that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.buffers import Array, as_bytes
from collectives.plan import Plan
from collectives.program import Instruction, Kind, Span, is_peers
from collectives.reductions import Kernel, divide, one_element
from collectives.reductions import kernel as kernel_for
from collectives.schedule import Buf
from collectives.windows import Place, Places, Windows
from transports.base import Request, Transport
from transports.copying import Choice, Copying, store_array
from transports.onesided import Window

NO_DATA: Final = np.empty(0, np.uint8)


class Run:
    """The run that goes on: what changes from call to call."""

    __slots__ = ("check", "deadline", "epoch", "requests", "views")

    def __init__(self) -> None:
        self.check = 0
        self.deadline = 0.0
        self.epoch = 0
        self.requests: list[Request | None] = []
        self.views: list[Array] = []


class Bound:
    """A plan's instructions as calls.

    fixed   arrays that the calls use, by number; those of the caller are filled in by `views`
    given   which these are: (number, whether it is the target, start, stop)
    staged  which lie in the staging window: (number, span)
    """

    __slots__ = ("calls", "fixed", "given", "staged")

    def __init__(
        self,
        calls: list[Callable[[], object]],
        fixed: list[Array],
        given: list[tuple[int, bool, int, int]],
        staged: list[tuple[int, Span]],
    ) -> None:
        self.calls = calls
        self.fixed = fixed
        self.given = given
        self.staged = staged

    def views(self, source: Array, target: Array) -> list[Array]:
        """The arrays of a run from flat `source` into flat `target`."""
        views = self.fixed.copy()
        for number, is_target, start, stop in self.given:
            array = target if is_target else source
            views[number] = array if stop - start == len(array) else array[start:stop]
        return views


class Binder:
    """Binds plans to a communicator's transport, window and memory."""

    def __init__(self, transport: Transport, ranks: tuple[int, ...], tag: int, run: Run, windows: Windows) -> None:
        self.window: Window | None = None
        """The staging window, once there is one: two halves."""
        self._windows = windows
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._run = run
        self._copying = Copying(store_array)

    def bind(self, plan: Plan, scratch: Array) -> Bound:
        """The calls of a plan, with `scratch` (flat, of its dtype), for its first turn."""
        arrays = _Arrays(self, plan, scratch)
        combine = None if plan.call.op is None else kernel_for(plan.call.op, plan.call.dtype)
        calls = [self._bind(step, arrays, combine) for step in plan.program.instructions]
        return Bound(calls, arrays.fixed, arrays.given, arrays.staged)

    def moved(self, first: Bound, plan: Plan, turn: int) -> Bound:
        """What has been bound for the first turn, for another one."""
        fixed = first.fixed.copy()
        for number, span in first.staged:
            fixed[number] = self.staged(span, plan, turn)
        return Bound(first.calls, fixed, first.given, first.staged)

    def _bind(self, step: Instruction, arrays: _Arrays, combine: Kernel | None) -> Callable[[], object]:
        run, request = self._run, step.request
        match step.kind:
            case Kind.COPY if arrays.lends and is_peers(step.a):
                return self._read(step, arrays)
            case Kind.COPY:
                dst, a = arrays.number(step.dst), arrays.number(step.a)
                choice = arrays.choice(self._copying, step)
                if choice is not None:

                    def across() -> None:
                        views = run.views
                        choice.copy(views[dst], views[a])

                    return across

                def copy() -> None:
                    views = run.views
                    views[dst][...] = views[a]

                return copy
            case Kind.REDUCE:
                dst, a, b = arrays.number(step.dst), arrays.number(step.a), arrays.number(step.b)
                assert combine is not None
                kernel = one_element(combine, arrays.dtype) if _may_be_one_in_place(step) else combine

                def reduce() -> None:
                    views = run.views
                    kernel(views[a], views[b], views[dst])

                if not (arrays.averages and step.phase):
                    return reduce
                size = len(self._ranks)

                def average() -> None:
                    views = run.views
                    target = views[dst]
                    kernel(views[a], views[b], target)
                    divide(target, size, target)

                return average
            case Kind.SEND | Kind.RECV:
                peer, tag = self._ranks[step.peer], self._tag
                sends = step.kind is Kind.SEND
                number = arrays.number(step.a if sends else step.dst)
                begin = self._transport.isend if sends else self._transport.irecv

                def exchange() -> None:
                    run.requests[request] = begin(peer, tag, as_bytes(run.views[number]), run.check)

                return exchange
            case Kind.AWAIT:

                def complete() -> None:
                    run.requests[request].wait(run.deadline)  # type: ignore[union-attr]

                return complete
        window, phase = self.window, step.phase
        assert window is not None
        if step.kind is Kind.SIGNAL:
            publish = window.publish
            return lambda: publish(run.epoch + phase, run.check)
        index, wait = step.peer, window.wait
        if phase == 1:
            return lambda: wait(index, run.epoch + 1, run.deadline, run.check)
        return lambda: wait(index, run.epoch + phase, run.deadline)

    def _read(self, step: Instruction, arrays: _Arrays) -> Callable[[], object]:
        """A copy from what a peer lends."""
        assert self.window is not None
        assert step.a is not None
        run, read, dst = self._run, self.window.read, arrays.number(step.dst)
        peer, piece, offset = step.a.rank, int(step.a.buf is Buf.OUT), step.a.start * arrays.dtype.itemsize
        return lambda: read(peer, piece, offset, as_bytes(run.views[dst]))

    def staged(self, span: Span, plan: Plan, turn: int) -> Array:
        """A piece of the window."""
        assert self.window is not None
        index = self.window.index if span.rank < 0 else span.rank
        part = np.frombuffer(self.window.view(index), np.uint8)
        offset = turn % 2 * (self.window.nbytes // 2) + turn // 2 * plan.stride
        dtype = plan.call.dtype
        view: Array = part[offset + span.start * dtype.itemsize : offset + span.stop * dtype.itemsize].view(dtype)
        return view

    def peers(self, span: Span, places: Places | None, dtype: np.dtype[Any]) -> Array:
        """A piece of a peer's IN or OUT, which lies in a window."""
        place = _place(span, places)
        assert place is not None
        size = dtype.itemsize
        view: Array = self._windows.part(place, span.rank, span.start * size, span.stop * size).view(dtype)
        return view


class _Arrays:
    """Numbers the arrays that a plan's calls use, each once."""

    def __init__(self, binder: Binder, plan: Plan, scratch: Array) -> None:
        self.fixed: list[Array] = []
        self.given: list[tuple[int, bool, int, int]] = []
        self.staged: list[tuple[int, Span]] = []
        self._binder = binder
        self._plan = plan
        self.dtype = plan.call.dtype
        self.averages = plan.averages
        self.lends = plan.algorithm.lends
        self._places = plan.call.windows
        self._scratch = scratch
        self._numbers: dict[Span | None, int] = {}

    def number(self, span: Span | None) -> int:
        """The number of the array for `span`; None is an empty one."""
        number = self._numbers.get(span)
        if number is None:
            number = self._numbers[span] = len(self.fixed)
            self.fixed.append(self._array(span, number))
        return number

    def choice(self, copying: Copying, step: Instruction) -> Choice | None:
        """What to copy by, to and from memory that other ranks map; None if there is no choice."""
        a, dst = step.a, step.dst
        assert a is not None
        assert dst is not None
        if not (self._shared(dst) or self._shared(a)):
            return None
        return copying.choice((dst.stop - dst.start) * self.dtype.itemsize, self._plan.nbytes, a.rank >= 0)

    def _shared(self, span: Span) -> bool:
        """True for memory that other ranks map."""
        return span.buf is Buf.STAGE or (span.buf is not Buf.SCRATCH and _place(span, self._places) is not None)

    def _array(self, span: Span | None, number: int) -> Array:
        if span is None:
            return NO_DATA
        if span.buf is Buf.STAGE:
            self.staged.append((number, span))
            return self._binder.staged(span, self._plan, 0)
        if span.buf is Buf.SCRATCH:
            return self._scratch[span.start : span.stop]
        if span.rank >= 0:
            return self._binder.peers(span, self._places, self.dtype)
        self.given.append((number, span.buf is Buf.OUT, span.start, span.stop))
        return NO_DATA


def _place(span: Span, places: Places | None) -> Place | None:
    """Where the IN or OUT that `span` is of lies in a window; None if it does not."""
    return None if places is None else places[span.buf is Buf.OUT]


def _may_be_one_in_place(step: Instruction) -> bool:
    """True if a REDUCE may overwrite one of its operands, of one element."""
    dst = step.dst
    assert dst is not None
    if dst.stop - dst.start != 1:
        return False
    operands = [operand for operand in (step.a, step.b) if operand is not None]
    same = any(operand.buf is dst.buf and operand.rank == dst.rank for operand in operands)
    return same or any({operand.buf, dst.buf} == {Buf.IN, Buf.OUT} for operand in operands)
