"""The stall report: a rank that does not get on in a call asks the others what they are doing, and logs the answers.
And when its time is over, it asks those on whom it depends, to raise an error that names the right one.

Nothing is asked while all is well. The questions and the answers go through the store, so that they need no transport,
and a rank answers from its watchman's thread, whatever its code is doing.

Store keys, in the part that the watchmen of a group share
    claim/CALL/REPORT     counts the ranks that would ask; the first one does
    questions/RANK        counts what a rank was asked       answers/RANK/NUMBER   what it said
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from collectives.alarm import Alarm
from collectives.chain import Wait, trace
from collectives.neighbours import peek
from collectives.whereabouts import Place, places, stack_of
from transports.base import Group
from transports.errors import DeadlineExceeded, RendezvousError
from transports.packed import pack, unpack
from transports.rendezvous.store import Store

COLLECT_SECONDS: Final = 2.0
"""What the ranks that are asked get to answer."""
EXPLAIN_SECONDS: Final = 0.3
"""What they get together when a call's time is over."""

_MOST_QUESTIONS: Final = 64
"""Older ones are not answered any more."""

log = logging.getLogger("ronde")


class Answer(NamedTuple):
    """What a rank says: the calls that it is in, as (communicator, number, text), its stack, and whom it waits for in
    these calls; or that it has left, in place of an answer."""

    inside: list[tuple[str, int, str]]
    stack: str
    left: bool = False
    waits: tuple[Wait, ...] = ()


class _Inquiry(NamedTuple):
    """What was asked: the numbers of the questions, by rank."""

    questions: dict[int, int]
    place: Place
    seconds: float
    due: float


class Stall:
    """Asks, answers and reports for one rank. All methods but `begin` and `explain` are for its watchman's thread, and
    raise RendezvousError.

    seconds   of a stall before the first report about it; each further one takes twice as long. 0: never ask
    """

    def __init__(self, group: Group, desk: Store, alarm: Alarm, seconds: float) -> None:
        self._group = group
        self._desk = desk
        self._alarm = alarm
        self._seconds = seconds
        self._thread = 0
        self._answered = 0
        self._inquiries: list[_Inquiry] = []

    def begin(self, thread: int) -> None:
        """Let `thread` be the one whose stack shows what keeps this rank."""
        self._thread = thread

    @property
    def due(self) -> float:
        """When `report` has something to do (monotonic seconds)."""
        return min((inquiry.due for inquiry in self._inquiries), default=float("inf"))

    def consider(self, place: Place, seconds: float, reports: int, now: float) -> bool:
        """This rank has been at a place for so long, and that many reports have been due; True if another one is."""
        if not self._seconds or seconds < self._seconds * 2**reports:
            return False
        if not reports:
            place.executor.meter.count("stalls")
        claim = f"claim/{place.executor.key}/{place.number}/{reports}"
        if place.number == 0 or self._desk.add(claim, 1) == 1:
            questions = self._ask(rank for rank in place.peers if rank != self._group.rank)
            self._inquiries.append(_Inquiry(questions, place, seconds, now + COLLECT_SECONDS))
        return True

    def explain(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """`error`, with the rank that is behind it as its peer, and in its text the way there. For the thread whose
        time is over; raises nothing."""
        here = _waits(self._alarm)
        mine = next((wait for wait in here if wait.peer == error.peer), None)
        if mine is None or error.peer is None:
            return error
        until = time.monotonic() + EXPLAIN_SECONDS

        def ask(rank: int) -> tuple[Wait, ...] | None:
            answer = self._answer_of(rank, until)
            return None if answer is None else answer.waits

        try:
            chain = trace(self._group.rank, mine, ask)
        except RendezvousError:  # then what is known must do
            return error
        text = f"{error.message}: {chain.describe(self._group.describe)}"
        return DeadlineExceeded(text, rank=error.rank, peer=chain.culprit)

    def answer(self) -> None:
        """Answer what this rank was asked since the last time."""
        rank = self._group.rank
        said = peek(self._desk, f"questions/{rank}") or b""
        asked = int(said) if said.isdigit() and len(said) < 20 else 0
        for number in range(max(self._answered, asked - _MOST_QUESTIONS) + 1, asked + 1):
            inside = [(place.executor.key, place.number, place.text) for place in places(self._alarm)]
            answer = inside, stack_of(self._thread), _waits(self._alarm)
            self._desk.set(f"answers/{rank}/{number}", pack(answer))
        self._answered = asked

    def report(self, now: float) -> None:
        """Log the answers to what this rank has asked, once the others had their time."""
        for inquiry in [inquiry for inquiry in self._inquiries if now >= inquiry.due]:
            self._inquiries.remove(inquiry)
            answers = {rank: self._collect(rank, number) for rank, number in inquiry.questions.items()}
            text = compose(self._group, inquiry.place, inquiry.seconds, answers)
            inquiry.place.executor.stalled = inquiry.place.number, text
            log.warning("%s", text)

    def _ask(self, ranks: Iterable[int]) -> dict[int, int]:
        """Ask ranks what they are doing; the numbers of the questions."""
        questions = {rank: self._desk.add(f"questions/{rank}", 1) for rank in ranks}
        self._alarm.ring(questions)
        return questions

    def _answer_of(self, rank: int, until: float) -> Answer | None:
        """Ask a rank and wait for the answer; None if there is none by then."""
        key = f"answers/{rank}/{self._ask([rank])[rank]}"
        try:
            said = self._desk.get(key, until)
        except DeadlineExceeded:
            return None
        self._desk.delete(key)
        return _read(said, self._group.size)

    def _collect(self, rank: int, number: int) -> Answer | None:
        key = f"answers/{rank}/{number}"
        said = peek(self._desk, key)
        if said is None:
            return Answer([], "", left=True) if peek(self._desk, f"left/{rank}") is not None else None
        self._desk.delete(key)
        return _read(said, self._group.size)


def _waits(alarm: Alarm) -> list[Wait]:
    """What the threads of this process wait for that are inside calls."""
    here = places(alarm)
    computing = {place.executor for place in here if place.number}
    return [
        Wait(
            place.executor.key,
            place.number,
            place.executor.calls - (place.executor in computing),
            place.step,
            place.awaits,
        )
        for place in here
    ]


def _read(said: bytes, size: int) -> Answer | None:
    """The answer of a rank; None if it is nonsense."""
    try:
        inside, stack, waits = unpack(said)
        calls = [(str(key), int(number), str(text)) for key, number, text in inside]
        awaited = [
            Wait(str(key), int(number), int(done), int(step), None if peer is None else int(peer))
            for key, number, done, step, peer in waits
        ]
    except (TypeError, ValueError, OverflowError):  # the last: int of an infinite number
        return None
    if any(wait.peer is not None and not 0 <= wait.peer < size for wait in awaited):
        return None
    return Answer(calls, str(stack), waits=tuple(awaited))


def compose(group: Group, place: Place, seconds: float, answers: Mapping[int, Answer | None]) -> str:
    """The report of the rank that is stuck at `place`, on what the ranks have answered (None: nothing)."""
    here, late = dict[str, list[int]](), dict[tuple[str, str], list[int]]()
    left = [rank for rank, answer in answers.items() if answer is not None and answer.left]
    silent = [rank for rank, answer in answers.items() if answer is None]
    for rank, answer in answers.items():
        if answer is None or answer.left:
            continue
        texts = [text for key, number, text in answer.inside if (key, number) == (place.executor.key, place.number)]
        if place.number and texts:
            here.setdefault(texts[0], []).append(rank)
        else:
            doing = "; ".join(text for _, _, text in answer.inside)
            late.setdefault((f"in {doing}" if doing else "in no call", answer.stack), []).append(rank)
    lines = [f"{group.describe(group.rank)} has not got on for {seconds:.1f} s in {place.text}"]
    lines += [f"  in the same call: {_names(group, ranks)}: {text}" for text, ranks in here.items()]
    for (doing, stack), ranks in late.items():
        lines.append(f"  not there: {_names(group, ranks)}, {doing}:")
        lines.append(textwrap.indent(stack.rstrip(), "    "))
    if left:
        lines.append(f"  closed: {_names(group, left)}")
    if silent:
        lines.append(f"  no answer: {_names(group, silent)}")
    return "\n".join(lines)


def _names(group: Group, ranks: list[int]) -> str:
    return ", ".join(map(group.describe, ranks))
