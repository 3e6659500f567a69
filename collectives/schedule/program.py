"""Lowering of a schedule to a Program: chunks become element offsets, and waits for pending requests become explicit.

A Program depends on sizes but on no array and no transport, so it serves all calls of its shape. The prover and the
simulator work on Programs, the same data that the runtime executes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from collectives.schedule.contracts import Spec
from collectives.schedule.steps import Buf, Geometry, Opcode, Ref, Step


class Kind(IntEnum):
    """The kind of an instruction: the opcodes of steps. Lowering adds an AWAIT for each request."""

    SEND = Opcode.SEND
    RECV = Opcode.RECV
    COPY = Opcode.COPY
    REDUCE = Opcode.REDUCE
    SIGNAL = Opcode.SIGNAL
    WAIT = Opcode.WAIT
    AWAIT = Opcode.AWAIT
    NATIVE = Opcode.NATIVE


class Span(NamedTuple):
    """Elements start..stop of a buffer; `rank` >= 0 for the buffer of a peer."""

    buf: Buf
    start: int
    stop: int
    rank: int = -1


class Instruction(NamedTuple):
    """A step with offsets. SEND and RECV begin request number `request`; AWAIT completes it."""

    kind: Kind
    label: str
    peer: int = -1
    a: Span | None = None
    b: Span | None = None
    dst: Span | None = None
    phase: int = 0
    request: int = -1

    @property
    def reads_peer(self) -> bool:
        """True if the operand a is in a peer's IN or OUT."""
        return self.a is not None and self.a.rank >= 0 and self.a.buf is not Buf.STAGE


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of one rank. `scratch` and `stage` (in one half of the staging window) are sizes in elements."""

    instructions: tuple[Instruction, ...]
    requests: int
    phases: int
    scratch: int
    stage: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of chunks in the buffers of one rank.

    sizes    elements of every chunk; -1 if this rank neither knows nor needs the size
    largest  elements of the largest chunk on any rank: the size of a slot
    inputs   chunk -> offset in IN
    outputs  chunk -> offset in OUT
    alias    element offset of IN inside OUT; None if they are separate memory
    held     rank -> its `inputs` and `outputs`, for accesses to buffers of peers
    alike    `alias` is the same on all ranks; otherwise IN and OUT of peers are treated as separate memory
    """

    sizes: tuple[int, ...]
    largest: int
    inputs: dict[int, int]
    outputs: dict[int, int]
    alias: int | None
    held: Callable[[int], tuple[dict[int, int], dict[int, int]]]
    alike: bool = True


_KINDS: Final = tuple(Kind)
_SEND, _RECV, _COPY, _REDUCE, _SIGNAL, _WAIT, _AWAIT, _NATIVE = Kind
_IN, _OUT, _SCRATCH, _STAGE = Buf
_new = tuple.__new__  # faster than calling a named tuple; see steps.py

_ALL_OF_STAGE: Final = Span(Buf.STAGE, 0, 1 << 62)
_Pending: TypeAlias = tuple[int, int, int, Instruction]
"""First element, request, end, and the AWAIT instruction."""


def split_evenly(count: int, parts: int) -> list[int]:
    """Split `count` into `parts` sizes that differ by at most one, larger ones first."""
    base, extra = divmod(count, parts)
    return [base + 1] * extra + [base] * (parts - extra)


def lay_out(
    spec: Spec,
    geometry: Geometry,
    blocks: Sequence[int],
    *,
    alias: int | None = None,
    largest: int | None = None,
    alike: bool = True,
) -> Layout:
    """Return the layout for blocks of the given sizes, each cut into `geometry.segments` chunks.

    blocks    elements of every block; -1 for unknown
    largest   elements of the largest block on any rank; by default the largest of `blocks`
    """
    segments = geometry.segments
    sizes = list(blocks) if segments == 1 else []
    for count in blocks if segments > 1 else ():
        sizes += split_evenly(count, segments) if count >= 0 else [-1] * segments
    top = max(blocks, default=0) if largest is None else largest

    tables: dict[range | None, dict[int, int]] = {}  # many ranks hold the same blocks

    def offsets(held: range | None) -> dict[int, int]:
        table = tables.get(held)
        if table is None:
            table, at = tables.setdefault(held, {}), 0
            for block in held or ():
                for chunk in range(block * segments, (block + 1) * segments):
                    table[chunk] = at
                    at += sizes[chunk]
        return table

    @cache
    def held(rank: int) -> tuple[dict[int, int], dict[int, int]]:
        where = rank, geometry.size, geometry.root, len(blocks)
        return offsets(spec.inputs(*where)), offsets(spec.outputs(*where))

    return Layout(tuple(sizes), -(-max(top, 0) // segments), *held(geometry.rank), alias, held, alike)


class _Requests(list[_Pending]):
    """The pending requests of a buffer, by their first element: a rank of many has thousands of them."""

    widest = 0

    def begin(self, request: int, start: int, stop: int, await_: Instruction) -> None:
        if stop - start > self.widest:
            self.widest = stop - start
        insort(self, (start, request, stop, await_))

    def take(self, start: int, stop: int) -> list[_Pending]:
        """Remove the requests that overlap start..stop, and return them in their order of beginning."""
        low = bisect_left(self, (start - self.widest,))
        high = bisect_left(self, (stop,), low)
        found = [entry for entry in self[low:high] if start < entry[2]] if low < high else []
        if found:
            self[low:high] = [entry for entry in self[low:high] if start >= entry[2]]
            found.sort(key=_number)
        return found


def _number(entry: _Pending) -> int:
    return entry[1]


class _Lowering:
    """Turns steps into instructions, and tracks the memory of pending requests.

    receiving, sending   the pending requests of each own buffer
    elsewhere            pending requests without own memory: empty messages, and SENDs from the STAGE of a peer
    """

    def __init__(self, layout: Layout) -> None:
        self.sizes = layout.sizes
        self.largest = layout.largest
        self.inputs = layout.inputs
        self.outputs = layout.outputs
        self.alias = layout.alias
        self.alike = layout.alike
        self.held = layout.held
        self.instructions: list[Instruction] = []
        self.receiving = [_Requests(), _Requests(), _Requests(), _Requests()]
        self.sending = [_Requests(), _Requests(), _Requests(), _Requests()]
        self.elsewhere = _Requests()
        self.requests = 0
        self.phases = 0
        self.scratch = 0
        self.stage = 0

    def length(self, first: int, width: int) -> int:
        """Return the number of elements of consecutive chunks."""
        if width == 1 and 0 <= first < len(self.sizes) and self.sizes[first] >= 0:  # the usual case
            return self.sizes[first]
        sizes = self.sizes[first : first + width]
        if len(sizes) != width or (width and min(sizes) < 0):
            raise ValueError(f"chunks {first}:{first + width}: this rank does not know how large they are")
        return sum(sizes)

    def span(self, ref: Ref) -> Span:
        buf, chunk, width, slot, rank, base = ref
        length = self.length(chunk, width)
        if slot >= 0:
            start = slot * self.largest
            top = start + width * self.largest
            if base >= 0:
                start += self.length(base, chunk - base)
            if buf is _STAGE:
                self.stage = max(self.stage, top)
            elif top > self.scratch:
                self.scratch = top
            return _new(Span, (buf, start, start + length, rank))
        inputs, outputs = (self.inputs, self.outputs) if rank < 0 else self.held(rank)
        if buf is _IN and rank >= 0 and self.alias is not None and self.alike:
            buf = _OUT  # in place, a chunk has the same offset in IN and in OUT
        table = inputs if buf is _IN else outputs
        last = chunk + width - 1
        if chunk not in table or last not in table:
            raise ValueError(f"{ref}: {buf.name} of {'this rank' if rank < 0 else f'rank {rank}'} does not hold it")
        start = table[chunk]
        if width > 1 and table[last] + self.sizes[last] != start + length:
            raise ValueError(f"{ref}: these chunks are not adjacent in {buf.name}")
        if buf is _IN and self.alias is not None and rank < 0:
            buf, start = _OUT, start + self.alias
        return _new(Span, (buf, start, start + length, rank))

    def settle(self, pending: _Requests, span: Span) -> None:
        """Complete the pending requests of a buffer that overlap a span."""
        _, start, stop, rank = span
        if rank < 0:
            self.instructions += [entry[3] for entry in pending.take(start, stop)]

    def begin(self, table: list[_Requests], step: Step, span: Span | None) -> int:
        """Number a request and record its memory."""
        request = self.requests
        self.requests += 1
        await_ = _new(Instruction, (_AWAIT, step[1], step[2], None, None, None, 0, request))
        if span is None or span[3] >= 0:
            self.elsewhere.begin(request, 0, 0, await_)
        else:
            buf, start, stop, _ = span
            table[buf].begin(request, start, stop, await_)
        return request

    def add(self, step: Step) -> None:
        opcode, label, peer, ref_a, ref_b, ref_dst, phase = step
        if opcode is Opcode.WAIT:
            self.instructions.append(_new(Instruction, (_WAIT, label, peer, None, None, None, phase, -1)))
            return
        a = None if ref_a is None else self.span(ref_a)
        b = None if ref_b is None else self.span(ref_b)
        dst = None if ref_dst is None else self.span(ref_dst)
        request = -1
        main = a if dst is None else dst
        if main is not None and main[1] == main[2]:
            return  # both ends know that this piece is empty
        kind = _KINDS[opcode]
        if kind is _AWAIT:
            self.drain()
            return
        if kind is _COPY or kind is _REDUCE:
            if dst is None or a is None or (b is None) is (kind is _REDUCE):
                raise ValueError(f"{step}: operands are missing")
            length = dst.stop - dst.start
            if a.stop - a.start != length or (b is not None and b.stop - b.start != length):
                raise ValueError(f"{step}: operands differ in size")
            if a == dst and b is None:
                return
        elif kind is _SIGNAL:
            if self.receiving[_STAGE]:
                self.settle(self.receiving[_STAGE], _ALL_OF_STAGE)
            self.phases = max(self.phases, phase)
        receiving = self.receiving
        if a is not None and receiving[a[0]]:
            self.settle(receiving[a[0]], a)
        if b is not None and receiving[b[0]]:
            self.settle(receiving[b[0]], b)
        if dst is not None:
            if receiving[dst[0]]:
                self.settle(receiving[dst[0]], dst)
            if self.sending[dst[0]]:
                self.settle(self.sending[dst[0]], dst)
        if kind is _SEND:
            request = self.begin(self.sending, step, a)
        elif kind is _RECV:
            request = self.begin(self.receiving, step, dst)
        self.instructions.append(_new(Instruction, (kind, label, peer, a, b, dst, phase, request)))

    def drain(self) -> None:
        """Complete all pending requests."""
        tables = (*self.receiving, *self.sending, self.elsewhere)
        self.instructions += [
            entry[3] for entry in sorted((entry for pending in tables for entry in pending), key=_number)
        ]
        for pending in tables:
            pending.clear()

    def finish(self) -> Program:
        if self.requests:
            self.drain()
        return Program(tuple(self.instructions), self.requests, self.phases, self.scratch, self.stage)


def lower(steps: Iterable[Step], layout: Layout) -> Program:
    """Return the program of one rank. Raises ValueError for a step that names memory outside the rank's buffers."""
    lowering = _Lowering(layout)
    for step in steps:
        lowering.add(step)
    return lowering.finish()
