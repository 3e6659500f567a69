"""Program with small messages -> table: compiled code sends and receives them itself, by transports.compiled.

    RECV    [IDLE]                                     the message is received at its AWAIT
    SEND    [SEND, bytes, a, lanes of the peer]
    AWAIT   [TAKE, bytes, result, lanes of the peer]   of a RECV
            [IDLE]                                     of a SEND: the system has taken the message

If the ranks have a staging window, the call's number is published there before the first row, which is left to Python
if a peer sleeps until then.

A message that the interpreter leaves is Python's: the receives that have begun are posted, and rows run as functions of
Python until all messages that these have begun are awaited. If it only leaves a peer to be woken, it goes on behind
that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.arrays import Array, as_bytes
from collectives.execution.binder import Binder
from collectives.execution.table import RELEASING_BYTES, BegunCall, Rows, Table
from collectives.flight import CALLS
from collectives.jit import ABSOLUTE, UNFIT, Answer, Operand, State
from collectives.planning import Plan
from collectives.schedule import Buf, Instruction, Kind, Span
from transports.base import Request
from transports.compiled import HEAD_BYTES, Channel, CompiledMessages

_NOTHING: Final = memoryview(b"")
_MOST_BYTES: Final = 1 << 24
"""Bytes that the table of a call moves: all that time the lock of the transport is held."""


class Message(NamedTuple):
    """The message of a row: the other rank, and the bytes of the payload."""

    peer: int
    nbytes: int


class MessageTable(Table):
    """The table of a program whose ranks send small messages."""

    runs_alone = False

    def __init__(
        self,
        plan: Plan,
        state: State,
        words: NDArray[np.int64],
        memory: list[Any],
        binder: Binder,
        channel: Channel,
        scratch: Array,
        messages: Mapping[int, Message],
    ) -> None:
        super().__init__(plan, state, words, memory)
        self._binder = binder
        self._channel = channel
        self._scratch = scratch
        self._messages = messages
        self._run = self.run
        self._sending: Request | None = None
        """The rest of a message that was sent in part."""
        self.run = self._run_all

    def _with(self, words: NDArray[np.int64], memory: list[Any]) -> MessageTable:
        parts = self._binder, self._channel, self._scratch, self._messages
        return MessageTable(self.plan, self._state, words, memory, *parts)

    def _run_all(self, source: Any, target: Any) -> int | None:
        return self._channel.run(self._run, source, target, self._leave)

    def _interpret(self, call: BegunCall, first: int) -> int | None:
        source, target = call.source, call.target
        rows = len(self.plan.program.instructions)
        if first == rows:  # no message is left
            return self._run(source, target, first, rows)

        def run(source: Any, target: Any) -> int | None:
            answer = self._run(source, target, first, rows)
            return Answer.DONE if answer is None else answer  # a message for the next call may have been handed over

        answer = self._channel.run(run, source, target, self._leave_begun)
        if answer != UNFIT:
            return None if answer == Answer.DONE else answer
        if first == 0:
            self._run(source, target, 0, 0)  # what comes before the first row
        return first

    def _leave_begun(self, answer: int, source: Any, target: Any) -> int:
        """`_leave`, where the call has been begun before. DONE if all rows have run."""
        left = self._leave(answer, source, target)
        return Answer.DONE if left is None else left

    def _leave(self, answer: int, source: Any, target: Any) -> int | None:
        """Go on behind a row that is complete but for a peer that must be woken; hand the rest of a message back that
        was sent in part. See Channel.run."""
        steps = self.plan.program.instructions
        left: int | None = answer
        while left is not None and left >= 0:
            message, moved = self._messages.get(left), self._state.moved
            if message is None:  # nothing was done but to publish the number
                break
            if moved < HEAD_BYTES + message.nbytes:
                if moved:
                    span, check = steps[left].a, self.plan.check_of(self._state.log.words[CALLS])
                    data = _NOTHING if span is None else as_bytes(self._array(span, *self.flat(source, target)))
                    self._sending = self._channel.send_rest(message.peer, data, check, moved)
                break
            self._channel.wake(message.peer)
            self._note_time(left)
            left = self._run(source, target, left + 1, len(steps))
        return left

    def _do(self, call: BegunCall, row: int) -> int:
        """See Table. The receives that have begun are posted first, so the rows behind are Python's too until all of
        these messages are awaited."""
        steps, sending = self.plan.program.instructions, self._sending
        self._sending = None
        if row == 0 and self._state.controls is not None:  # a peer may sleep until the number is published
            self._state.controls.wake()
        begun = _begun(steps, row)
        for at in begun:
            call.do(at)
        awaited = {steps[at].request for at in begun}
        for at in range(row, len(steps)):
            step = steps[at]
            if sending is None:
                call.do(at)
            else:
                call.requests[step.request], sending = sending, None
            self._note_time(at)
            if step.kind is Kind.AWAIT:
                awaited.discard(step.request)
            elif step.kind in (Kind.SEND, Kind.RECV):
                awaited.add(step.request)
            if not awaited:
                return at + 1
        return len(steps)

    def _array(self, span: Span, source: Array, target: Array) -> Array:
        """The array for a span of this rank's memory."""
        whole = {Buf.IN: source, Buf.OUT: target, Buf.SCRATCH: self._scratch}[span.buf]
        return whole[span.start : span.stop]


def tabulate_messages(
    plan: Plan, state: State, binder: Binder, scratch: Array, messages: CompiledMessages
) -> MessageTable | None:
    """The table of a plan with messages; None if its program cannot have one.

    scratch  flat, of the plan's dtype
    """
    program, ranks = plan.program, binder.ranks
    steps = program.instructions
    peers = {kind: [step.peer for step in steps if step.kind is kind] for kind in (Kind.SEND, Kind.RECV)}
    to_itself = ranks.index(binder.transport.rank) in peers[Kind.SEND]
    if program.phases or not program.requests or to_itself or not _in_order(steps):
        return None
    channel = messages.channel(
        [ranks[peer] for peer in peers[Kind.SEND]], [ranks[peer] for peer in peers[Kind.RECV]], binder.tag, UNFIT
    )
    if channel is None:
        return None
    rows = _MessageRows(plan, state, binder, scratch, channel)
    if not all(rows.add(step) for step in steps) or rows.writer.moved > _MOST_BYTES:
        return None
    releases = rows.writer.moved > RELEASING_BYTES or not messages.polls
    words = rows.table(tag=binder.tag, staged=False, releases=releases)
    memory = [channel, *rows.memory, *(() if state.controls is None else state.controls.memory)]
    return MessageTable(plan, state, words, memory, binder, channel, scratch, rows.messages)


class _MessageRows(Rows):
    """The rows of a plan with messages over a channel.

    messages   row -> its message
    """

    def __init__(self, plan: Plan, state: State, binder: Binder, scratch: Array, channel: Channel) -> None:
        super().__init__(plan, state, binder, scratch)
        self.messages: dict[int, Message] = {}
        self._channel = channel
        self._receives: dict[int, Instruction] = {}

    def add(self, step: Instruction) -> bool:
        match step.kind:
            case Kind.SEND:
                return self._message(step, step.a)
            case Kind.RECV:
                self._receives[step.request] = step
                self.writer.idle()
            case Kind.AWAIT if step.request in self._receives:
                return self._message(begun := self._receives[step.request], begun.dst)
            case Kind.AWAIT:
                self.writer.idle()
            case _:
                return super().add(step)
        return True

    def _message(self, step: Instruction, span: Span | None) -> bool:
        peer = self._binder.ranks[step.peer]
        lanes = self._channel.words(peer)
        nbytes = 0 if span is None else (span.stop - span.start) * self._dtype.itemsize
        place = Operand(ABSOLUTE, 0) if span is None else self.operand(span)
        self.messages[self.writer.rows] = Message(peer, nbytes)
        if step.kind is Kind.SEND:
            self.writer.send(nbytes, place, lanes)
        else:
            self.writer.take(nbytes, place, lanes)
        return nbytes <= self._channel.largest


def _begun(steps: Sequence[Instruction], first: int) -> list[int]:
    """The receives that have begun before step `first` and are awaited from there on."""
    awaited = {step.request for step in steps[first:] if step.kind is Kind.AWAIT}
    return [at for at, step in enumerate(steps[:first]) if step.kind is Kind.RECV and step.request in awaited]


def _in_order(steps: Sequence[Instruction]) -> bool:
    """True if the receives from each peer are awaited in the order in which they begin: messages come in that order."""
    begun: dict[int, list[int]] = {}
    peers: dict[int, int] = {}
    for step in steps:
        if step.kind is Kind.RECV:
            peers[step.request] = step.peer
            begun.setdefault(step.peer, []).append(step.request)
        elif step.kind is Kind.AWAIT and step.request in peers and begun[peers[step.request]].pop(0) != step.request:
            return False
    return True
