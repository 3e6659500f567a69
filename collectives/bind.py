"""Program -> functions: the text of each instruction, and the memory that it works on.

What never changes (the stage, scratch, peers, tags, kernels) is bound once for a plan and every later run of it. The
caller's arrays and what else changes from run to run are the arguments of the functions; see parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.buffers import Array, as_bytes, casts
from collectives.parts import Draft, Part, Writer
from collectives.plan import Plan
from collectives.program import Instruction, Kind, Span, is_peers
from collectives.reductions import Kernel, divide, one_element
from collectives.reductions import kernel as kernel_for
from collectives.schedule import Buf
from collectives.windows import Place, Places, Windows
from transports.base import Transport
from transports.copying import Choice, Copying, store_array
from transports.onesided import Window

NO_DATA: Final = np.empty(0, np.uint8)
_TOGETHER: Final = 32
"""Programs of no more instructions are one function. To compile it takes 20 us for each, once for all programs of the
same steps; larger ones differ more from each other, and their steps take longer than to call them."""


class Bound(NamedTuple):
    """A plan's instructions for one turn: functions to be called one after the other. `drafts` are what those of the
    first turn are made of, and so the others."""

    parts: tuple[Part, ...]
    drafts: tuple[Draft, ...] = ()


class Binder:
    """Binds plans to a communicator's transport, window and memory."""

    def __init__(self, transport: Transport, ranks: tuple[int, ...], tag: int, windows: Windows) -> None:
        self.window: Window | None = None
        """The staging window, once there is one: two halves."""
        self.ranks = ranks
        self.tag = tag
        self.transport = transport
        self.copying = Copying(store_array)
        self._windows = windows

    def bind(self, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> Bound:
        """A plan bound for its first turn.

        scratch  flat, of the plan's dtype
        sizes    of the flat arrays that it is run with, source and target
        """
        steps = plan.program.instructions
        text = _Text(self, plan, scratch, sizes)
        together = 0 < len(steps) <= _TOGETHER
        drafts = [text.draft(group) for group in ([steps] if together else [[step] for step in steps])]
        return Bound(tuple(draft.part() for draft in drafts), tuple(drafts))

    def moved(self, first: Bound, plan: Plan, turn: int) -> Bound:
        """What has been bound for the first turn, for another one."""
        drafts = zip(first.drafts, first.parts, strict=True)
        return Bound(
            tuple(
                draft.moved(lambda span: self.staged(span, plan, turn)) if draft.staged else part
                for draft, part in drafts
            )
        )

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


class _Text:
    """Writes the instructions of one plan."""

    def __init__(self, binder: Binder, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> None:
        self._binder = binder
        self._plan = plan
        self._dtype = plan.call.dtype
        self._places = plan.call.windows
        self._scratch = scratch
        self._sizes = sizes
        self._combine = None if plan.call.op is None else kernel_for(plan.call.op, plan.call.dtype)
        self._arrays: dict[Span | None, Array] = {None: NO_DATA}
        self._copied: tuple[Span | None, Span | None] = None, None
        """What was staged last, and where it is then; until anything else may have changed."""
        self._writer = Writer()

    def draft(self, steps: Sequence[Instruction]) -> Draft:
        """Some instructions as one part."""
        self._writer = Writer()
        exchanges = _exchanges(steps)
        joined = {id(step) for begun in exchanges.values() for step in begun}
        for at, step in enumerate(steps):
            if at in exchanges:
                self._writer.step(self._exchange(*exchanges[at]))
            else:
                self._writer.step(*(["pass"] if id(step) in joined else self._statements(step)))
            if step.kind is Kind.COPY and step.dst is not None and step.dst.buf is Buf.STAGE and step.dst.rank < 0:
                self._copied = step.a, step.dst
            elif step.kind not in (Kind.SIGNAL, Kind.WAIT):
                self._copied = None, None
        return self._writer.draft()

    def _statements(self, step: Instruction) -> list[str]:
        name, binder = self._writer.name, self._binder
        match step.kind:
            case Kind.COPY if self._plan.algorithm.lends and is_peers(step.a):
                return [self._read(step)]
            case Kind.COPY:
                target, a = self._array(step.dst), self._array(step.a)
                choice = self._choice(step)
                return [f"{target}[...] = {a}" if choice is None else f"{name(choice)}.copy({target}, {a})"]
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
        """A receive that is awaited here, and what is sent before it, by one call of the transport."""
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
        assert combine is not None
        if _may_be_one_in_place(step):  # it is not, if what was staged is taken from there
            known, staged = self._copied
            step = step._replace(a=staged if step.a == known else step.a, b=staged if step.b == known else step.b)
        kernel: Kernel = one_element(combine, self._dtype) if _may_be_one_in_place(step) else combine
        statements = [f"{name(kernel)}({self._array(step.a)}, {self._array(step.b)}, {target})"]
        if self._plan.averages and step.phase:
            statements.append(f"{name(divide)}({target}, {name(len(self._binder.ranks))}, {target})")
        return statements

    def _read(self, step: Instruction) -> str:
        """A copy from what a peer lends."""
        name, window, span = self._writer.name, self._binder.window, step.a
        assert window is not None
        assert span is not None
        piece, offset = name(int(span.buf is Buf.OUT)), name(span.start * self._dtype.itemsize)
        return f"{name(window.read)}({name(span.rank)}, {piece}, {offset}, {self._array(step.dst)})"

    def _choice(self, step: Instruction) -> Choice | None:
        """What to copy by, to and from memory that other ranks map; None if there is no choice."""
        a, dst = step.a, step.dst
        assert a is not None
        assert dst is not None
        if not (self._shared(dst) or self._shared(a)):
            return None
        nbytes = (dst.stop - dst.start) * self._dtype.itemsize
        return self._binder.copying.choice(nbytes, self._plan.nbytes, a.rank >= 0)

    def _shared(self, span: Span) -> bool:
        """True for memory that other ranks map."""
        return span.buf is Buf.STAGE or (span.buf is not Buf.SCRATCH and _place(span, self._places) is not None)

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
        """The array for `span` that is not the caller's, made once."""
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
        return self._binder.peers(span, self._places, self._dtype)


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


def _exchanges(steps: Sequence[Instruction]) -> dict[int, Sequence[Instruction]]:
    """Where a RECV is awaited next, or next after one SEND: position of the AWAIT -> RECV, and SEND if there is one."""
    found = {}
    for at, step in enumerate(steps):
        if step.kind is Kind.RECV:
            end = at + 2 if steps[at + 1 : at + 2] and steps[at + 1].kind is Kind.SEND else at + 1
            if end < len(steps) and steps[end].kind is Kind.AWAIT and steps[end].request == step.request:
                found[end] = steps[at:end]
    return found
