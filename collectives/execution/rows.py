"""The rows of a plan: a function of Python for each instruction, bound to all that never changes.

A row is called with the memory of a call, and with what is new in each call:

    row(memory, epoch, check, deadline, requests)

    memory     0        1        2 ...                                ...
            +--------+--------+-------------------------------+--------------------------------+
            | source | target | scratch, stage, peers' memory | pieces of source and of target |
            +--------+--------+-------------------------------+--------------------------------+
              of the caller     of the communicator, for the    cut for this call
                                staging slot of the call

A row names its operands by their numbers in this list. So one set of rows serves all calls of a plan and all staging
slots. The compiled interpreter runs the same instructions as words (table.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from collectives.arrays import Array, Kernel, as_bytes, casts, one_element
from collectives.execution.binder import NO_DATA, Binder, copy_kernel
from collectives.planning import Plan
from collectives.schedule import Buf, Instruction, Kind, Span
from transports.base import Request
from transports.copying import Kernel as CopyKernel

Row = Callable[[list[Any], int, int, float, list[Request | None]], object]
"""(memory, epoch, check, deadline, requests): carries an instruction out; `requests` has room for those that it
begins."""
RowHook = Callable[[], object]
"""Called before the first row of a call and after every row."""
_Operand = tuple[Span | None, bool]
"""A span, None for no memory, and True for its bytes instead of its elements."""
_SOURCE: Final = 0
_TARGET: Final = 1


class BoundPlan:
    """The rows of one plan, and the memory that they work on. Rows are made when a call runs them first."""

    def __init__(self, binder: Binder, plan: Plan, scratch: Array, sizes: tuple[int, int]) -> None:
        """scratch  flat, of the plan's dtype
        sizes    elements of the flat arrays that the plan is run with, source and target
        """
        self._binder = binder
        self._plan = plan
        self._scratch = scratch
        self._steps = list(_apart_from_results(plan.program.instructions))
        self._numbers: dict[_Operand, int] = {}
        self._constants: dict[int, list[Any]] = {}
        self._pieces: list[tuple[int, Callable[[Array], Any]]] = []
        self._kept: list[_Operand] = []
        self._kernels: dict[int, Kernel] = {}
        self._number(sizes)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the instructions; messages that are awaited at once are one call of the transport, at the
        AWAIT."""
        return tuple(self._make(_exchanges(self._steps)))

    @cached_property
    def joined(self) -> tuple[Row, ...]:
        """The same in fewer functions: a copy and its signal are one, and a wait and what uses the peer's memory."""
        return tuple(self._join())

    @cached_property
    def single_rows(self) -> tuple[Row, ...]:
        """Rows of which each does its own instruction alone: for a call that another runner has begun."""
        return tuple(self._make({}))

    def memory(self, slot: int, source: Array, target: Array) -> list[Any]:
        """The memory of a call in a staging slot, from flat `source` into flat `target`."""
        try:
            memory = [source, target, *self._constants[slot]]
        except KeyError:
            constants = self._constants[slot] = [self._constant(*operand, slot) for operand in self._kept]
            memory = [source, target, *constants]
        for whole, cut in self._pieces:
            memory.append(cut(memory[whole]))
        return memory

    def _number(self, sizes: tuple[int, int]) -> None:
        """Give each operand its number."""
        pieces: list[_Operand] = []
        for operand in dict.fromkeys(operand for step in self._steps for operand in self._operands(step)):
            span, octets = operand
            if span is None or span.rank >= 0 or span.buf not in (Buf.IN, Buf.OUT):
                self._kept.append(operand)
                continue
            whole = _TARGET if span.buf is Buf.OUT else _SOURCE
            all_of_it = span.stop - span.start == sizes[whole]
            if all_of_it and not octets:
                self._numbers[operand] = whole
                continue
            pieces.append(operand)
            part, cast = slice(span.start, span.stop), span.stop > span.start and casts(self._dtype)
            if not octets:
                self._pieces.append((whole, itemgetter(part)))
            elif all_of_it:
                self._pieces.append((whole, _cast if cast else as_bytes))
            else:
                self._pieces.append((whole, _bytes_of(part, cast=cast)))
        self._numbers.update((operand, number) for number, operand in enumerate([*self._kept, *pieces], _TARGET + 1))

    def _operands(self, step: Instruction) -> Iterator[_Operand]:
        """The operands of the row of an instruction."""
        match step.kind:
            case Kind.SEND:
                yield step.a, True
            case Kind.RECV:
                yield step.dst, True
            case Kind.COPY if self._reads(step):
                yield step.dst, False
            case Kind.COPY | Kind.REDUCE:
                yield from ((span, False) for span in (step.a, step.b, step.dst) if span is not None)

    def _reads(self, step: Instruction) -> bool:
        """True for a COPY from memory that a peer exposes."""
        return self._plan.algorithm.single_copy and step.reads_peer

    def _constant(self, span: Span | None, octets: bool, slot: int) -> Any:
        array = NO_DATA if span is None else self._memory_of(span, slot)
        return as_bytes(array) if octets else array

    def _memory_of(self, span: Span, slot: int) -> Array:
        if span.buf is Buf.STAGE:
            return self._binder.staged(span, self._plan, slot)
        if span.buf is Buf.SCRATCH:
            return self._scratch[span.start : span.stop]
        return self._binder.peers(span, self._plan.call.windows, self._dtype)

    @property
    def _dtype(self) -> Any:
        return self._plan.call.dtype

    def _make(self, exchanges: dict[int, Sequence[Instruction]]) -> Iterator[Row]:
        """The rows. `exchanges`: see _exchanges."""
        joined = {id(step) for begun in exchanges.values() for step in begun}
        for at, step in enumerate(self._steps):
            if at in exchanges:
                yield self._exchange(at, *exchanges[at])
            else:
                yield _nothing if id(step) in joined else self._row(at, step)

    def _row(self, at: int, step: Instruction) -> Row:
        binder, numbers = self._binder, self._numbers
        match step.kind:
            case Kind.COPY if self._reads(step):
                return self._read(at, step)
            case Kind.COPY:
                return _copy(copy_kernel(self._plan, step), numbers[step.dst, False], numbers[step.a, False])
            case Kind.REDUCE:
                a, b, dst = (numbers[operand, False] for operand in (step.a, step.b, step.dst))
                return _reduce(self._kernel(step), a, b, dst)
            case Kind.SEND | Kind.RECV:
                sends = step.kind is Kind.SEND
                begin, data = (binder.transport.isend, step.a) if sends else (binder.transport.irecv, step.dst)
                peer = binder.ranks[step.peer]
                return _begin(binder.counter, at, begin, peer, binder.tag, numbers[data, True], step.request)
            case Kind.AWAIT:
                return _await(binder.counter, at, step.request)
        row = signalling_row(binder, at, step)
        assert row is not None
        return row

    def _join(self) -> Iterator[Row]:
        """The rows that do something, of which some do two instructions."""
        binder, window, numbers, at = self._binder, self._binder.window, self._numbers, 0
        while at < len(self._steps):
            step, after = self._steps[at], self._steps[min(at + 1, len(self._steps) - 1)]
            match step.kind, after.kind:
                case Kind.COPY, Kind.SIGNAL if not self._reads(step):
                    assert window is not None
                    dst, a = numbers[step.dst, False], numbers[step.a, False]
                    yield _copy_and_signal(copy_kernel(self._plan, step), dst, a, window.publish, after.phase)
                    at += 2
                case Kind.WAIT, Kind.REDUCE:
                    assert window is not None
                    operands = (numbers[operand, False] for operand in (after.a, after.b, after.dst))
                    awaited = binder.counter, at, window.wait, step.peer, step.phase
                    yield _wait_and_reduce(*awaited, self._kernel(after), *operands)
                    at += 2
                case _:
                    if self.rows[at] is not _nothing:
                        yield self.rows[at]
                    at += 1

    def _kernel(self, step: Instruction) -> Kernel:
        plan, binder, marks = self._plan, self._binder, step.phase
        kernel = self._kernels.get(marks)
        if kernel is None:
            assert plan.call.op is not None
            averages = plan.averages
            made = binder.averaging_kernel(self._dtype, plan.averaging(marks)) if averages else None
            kernel = self._kernels[marks] = made or binder.kernel(plan.call.op, self._dtype)
        return one_element(kernel, self._dtype) if _may_be_one_in_place(step) else kernel

    def _read(self, at: int, step: Instruction) -> Row:
        """A copy from memory that a peer exposes."""
        window, span, counter = self._binder.window, step.a, self._binder.counter
        assert window is not None
        assert span is not None
        place = span.rank, int(span.buf is Buf.OUT), span.start * self._dtype.itemsize
        dst, read = self._numbers[step.dst, False], window.read

        def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
            counter.step = at
            read(*place, memory[dst])

        return row

    def _exchange(self, at: int, receive: Instruction, send: Instruction | None = None) -> Row:
        """A receive that is awaited at once, and the send before it if there is one, as one call of the transport."""
        binder = self._binder
        counter, tag, transport = binder.counter, binder.tag, binder.transport
        source, view = binder.ranks[receive.peer], self._numbers[receive.dst, True]
        if send is None:
            recv = transport.recv

            def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
                counter.step = at
                recv(source, tag, memory[view], deadline, check)

            return row
        dest, data, request = binder.ranks[send.peer], self._numbers[send.a, True], send.request
        sendrecv = transport.sendrecv

        def both(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
            counter.step = at
            requests[request] = sendrecv(dest, source, tag, memory[data], memory[view], deadline, check)

        return both


def signalling_row(binder: Binder, at: int, step: Instruction) -> Row | None:
    """The row of a SIGNAL or a WAIT, which works on no memory; None for other instructions."""
    if step.kind is Kind.SIGNAL:
        assert binder.window is not None
        return _signal(binder.window.publish, step.phase)
    if step.kind is Kind.WAIT:
        assert binder.window is not None
        return _wait(binder.counter, at, binder.window.wait, step.peer, step.phase)
    return None


def rows_with_hook(rows: Iterable[Row], hook: RowHook | None) -> Iterator[Row]:
    """The rows of a call, with a hook that is called before the first and after every one."""
    if hook is None:
        yield from rows
        return

    def called(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        hook()

    yield called
    for row in rows:
        yield row
        yield called


def _nothing(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
    """An instruction that another row does."""


def _cast(array: Array) -> memoryview:
    """The bytes of an array that is not empty, of a dtype that `casts`."""
    return array.data.cast("B")


def _bytes_of(part: slice, *, cast: bool) -> Callable[[Array], Any]:
    """The function that gives the bytes of a part of an array; `cast`: the part is as `_cast` needs it."""
    if cast:
        return lambda array: array[part].data.cast("B")
    return lambda array: as_bytes(array[part])


def _copy(kernel: CopyKernel | None, dst: int, a: int) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        if kernel is None:
            memory[dst][...] = memory[a]
        else:
            kernel(memory[dst], memory[a])

    return row


def _copy_and_signal(
    kernel: CopyKernel | None, dst: int, a: int, publish: Callable[[int, int], object], phase: int
) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        if kernel is None:
            memory[dst][...] = memory[a]
        else:
            kernel(memory[dst], memory[a])
        publish(epoch + phase, check)

    return row


def _reduce(kernel: Kernel, a: int, b: int, dst: int) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        kernel(memory[a], memory[b], memory[dst])

    return row


def _signal(publish: Callable[[int, int], object], phase: int) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        publish(epoch + phase, check)

    return row


def _wait(counter: Any, at: int, wait: Callable[..., object], peer: int, phase: int) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        counter.step = at
        wait(peer, epoch + phase, deadline, check if phase == 1 else None)

    return row


def _wait_and_reduce(
    counter: Any, at: int, wait: Callable[..., object], peer: int, phase: int, kernel: Kernel, a: int, b: int, dst: int
) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        counter.step = at
        wait(peer, epoch + phase, deadline, check if phase == 1 else None)
        kernel(memory[a], memory[b], memory[dst])

    return row


def _begin(counter: Any, at: int, begin: Callable[..., Request], peer: int, tag: int, data: int, request: int) -> Row:
    """A SEND or a RECV."""

    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        counter.step = at
        requests[request] = begin(peer, tag, memory[data], check)

    return row


def _await(counter: Any, at: int, number: int) -> Row:
    def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
        request = requests[number]
        if request is not None:  # a send that the compiled interpreter has ended has none
            counter.step = at
            request.wait(deadline)

    return row


def _apart_from_results(steps: Sequence[Instruction]) -> Iterator[Instruction]:
    """The instructions; where a REDUCE may overwrite an operand of one element, it takes the staged copy of the operand
    if there is one, which is other memory than the result."""
    known: Span | None = None
    staged: Span | None = None
    for step in steps:
        if step.kind is Kind.REDUCE and _may_be_one_in_place(step):
            yield step._replace(a=staged if step.a == known else step.a, b=staged if step.b == known else step.b)
        else:
            yield step
        if step.kind is Kind.COPY and step.dst is not None and step.dst.buf is Buf.STAGE and step.dst.rank < 0:
            known, staged = step.a, step.dst
        elif step.kind not in (Kind.SIGNAL, Kind.WAIT):
            known = staged = None


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
