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
from collectives.program import Instruction, Kind, Span
from collectives.reductions import Kernel, divide, one_element
from collectives.reductions import kernel as kernel_for
from collectives.schedule import Buf
from collectives.windows import Place, Places, Windows
from transports.base import Request, Transport
from transports.copying import Copying, store_array
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

    fixed  arrays that the calls use, by number; those of the caller are filled in by `views`
    given  which these are: (number, whether it is the target, start, stop); stop is -1 for all of it
    """

    __slots__ = ("calls", "fixed", "given")

    def __init__(
        self, calls: list[Callable[[], object]], fixed: list[Array], given: list[tuple[int, bool, int, int]]
    ) -> None:
        self.calls = calls
        self.fixed = fixed
        self.given = given

    def views(self, source: Array, target: Array) -> list[Array]:
        """The arrays of a run from flat `source` into flat `target`."""
        views = self.fixed.copy()
        for number, is_target, start, stop in self.given:
            whole = target if is_target else source
            views[number] = whole if stop < 0 else whole[start:stop]
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

    def bind(self, plan: Plan, scratch: Array, half: int) -> Bound:
        """The calls of a plan, with `scratch` (flat, of its dtype), for one half of the window."""
        arrays = _Arrays(self, plan, scratch, 0 if self.window is None else half * (self.window.nbytes // 2))
        combine = None if plan.call.op is None else kernel_for(plan.call.op, plan.call.dtype)
        calls = [self._bind(step, arrays, combine) for step in plan.program.instructions]
        return Bound(calls, arrays.fixed, arrays.given)

    def _bind(self, step: Instruction, arrays: _Arrays, combine: Kernel | None) -> Callable[[], object]:
        run, request = self._run, step.request
        match step.kind:
            case Kind.COPY:
                dst, a = arrays.number(step.dst), arrays.number(step.a)
                choice = self._copying.choice(arrays.nbytes(step.dst)) if arrays.shared(step.dst) else None
                if choice is not None:

                    def share() -> None:
                        views = run.views
                        choice.copy(views[dst], views[a])

                    return share

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

    def staged(self, span: Span, offset: int, dtype: np.dtype[Any]) -> Array:
        """A piece of the window; `offset` is where the half begins."""
        assert self.window is not None
        index = self.window.index if span.rank < 0 else span.rank
        part = np.frombuffer(self.window.view(index), np.uint8)
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

    def __init__(self, binder: Binder, plan: Plan, scratch: Array, offset: int) -> None:
        self.fixed: list[Array] = []
        self.given: list[tuple[int, bool, int, int]] = []
        self._binder = binder
        self.dtype = plan.call.dtype
        self.averages = plan.averages
        self._places = plan.call.windows
        self._scratch = scratch
        self._offset = offset
        self._numbers: dict[Span | None, int] = {}

    def number(self, span: Span | None) -> int:
        """The number of the array for `span`; None is an empty one."""
        number = self._numbers.get(span)
        if number is None:
            number = self._numbers[span] = len(self.fixed)
            self.fixed.append(self._array(span, number))
        return number

    def nbytes(self, span: Span | None) -> int:
        """The size of what `span` names."""
        return 0 if span is None else (span.stop - span.start) * self.dtype.itemsize

    def shared(self, span: Span | None) -> bool:
        """True for memory that other ranks map."""
        if span is None or span.buf is Buf.SCRATCH:
            return False
        return span.buf is Buf.STAGE or _place(span, self._places) is not None

    def _array(self, span: Span | None, number: int) -> Array:
        if span is None:
            return NO_DATA
        if span.buf is Buf.STAGE:
            return self._binder.staged(span, self._offset, self.dtype)
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
