"""Program -> functions: the text of each step, and the memory that it works on.

Values that never change (the stage, scratch memory, peers, tags, kernels) are bound once for a plan and all its runs.
The caller's arrays, and everything else that changes from run to run, are arguments of the functions: see
step_functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import (
    Array,
    Averaging,
    Kernel,
    Op,
    as_bytes,
    averaging_kernel,
    casts,
    compiled_averaging,
    compiled_kernel,
    is_small_float,
    one_element,
)
from collectives.arrays import kernel as kernel_for
from collectives.execution.positions import StepCounter
from collectives.execution.step_functions import StepFunction, StepTemplate, StepWriter
from collectives.execution.windows import Windows
from collectives.jit import MachineCode, combining
from collectives.planning import Plan, WindowOffset, WindowOffsets
from collectives.schedule import Buf, Instruction, Kind, Span
from transports.base import Transport
from transports.copying import Kernel as CopyKernel
from transports.copying import array_kernel
from transports.onesided import Window

NO_DATA: Final = np.empty(0, np.uint8)
_TOGETHER: Final = 32
"""Programs of up to this many instructions are one function. Compiling takes 20 us per instruction, once for all
programs with the same steps. Longer programs differ more from each other, and their steps take longer than a call."""


class BoundPlan(NamedTuple):
    """A plan bound for one staging slot: functions to be called one after the other. `templates` are kept with the
    first slot; the functions of the other slots are made from them."""

    functions: tuple[StepFunction, ...]
    templates: tuple[StepTemplate, ...] = ()


class Binder:
    """Binds plans to a communicator's transport, window and memory."""

    def __init__(
        self, transport: Transport, ranks: tuple[int, ...], tag: int, windows: Windows, code: MachineCode | None
    ) -> None:
        """`code` has kernels that are faster than those of `arrays`; None: there are none."""
        self.window: Window | None = None
        """The staging window, if there is one: two halves."""
        self.ranks = ranks
        self.tag = tag
        self.transport = transport
        self.counter = StepCounter()
        self._windows = windows
        self._code = code

    def kernel(self, op: str | Op, dtype: np.dtype[Any]) -> Kernel:
        """The kernel of an op."""
        name = compiled_kernel(op, dtype)
        compiled = self._compiled(name, dtype) if name else None
        return kernel_for(op, dtype) if compiled is None else compiled

    def averaging_kernel(self, dtype: np.dtype[Any], averaging: Averaging) -> Kernel:
        """The kernel of a combination within an average."""
        found = compiled_averaging(dtype, averaging) if is_small_float(dtype) else None
        compiled = None if found is None else self._compiled(found.name, dtype)
        return averaging_kernel(dtype, averaging) if compiled is None else compiled

    def _compiled(self, name: str, dtype: np.dtype[Any]) -> Kernel | None:
        return None if self._code is None else combining(self._code, name, dtype.itemsize)

    def bind(self, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> BoundPlan:
        """A plan bound for its first staging slot.

        scratch  flat, of the plan's dtype
        sizes    elements of the flat arrays that the plan is run with, source and target
        """
        steps = plan.program.instructions
        text = _Text(self, plan, scratch, sizes)
        width = len(steps) if len(steps) <= _TOGETHER else 1
        templates = [text.template(first, steps[first : first + width]) for first in range(0, len(steps), width or 1)]
        return BoundPlan(tuple(template.function() for template in templates), tuple(templates))

    def single_steps(self, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> list[StepFunction]:
        """A function for each step of a plan that stages nothing; the arguments are those of `bind`."""
        text = _Text(self, plan, scratch, sizes)
        return [text.template(at, [step]).function() for at, step in enumerate(plan.program.instructions)]

    def moved(self, first: BoundPlan, plan: Plan, slot: int) -> BoundPlan:
        """A plan that is bound for the first staging slot, for another one."""
        pairs = zip(first.templates, first.functions, strict=True)
        return BoundPlan(
            tuple(
                template.moved(lambda span: self.staged(span, plan, slot)) if template.staged else function
                for template, function in pairs
            )
        )

    def staged(self, span: Span, plan: Plan, slot: int) -> Array:
        """The memory of a span in the staging window."""
        assert self.window is not None
        index = self.window.index if span.rank < 0 else span.rank
        part = np.frombuffer(self.window.view(index), np.uint8)
        offset = slot % 2 * (self.window.nbytes // 2) + slot // 2 * plan.slot_stride
        dtype = plan.call.dtype
        view: Array = part[offset + span.start * dtype.itemsize : offset + span.stop * dtype.itemsize].view(dtype)
        return view

    def peers(self, span: Span, offsets: WindowOffsets | None, dtype: np.dtype[Any]) -> Array:
        """The memory of a span of a peer's IN or OUT, which lies in a window."""
        place = _window_offset(span, offsets)
        assert place is not None
        size = dtype.itemsize
        view: Array = self._windows.part(place, span.rank, span.start * size, span.stop * size).view(dtype)
        return view


class _Text:
    """Writes the instructions of one plan."""

    def __init__(self, binder: Binder, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> None:
        self._binder = binder
        self._plan = plan
        self._dtype = plan.call.dtype
        self._offsets = plan.call.windows
        self._scratch = scratch
        self._sizes = sizes
        self._combine = None if plan.call.op is None else binder.kernel(plan.call.op, plan.call.dtype)
        self._arrays: dict[Span | None, Array] = {None: NO_DATA}
        self._copied: tuple[Span | None, Span | None] = None, None
        """The span staged last, and its place in the stage; until another step may have changed either."""
        self._writer = StepWriter()

    def template(self, first: int, steps: Sequence[Instruction]) -> StepTemplate:
        """The function of several steps; `first` is the number of the first step."""
        self._writer = StepWriter()
        exchanges = _exchanges(steps)
        joined = {id(step) for begun in exchanges.values() for step in begun}
        for at, step in enumerate(steps):
            if at in exchanges:
                statements = [self._exchange(*exchanges[at])]
            else:
                statements = ["pass"] if id(step) in joined else self._statements(step)
            if self._can_block(step) and statements != ["pass"]:
                number = f"{self._writer.name(self._binder.counter)}.step = {self._writer.name(first + at)}"
                statements.insert(0, number)
            self._writer.step(*statements)
            if step.kind is Kind.COPY and step.dst is not None and step.dst.buf is Buf.STAGE and step.dst.rank < 0:
                self._copied = step.a, step.dst
            elif step.kind not in (Kind.SIGNAL, Kind.WAIT):
                self._copied = None, None
        return self._writer.template()

    def _can_block(self, step: Instruction) -> bool:
        """True for a step that may wait for a peer, or fail because of one."""
        reads = step.kind is Kind.COPY and self._plan.algorithm.single_copy and step.reads_peer
        return reads or step.kind in (Kind.SEND, Kind.RECV, Kind.AWAIT, Kind.WAIT)

    def _statements(self, step: Instruction) -> list[str]:
        name, binder = self._writer.name, self._binder
        match step.kind:
            case Kind.COPY if self._plan.algorithm.single_copy and step.reads_peer:
                return [self._read(step)]
            case Kind.COPY:
                target, a = self._array(step.dst), self._array(step.a)
                kernel = copy_kernel(self._plan, step)
                return [f"{target}[...] = {a}" if kernel is None else f"{name(kernel)}({target}, {a})"]
            case Kind.REDUCE:
                return self._reduce(step)
            case Kind.SEND | Kind.RECV:
                sends = step.kind is Kind.SEND
                begin = name(binder.transport.isend if sends else binder.transport.irecv)
                data = self._bytes(step.a if sends else step.dst)
                peer, tag = name(binder.ranks[step.peer]), name(binder.tag)
                return [f"requests[{name(step.request)}] = {begin}({peer}, {tag}, {data}, check)"]
            case Kind.AWAIT:
                return [f"requests[{name(step.request)}].wait(deadline)"]
        window = binder.window
        assert window is not None
        epoch = f"epoch + {name(step.phase)}"
        if step.kind is Kind.SIGNAL:
            return [f"{name(window.publish)}({epoch}, check)"]
        checked = ", check" if step.phase == 1 else ""
        return [f"{name(window.wait)}({name(step.peer)}, {epoch}, deadline{checked})"]

    def _exchange(self, receive: Instruction, send: Instruction | None = None) -> str:
        """A receive that is awaited at once, and the send before it if there is one, as one call of the transport."""
        name, binder = self._writer.name, self._binder
        source, tag, view = name(binder.ranks[receive.peer]), name(binder.tag), self._bytes(receive.dst)
        if send is None:
            return f"{name(binder.transport.recv)}({source}, {tag}, {view}, deadline, check)"
        dest, data = name(binder.ranks[send.peer]), self._bytes(send.a)
        call = f"{name(binder.transport.sendrecv)}({dest}, {source}, {tag}, {data}, {view}, deadline, check)"
        return f"requests[{name(send.request)}] = {call}"

    def _reduce(self, step: Instruction) -> list[str]:
        name = self._writer.name
        combine, target = self._combine, self._array(step.dst)
        if self._plan.averages:
            combine = self._binder.averaging_kernel(self._dtype, self._plan.averaging(step.phase))
        assert combine is not None
        if _may_be_one_in_place(step):  # the staged copy of an operand is other memory than the result
            known, staged = self._copied
            step = step._replace(a=staged if step.a == known else step.a, b=staged if step.b == known else step.b)
        kernel: Kernel = one_element(combine, self._dtype) if _may_be_one_in_place(step) else combine
        return [f"{name(kernel)}({self._array(step.a)}, {self._array(step.b)}, {target})"]

    def _read(self, step: Instruction) -> str:
        """A copy from memory that a peer exposes."""
        name, window, span = self._writer.name, self._binder.window, step.a
        assert window is not None
        assert span is not None
        piece, offset = name(int(span.buf is Buf.OUT)), name(span.start * self._dtype.itemsize)
        return f"{name(window.read)}({name(span.rank)}, {piece}, {offset}, {self._array(step.dst)})"

    def _bytes(self, span: Span | None) -> str:
        """The bytes of the array for `span`."""
        if span is None or span.buf is Buf.SCRATCH:
            return self._writer.name(as_bytes(self._memory(span)))
        if span.stop > span.start and casts(self._dtype):
            return f"{self._array(span)}.data.cast('B')"
        return f"{self._writer.name(as_bytes)}({self._array(span)})"

    def _array(self, span: Span | None) -> str:
        """The array for `span`; None is an empty one."""
        if span is not None and span.rank < 0 and span.buf in (Buf.IN, Buf.OUT):
            whole, size = ("source", "target")[span.buf is Buf.OUT], self._sizes[span.buf is Buf.OUT]
            return whole if span.stop - span.start == size else self._writer.piece(whole, span.start, span.stop)
        return self._writer.name(self._memory(span), span if span is not None and span.buf is Buf.STAGE else None)

    def _memory(self, span: Span | None) -> Array:
        """The memory of a span that is not the caller's, made once."""
        array = self._arrays.get(span)
        if array is None:
            assert span is not None
            array = self._arrays[span] = self._made(span)
        return array

    def _made(self, span: Span) -> Array:
        if span.buf is Buf.STAGE:
            return self._binder.staged(span, self._plan, 0)
        if span.buf is Buf.SCRATCH:
            return self._scratch[span.start : span.stop]
        return self._binder.peers(span, self._offsets, self._dtype)


def copy_kernel(plan: Plan, step: Instruction) -> CopyKernel | None:
    """The kernel for a COPY from or to memory that other ranks map; None for plain assignment."""
    a, dst = step.a, step.dst
    assert a is not None
    assert dst is not None
    if not (_shared(dst, plan) or _shared(a, plan)):
        return None
    nbytes = (dst.stop - dst.start) * plan.call.dtype.itemsize
    return array_kernel(nbytes, plan.nbytes, a.rank >= 0)


def _shared(span: Span, plan: Plan) -> bool:
    """True for memory that other ranks map."""
    return span.buf is Buf.STAGE or (
        span.buf is not Buf.SCRATCH and _window_offset(span, plan.call.windows) is not None
    )


def _window_offset(span: Span, offsets: WindowOffsets | None) -> WindowOffset | None:
    """The place in a window of the IN or OUT that `span` belongs to; None if that is not in a window."""
    return None if offsets is None else offsets[span.buf is Buf.OUT]


def _may_be_one_in_place(step: Instruction) -> bool:
    """True if a REDUCE may overwrite one of its operands, of one element."""
    dst = step.dst
    assert dst is not None
    if dst.stop - dst.start != 1:
        return False
    operands = [operand for operand in (step.a, step.b) if operand is not None]
    same = any(operand.buf is dst.buf and operand.rank == dst.rank for operand in operands)
    return same or any({operand.buf, dst.buf} == {Buf.IN, Buf.OUT} for operand in operands)


def _exchanges(steps: Sequence[Instruction]) -> dict[int, Sequence[Instruction]]:
    """Receives that are awaited at once: position of the AWAIT -> the RECV, and the SEND between them if any."""
    found = {}
    for at, step in enumerate(steps):
        if step.kind is Kind.RECV:
            end = at + 2 if steps[at + 1 : at + 2] and steps[at + 1].kind is Kind.SEND else at + 1
            if end < len(steps) and steps[end].kind is Kind.AWAIT and steps[end].request == step.request:
                found[end] = steps[at:end]
    return found
