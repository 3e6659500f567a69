"""Program -> table: the rows that the compiled interpreter runs, and the steps that it leaves to Python.

    COPY    [COPY, bytes, result, a]           addresses in the stage and in windows are known; those in the caller's
    REDUCE  [REDUCE, elements, result, a, b]   arrays are offsets, and those in the stage move with the slot
    SIGNAL  [SIGNAL, phase]
    WAIT    [WAIT, phase, control words of the peer]
    SEND    [SEND, bytes, a, lanes of the peer]        messages: message_table.py
    AWAIT   [TAKE, bytes, result, lanes of the peer]   of a RECV, whose own row does nothing

One table serves all calls of a plan and all staging slots. A program with large messages, with messages and a staging
window, with reads of exposed memory, or with a kernel that is not one C function has no table: its rows are
functions of Python (rows.py). Where the interpreter leaves a row, Python does it; `Table.rest` tells which runner goes
on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
from collectives.execution.rows import RowHook
from collectives.jit import (
    ABSOLUTE,
    LOAD,
    SOURCE,
    STAGED_SLOT,
    TARGET,
    CFunction,
    Operand,
    RunTable,
    Scale,
    State,
    TableWriter,
    address,
    bind,
    scaled,
)
from collectives.planning import Plan
from collectives.schedule import Buf, Instruction, Kind, Span
from transports.base import Request
from transports.onesided import Controls

_RELEASING_BYTES: Final = 1 << 15
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
    hook             to be called after each row
    """

    source: Array
    target: Array
    do: Callable[[int], object]
    requests: list[Request | None]
    hook: RowHook | None


class Table(ABC):
    """A plan bound for the compiled interpreter.

    run      run(source, target) begins a call of the plan; see collectives.jit.RunTable
    words    of the table, for a JobRing
    outside  approximate nanoseconds by which a call takes longer if its rows run as Python functions
    single   True if the rows of Python that end a call must be BoundPlan.single_rows
    """

    outside = 5000
    single = False

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

    @abstractmethod
    def rest(self, call: BegunCall, first: int, *, left: bool) -> None:
        """Run the rows of the newest call from `first` on. `left`: the interpreter has left that one to Python."""

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

    def rest(self, call: BegunCall, first: int, *, left: bool) -> None:
        """Python does a row that the interpreter leaves: a wait that takes longer, or whose check may differ; or a
        signal, which has been published, but for which a rank sleeps. The interpreter goes on behind it."""
        at, answer, steps = first, None, self.plan.program.instructions
        rows = len(steps)
        while at < rows:
            stop = rows if call.hook is None else at + 1
            answer = at if left else self.run(call.source, call.target, at, stop)
            left = False
            if answer is not None:
                if steps[answer].kind is Kind.SIGNAL:
                    self._controls.wake()
                else:
                    call.do(answer)
                stop = answer + 1
            at = stop
            if call.hook is not None:
                call.hook()
        if answer is not None:  # what comes after the last row
            self.run(call.source, call.target, at, at)


def tabulate(plan: Plan, state: State, number: int, binder: Binder, scratch: Array) -> Table | None:
    """The table of a plan that stages; None if its program cannot have one.

    number   of the table, greater than 0
    scratch  flat, of the plan's dtype
    """
    program, controls = plan.program, state.controls
    if controls is None or not program.phases or program.requests or plan.algorithm.single_copy:
        return None
    rows = WindowRows(plan, state, binder, scratch, controls)
    if not all(rows.add(step) for step in program.instructions):
        return None
    releases = rows.writer.moved > _RELEASING_BYTES or not controls.spins
    words = rows.table(number, releases=releases)
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
        self._scratch = address(scratch)
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

    def table(self, number: int, *, tag: int = 0, staged: bool = True, releases: bool) -> NDArray[np.int64]:
        """The table of these rows; see TableWriter.table."""
        plan = self._plan
        return self.writer.table(
            self._state,
            number,
            plan.check,
            plan.staging_slots,
            plan.slot_stride,
            address(plan.tally.words),
            tag=tag,
            staged=staged,
            alignment=plan.call.dtype.alignment,
            releases=releases,
        )

    def _copy(self, step: Instruction) -> bool:
        assert step.a is not None
        assert step.dst is not None
        if _overlap(step.a, step.dst):
            return False
        nbytes = (step.dst.stop - step.dst.start) * self._dtype.itemsize
        result, a = self.operand(step.dst), self.operand(step.a)
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
        operands, count = (self.operand(result), self.operand(a), self.operand(b)), result.stop - result.start
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

    def add(self, step: Instruction) -> bool:
        match step.kind:
            case Kind.SIGNAL:
                self.writer.signal(step.phase)
            case Kind.WAIT:
                self.writer.wait(step.phase, self._controls.addresses[step.peer])
            case _:
                return super().add(step)
        return True


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
    same_buffer = operand.buf is result.buf and operand.rank == result.rank
    return same_buffer and operand != result and operand.start < result.stop and result.start < operand.stop
