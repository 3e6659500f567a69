"""Schedule -> Program: symbolic chunks become element offsets, and the waits between steps become explicit.

A Program depends on sizes but on no array and no transport, so one serves every call of its shape. The prover and
the simulator work on Programs, that is on exactly what is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from collectives.schedule import Buf, Geometry, Opcode, Ref, Step
from collectives.specs import Spec


class Kind(IntEnum):
    """What an instruction does: the opcodes of a schedule; lowering adds AWAITs, one for each request."""

    SEND = Opcode.SEND
    RECV = Opcode.RECV
    COPY = Opcode.COPY
    REDUCE = Opcode.REDUCE
    SIGNAL = Opcode.SIGNAL
    WAIT = Opcode.WAIT
    AWAIT = Opcode.AWAIT


class Span(NamedTuple):
    """Elements start..stop of a buffer; `rank` >= 0 names a peer's STAGE."""

    buf: Buf
    start: int
    stop: int
    rank: int = -1

    def overlaps(self, other: Span) -> bool:
        return self.buf == other.buf and self.rank == other.rank and self.start < other.stop and other.start < self.stop


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


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does, in order. Sizes in elements; `stage` is one rank's part of one half of the window."""

    instructions: tuple[Instruction, ...]
    requests: int
    phases: int
    scratch: int
    stage: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where chunks stand.

    sizes    elements of every chunk; -1 where this rank neither knows nor needs it
    largest  elements of the largest chunk on any rank: the size of a slot
    inputs   chunk -> offset in IN, outputs likewise in OUT
    alias    where IN lies inside OUT (element offset), None when they are separate memory
    """

    sizes: tuple[int, ...]
    largest: int
    inputs: dict[int, int]
    outputs: dict[int, int]
    alias: int | None = None


def split_evenly(count: int, parts: int) -> list[int]:
    """`count` as `parts` sizes that differ by at most one, larger ones first."""
    base, extra = divmod(count, parts)
    return [base + 1] * extra + [base] * (parts - extra)


def lay_out(
    spec: Spec, geometry: Geometry, blocks: Sequence[int], *, alias: int | None = None, largest: int | None = None
) -> Layout:
    """The layout for blocks of the given sizes (elements, -1 for unknown), each cut into `geometry.segments` chunks.

    `largest` is the largest block on any rank; by default the largest known here.
    """
    segments = geometry.segments
    sizes: list[int] = []
    for count in blocks:
        sizes += split_evenly(count, segments) if count >= 0 else [-1] * segments
    top = max(blocks, default=0) if largest is None else largest

    def offsets(held: range | None) -> dict[int, int]:
        table, at = {}, 0
        for block in held or ():
            for chunk in range(block * segments, (block + 1) * segments):
                table[chunk] = at
                at += sizes[chunk]
        return table

    where = geometry.rank, geometry.size, geometry.root, len(blocks)
    return Layout(
        tuple(sizes), -(-max(top, 0) // segments), offsets(spec.inputs(*where)), offsets(spec.outputs(*where)), alias
    )


class _Lowering:
    """Turns steps into instructions, remembering which memory pending requests still use."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.instructions: list[Instruction] = []
        self.pending: list[tuple[int, bool, Span | None, int, str]] = []
        self.requests = 0
        self.phases = 0
        self.scratch = 0
        self.stage = 0

    def span(self, ref: Ref) -> Span:
        sizes = self.layout.sizes[ref.chunk : ref.chunk + ref.width]
        if min(sizes, default=-1) < 0 or len(sizes) != ref.width:
            raise ValueError(f"{ref}: names chunks that this rank does not know")
        length = sum(sizes)
        if ref.buf in (Buf.SCRATCH, Buf.STAGE):
            before = self.layout.sizes[ref.base : ref.chunk] if ref.base >= 0 else ()
            if min(before, default=0) < 0:
                raise ValueError(f"{ref}: stands behind chunks that this rank does not know")
            start = ref.slot * self.layout.largest + sum(before)
            if ref.buf is Buf.SCRATCH:
                self.scratch = max(self.scratch, start + ref.width * self.layout.largest)
            else:
                self.stage = max(self.stage, start + ref.width * self.layout.largest)
            return Span(ref.buf, start, start + length, ref.rank)
        table = self.layout.inputs if ref.buf is Buf.IN else self.layout.outputs
        try:
            start = table[ref.chunk]
            last = ref.chunk + ref.width - 1
            stop = table[last] + self.layout.sizes[last]
        except KeyError:
            raise ValueError(f"{ref}: {ref.buf.name} of this rank does not hold it") from None
        if stop - start != length:
            raise ValueError(f"{ref}: these chunks are not adjacent in {ref.buf.name}")
        if ref.buf is Buf.IN and self.layout.alias is not None:
            return Span(Buf.OUT, start + self.layout.alias, stop + self.layout.alias)
        return Span(ref.buf, start, stop)

    def settle(self, reads: Iterable[Span], writes: Iterable[Span]) -> None:
        """Complete the pending requests that use memory which is now read or written."""
        reads, writes = tuple(reads), tuple(writes)
        still = []
        for entry in self.pending:
            request, receives, used, peer, began = entry
            if used is not None and (
                any(used.overlaps(span) for span in writes) or (receives and any(used.overlaps(span) for span in reads))
            ):
                self.instructions.append(Instruction(Kind.AWAIT, began, peer=peer, request=request))
            else:
                still.append(entry)
        self.pending = still

    def begin(self, kind: Kind, step: Step, span: Span | None) -> None:
        receives = kind is Kind.RECV
        if span is not None:
            self.settle(() if receives else (span,), (span,) if receives else ())
        request = self.requests
        self.requests += 1
        a, dst = (None, span) if receives else (span, None)
        self.instructions.append(Instruction(kind, step.label, peer=step.peer, a=a, dst=dst, request=request))
        self.pending.append((request, receives, span, step.peer, step.label))

    def add(self, step: Step) -> None:
        a, b, dst = (None if ref is None else self.span(ref) for ref in (step.a, step.b, step.dst))
        main = dst if dst is not None else a
        if main is not None and main.start == main.stop:
            return  # both ends know that this piece is empty
        match step.opcode:
            case Opcode.SEND:
                self.begin(Kind.SEND, step, a)
            case Opcode.RECV:
                self.begin(Kind.RECV, step, dst)
            case Opcode.COPY | Opcode.REDUCE:
                if dst is None or a is None or (step.opcode is Opcode.REDUCE) != (b is not None):
                    raise ValueError(f"{step}: operands are missing")
                reads = (a,) if b is None else (a, b)
                if any(span.stop - span.start != dst.stop - dst.start for span in reads):
                    raise ValueError(f"{step}: operands differ in size")
                if a == dst and b is None:
                    return
                self.settle(reads, (dst,))
                self.instructions.append(Instruction(Kind(step.opcode), step.label, a=a, b=b, dst=dst))
            case Opcode.SIGNAL:
                self.settle((Span(Buf.STAGE, 0, 1 << 62),), ())
                self.phases = max(self.phases, step.phase)
                self.instructions.append(Instruction(Kind.SIGNAL, step.label, phase=step.phase))
            case Opcode.WAIT:
                self.instructions.append(Instruction(Kind.WAIT, step.label, peer=step.peer, phase=step.phase))
            case Opcode.AWAIT:
                self.drain()

    def drain(self) -> None:
        """Complete all pending requests."""
        for request, _, _, peer, label in self.pending:
            self.instructions.append(Instruction(Kind.AWAIT, label, peer=peer, request=request))
        self.pending = []

    def finish(self) -> Program:
        self.drain()
        return Program(tuple(self.instructions), self.requests, self.phases, self.scratch, self.stage)


def lower(steps: Iterable[Step], layout: Layout) -> Program:
    """The program of one rank. Raises ValueError for a step that names memory this rank does not have."""
    lowering = _Lowering(layout)
    for step in steps:
        lowering.add(step)
    return lowering.finish()
