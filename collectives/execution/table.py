"""Program -> table: the rows that the compiled interpreter runs, and the steps that it leaves to Python.

    COPY    [COPY, bytes, result, a]           addresses in the stage and in windows are known; those in the caller's
    REDUCE  [REDUCE, elements, result, a, b]   arrays are offsets, and those in the stage move with the slot
    SIGNAL  [SIGNAL, phase]
    WAIT    [WAIT, phase, control words of the peer]
    COPY    [READ, bytes, result, a, words of the peer]   of an array that a peer exposes
    SEND    [SEND, bytes, a, lanes of the peer]        messages: message_table.py
    AWAIT   [TAKE, bytes, result, lanes of the peer]   of a RECV, whose own row does nothing

One table serves all calls of a plan and all staging slots. A program with large messages, with messages and signals, or
with a kernel that is not one C function has no table: its rows are functions of Python (rows.py). Where the
interpreter leaves a row, Python does it, and the interpreter goes on behind it (`Table.rest`). A table with reads of
exposed arrays is for arrays that peers can read where they lie; of others, Python exposes copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.arrays import (
    Array,
    Loop,
    Op,
    compiled_averaging,
    compiled_kernel,
    compiled_scaling,
    inner_loop,
    kernel_loop,
    scaling_loop,
)
from collectives.execution.binder import Binder, copy_kernel
from collectives.flight import CALLS
from collectives.jit import (
    ABSOLUTE,
    LOAD,
    REFERRED,
    SOURCE,
    SOURCE_IS_READ,
    STAGED_SLOT,
    TARGET,
    TARGET_IS_READ,
    CFunction,
    Operand,
    RunTable,
    Scale,
    State,
    TableWriter,
    bind,
    note_time,
    scaled,
)
from collectives.planning import Plan
from collectives.schedule import SPECS, Buf, Instruction, Kind, Span
from transports.base import Request
from transports.onesided import Controls, address

RELEASING_BYTES: Final = 1 << 15
"""A table that moves more bytes lets other threads run Python meanwhile. To let go of the interpreter's lock and take
it again takes a tenth of a microsecond, but milliseconds where another thread takes it."""
_OCTETS: Final = np.dtype(np.uint8)


class Scales(NamedTuple):
    """The factors by which a call multiplies its source, and its result; None for 1."""

    before: float | None = None
    after: float | None = None


UNSCALED: Final = Scales()


class BegunCall(NamedTuple):
    """The newest call of an executor, which a table has begun and Python goes on with.

    source, target   the arrays, as `Table.run` had them
    do               do(row): do a row in Python
    requests         those that rows have begun
    """

    source: Array
    target: Array
    do: Callable[[int], object]
    requests: list[Request | None]


class Table(ABC):
    """A plan bound for the compiled interpreter.

    run    run(source, target) begins a call of the plan; see collectives.jit.RunTable
    words  of the table, for a JobRing
    """

    runs_alone = True
    """False if the words are not enough to run it: a JobRing cannot."""

    def __init__(self, plan: Plan, state: State, words: NDArray[np.int64], memory: list[Any]) -> None:
        """`memory` is everything whose address is in the table."""
        self.plan = plan
        self.words = words
        self.run: RunTable = bind(state, words)
        self._state = state
        self._memory = memory

    def scaled(self, scales: Scales) -> Table | None:
        """The table for calls that scale their arrays too; None if no C function does that. With a factor `before` the
        plan must be one in place: it finds the scaled source in the target."""
        assert self._state.code is not None
        if scales == UNSCALED:
            return self
        call, memory = self.plan.call, list(self._memory)
        found: list[Scale | None] = []
        for factor in scales:
            if factor is None:
                found.append(None)
                continue
            name, number = compiled_scaling(call.dtype, factor)
            kernel = _with_number(self._state.code.kernels, name, number, scaling_loop(call.dtype, factor))
            if kernel is None:
                return None
            memory.append(kernel[1])
            found.append(Scale(kernel[0], address(kernel[1])))
        return self._with(scaled(self.words, found[0], found[1], call.blocks[0], call.dtype.itemsize), memory)

    def rest(self, call: BegunCall, first: int, *, left: bool) -> None:
        """Run the rows of the newest call from `first` on. `left`: the interpreter has left that one to Python. Python
        does such a row, and the interpreter goes on behind it."""
        answer = first if left else self._interpret(call, first)
        while answer is not None:
            answer = self._interpret(call, self._do(call, answer))

    @abstractmethod
    def _interpret(self, call: BegunCall, first: int) -> int | None:
        """Have the interpreter go on with the newest call at a row; after the last one it does what belongs behind the
        rows. None if it has done all; else the number of the row that it leaves to Python, that of the rows if a rank
        has failed."""

    @abstractmethod
    def _do(self, call: BegunCall, row: int) -> int:
        """Do a row that the interpreter leaves. Returns the number of the row with which the interpreter can go on."""

    def _note_time(self, row: int) -> None:
        """Python has done a row of the newest call."""
        note_time(self.words, self._state.log.words[CALLS], row)

    def flat(self, source: Array, target: Array) -> tuple[Array, Array]:
        """The flat arrays that the rows work on, of those of a call."""
        target = target.reshape(-1)
        return (target if self.words[LOAD] else source.reshape(-1)), target

    @abstractmethod
    def _with(self, words: NDArray[np.int64], memory: list[Any]) -> Table:
        """The same with other words."""


class WindowTable(Table):
    """The table of a program whose ranks share a staging window."""

    def __init__(
        self, plan: Plan, state: State, words: NDArray[np.int64], memory: list[Any], controls: Controls
    ) -> None:
        super().__init__(plan, state, words, memory)
        self._controls = controls

    def _with(self, words: NDArray[np.int64], memory: list[Any]) -> WindowTable:
        return WindowTable(self.plan, self._state, words, memory, self._controls)

    def _interpret(self, call: BegunCall, first: int) -> int | None:
        return self.run(call.source, call.target, first, len(self.plan.program.instructions))

    def _do(self, call: BegunCall, row: int) -> int:
        """See Table. It is a wait that takes longer, or whose check may differ; or a signal, which has been published,
        but for which a rank sleeps on a descriptor; or a read of an array that is in no arena."""
        steps = self.plan.program.instructions
        if row == len(steps):
            assert self._controls.check is not None
            self._controls.check()
            return row
        if steps[row].kind is Kind.SIGNAL:
            self._controls.wake()
        else:
            call.do(row)
        self._note_time(row)
        return row + 1


def tabulate(plan: Plan, state: State, binder: Binder, scratch: Array) -> Table | None:
    """The table of a plan that stages; None if its program cannot have one.

    scratch  flat, of the plan's dtype
    """
    program, controls = plan.program, state.controls
    if controls is None or not program.phases or program.requests:
        return None
    if plan.algorithm.single_copy and not controls.arenas:
        return None
    rows = WindowRows(plan, state, binder, scratch, controls)
    if not all(rows.add(step) for step in program.instructions):
        return None
    releases = rows.writer.moved > RELEASING_BYTES or not controls.spins
    words = rows.table(exposes=_exposed(plan), checked=rows.checked(), releases=releases)
    return WindowTable(plan, state, words, [controls.memory, *rows.memory], controls)


class Rows:
    """Writes the rows of one plan that have no part outside this rank.

    memory   what they name by address
    """

    def __init__(self, plan: Plan, state: State, binder: Binder, scratch: Array) -> None:
        assert state.code is not None
        self.writer = TableWriter()
        self.memory: list[Any] = [state, plan.tally.words, scratch]
        self._plan = plan
        self._dtype = plan.call.dtype
        self._state = state
        self._binder = binder
        self._scratch = address(scratch) if scratch.size else 0
        self._compiled: Mapping[str, int] = state.code.kernels
        self._kernel = None if plan.call.op is None else self._combination(plan.call.op)
        self._starts: dict[tuple[Buf, int], int] = {}

    def add(self, step: Instruction) -> bool:
        """Write the row of an instruction. False if there is none for it."""
        match step.kind:
            case Kind.COPY:
                return self._copy(step)
            case Kind.REDUCE:
                return self._reduce(step)
        return False

    def table(
        self, *, tag: int = 0, staged: bool = True, exposes: int = 0, checked: int = 0, releases: bool
    ) -> NDArray[np.int64]:
        """The table of these rows; see TableWriter.table."""
        plan = self._plan
        return self.writer.table(
            self._state,
            self._plan.number,
            plan.check,
            plan.staging_slots,
            plan.slot_stride,
            address(plan.tally.words),
            tag=tag,
            staged=staged,
            exposes=exposes,
            checked=checked,
            alignment=plan.call.dtype.alignment,
            releases=releases,
        )

    def _copy(self, step: Instruction) -> bool:
        assert step.a is not None
        assert step.dst is not None
        if _overlap(step.a, step.dst):
            return False
        nbytes = (step.dst.stop - step.dst.start) * self._dtype.itemsize
        result, a = self.place(step.dst), self.operand(step.a)
        loop = None if copy_kernel(self._plan, step) is None else inner_loop(np.bitwise_or, _OCTETS)
        if loop is None:
            self.writer.copy(nbytes, result, a)
        else:  # x | x is x: see transports.copying.store_array
            self.writer.reduce(nbytes, result, a, a, CFunction(*loop), 1)
        return True

    def _reduce(self, step: Instruction) -> bool:
        a, b, result = step.a, step.b, step.dst
        assert a is not None
        assert b is not None
        assert result is not None
        if self._kernel is None or _overlap(a, result) or _overlap(b, result):
            return False
        operands, count = (self.place(result), self.operand(a), self.operand(b)), result.stop - result.start
        if self._plan.averages:
            return self._average(count, *operands, step.phase)
        self.writer.reduce(count, *operands, self._kernel, self._dtype.itemsize)
        return True

    def _average(self, count: int, result: Operand, a: Operand, b: Operand, marks: int) -> bool:
        """The row of a combination within an average."""
        found = compiled_averaging(self._dtype, self._plan.averaging(marks))
        if found is None:
            return False
        function = self._compiled.get(found.name)
        if function is not None:
            kernel = CFunction(function, address(found.number))
        elif found.loop is not None:
            kernel = CFunction(*found.loop)
        else:
            return False
        self.memory.append(found.number)
        a, b = (b, a) if found.exchange else (a, b)
        self.writer.reduce(count * found.parts, result, a, b, kernel, self._dtype.itemsize // found.parts)
        if found.divisor is not None:
            loop, number = found.divisor
            self.memory.append(number)
            self.writer.divide(CFunction(*loop), address(number))
        return True

    def _combination(self, op: str | Op) -> CFunction | None:
        """The C function that combines; None if there is none."""
        function = self._compiled.get(compiled_kernel(op, self._dtype))
        if function is not None:
            return CFunction(function, 0)
        loop = kernel_loop(op, self._dtype)
        return None if loop is None else CFunction(*loop)

    def operand(self, span: Span) -> Operand:
        """The place from which a row reads a span."""
        return self.place(span)

    def place(self, span: Span) -> Operand:
        """The place of a span."""
        offset = span.start * self._dtype.itemsize
        if span.buf is Buf.STAGE:
            start = self._start(span, lambda first: self._binder.staged(first, self._plan, 0))
            return Operand(STAGED_SLOT, start + offset)
        if span.buf is Buf.SCRATCH:
            return Operand(ABSOLUTE, self._scratch + offset)
        if span.rank >= 0:
            windows = self._plan.call.windows
            start = self._start(span, lambda first: self._binder.peers(first, windows, self._dtype))
            return Operand(ABSOLUTE, start + offset)
        return Operand(SOURCE if span.buf is Buf.IN else TARGET, offset)

    def _start(self, span: Span, memory_of: Callable[[Span], Array]) -> int:
        """The address at which the buffer of a span begins; `memory_of` gives the memory of a span."""
        buffer = span.buf, span.rank
        start = self._starts.get(buffer)
        if start is None:
            memory = memory_of(Span(span.buf, 0, 1, span.rank))
            self.memory.append(memory)
            start = self._starts[buffer] = address(memory)
        return start


class WindowRows(Rows):
    """The rows of a plan that stages in the window of these control words."""

    def __init__(self, plan: Plan, state: State, binder: Binder, scratch: Array, controls: Controls) -> None:
        super().__init__(plan, state, binder, scratch)
        self._controls = controls
        self._single_copy = plan.algorithm.single_copy
        self._references: dict[Span, int] = {}
        """Spans of the scratch memory for which a peer's array is read where it lies, and where its address is."""

    def add(self, step: Instruction) -> bool:
        match step.kind:
            case Kind.SIGNAL:
                self.writer.signal(step.phase)
                if self._single_copy and step.phase == 1:
                    self.writer.expose()
            case Kind.WAIT:
                self.writer.wait(step.phase, self._controls.addresses[step.peer])
            case Kind.COPY if self._single_copy and step.reads_peer:
                self._read(step)
            case _:
                if not super().add(step):
                    return False
                self._overwrite(step.dst)
        return True

    def checked(self) -> int:
        """See layout.CHECKED."""
        peers = sorted({step.a.rank for step in self._plan.program.instructions if step.a and step.reads_peer})
        if not self._single_copy or not peers:
            return 0
        failed, *states = self._controls.ends
        words = np.array([failed, len(peers), *(states[peer] for peer in peers)], np.int64)
        self.memory.append(words)
        return address(words)

    def operand(self, span: Span) -> Operand:
        reference = self._references.get(span)
        return super().operand(span) if reference is None else Operand(REFERRED, reference)

    def _read(self, step: Instruction) -> None:
        """The row of a copy of an exposed array."""
        span, result = step.a, step.dst
        assert span is not None
        assert result is not None
        self._overwrite(result)
        controls, size, reference = self._controls, self._dtype.itemsize, 0
        nbytes, array = (span.stop - span.start) * size, Operand(int(span.buf is Buf.OUT), span.start * size)
        place = self.place(result)
        after = self._plan.program.instructions[self.writer.rows + 1 :]
        if result.buf is Buf.SCRATCH and _only_combined(result, after):
            word = np.zeros(1, np.int64)
            self.memory.append(word)
            reference = self._references[result] = address(word)
        control, arena, process = (
            words[span.rank] for words in (controls.addresses, controls.arenas, controls.processes)
        )
        self.writer.read(nbytes, place, array, control, arena, reference, process)

    def _overwrite(self, result: Span | None) -> None:
        """Forget the references of spans that a step writes."""
        if result is not None and result.buf is Buf.SCRATCH:
            found = [span for span in self._references if span.start < result.stop and result.start < span.stop]
            for span in found:
                del self._references[span]


def _exposed(plan: Plan) -> int:
    """See layout.EXPOSES."""
    if not plan.algorithm.single_copy:
        return 0
    reads_results = any(step.reads_peer and step.a.buf is Buf.OUT for step in plan.program.instructions if step.a)
    only_reads = SPECS[plan.call.collective].rooted and plan.call.root != plan.geometry.rank
    return TARGET_IS_READ * reads_results | SOURCE_IS_READ * (not only_reads)


def _only_combined(span: Span, steps: Sequence[Instruction]) -> bool:
    """True if all of `steps` that use a span, until it is written again, combine all of it."""
    for step in steps:
        for operand in (step.a, step.b):
            touches = operand is not None and _meets(operand, span)
            if touches and (step.kind is not Kind.REDUCE or operand != span):
                return False
        if step.dst is not None and _meets(step.dst, span):
            return step.dst == span
    return True


def _meets(one: Span, other: Span) -> bool:
    """True if two spans overlap."""
    same_buffer = one.buf is other.buf and one.rank == other.rank
    return same_buffer and one.start < other.stop and other.start < one.stop


def _with_number(
    compiled: Mapping[str, int], name: str, number: Array, loop: tuple[Loop, Array] | None
) -> tuple[CFunction, Array] | None:
    """A kernel and the number that it combines with: the compiled one of that name, else NumPy's loop."""
    function = compiled.get(name)
    if function is not None:
        return CFunction(function, 0), number
    return None if loop is None else (CFunction(*loop[0]), loop[1])


def _overlap(operand: Span, result: Span) -> bool:
    """True if an operand overlaps the result without being the same memory: then the order of elements matters."""
    return operand != result and _meets(operand, result)
