"""Stall reports: a rank whose call does not advance asks the other ranks for their positions, and logs the answers.
When a call runs out of time, its rank asks the ranks that it depends on, so that the error names the culprit.

Nothing is asked while calls advance. Questions and answers go through the store, so they need no transport. A rank
answers from its watchdog's thread, independently of its program.

Store keys, in the part that the watchdogs of a group share
    claim/CALL/REPORT     counts the ranks that would report a stall; the first one does
    questions/RANK        counts the questions to a rank
    answers/RANK/NUMBER   the answer to one question
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from collectives.execution import CallPosition, CallPositions
from collectives.failure import AbortSignal
from collectives.watchdog.liveness import have_closed
from collectives.watchdog.wait_chain import Wait, find_wait_chain
from transports.base import Group
from transports.errors import DeadlineExceeded, RendezvousError
from transports.packed import pack, unpack
from transports.stacks import stack_of
from transports.store import Store

COLLECT_SECONDS: Final = 2.0
"""Time for the ranks to answer the questions of a stall report."""
EXPLAIN_SECONDS: Final = 1.0
"""Time for all answers of a wait chain together. A rank that does not answer is taken for the culprit, so it must have
time for it on busy cores."""
_MOST_QUESTIONS: Final = 64
"""Number of unanswered questions that a rank still answers; older ones are dropped."""

log = logging.getLogger("ronde.stall")


class Answer(NamedTuple):
    """The answer of a rank.

    calls    the calls that it is in: communicator, number, description
    stack    the stack of its main thread
    waits    the waits of these calls
    closed   True if the rank has closed; then there is no answer
    """

    calls: list[tuple[str, int, str]]
    stack: str
    waits: tuple[Wait, ...] = ()
    closed: bool = False


class _Inquiry(NamedTuple):
    """The questions of one stall report. `questions` holds their numbers by rank; answers are collected at `due`."""

    questions: dict[int, int]
    position: CallPosition
    seconds: float
    due: float


class StallReporter:
    """Asks, answers and reports for one rank. `explain_timeout` is for any thread, the other methods are for the
    watchdog's, and raise RendezvousError.

    store      the part that the watchdogs share
    seconds    of a stall before the first report; every later report takes twice as long. 0: no reports
    meanwhile  called between requests, since a report takes some for each rank
    """

    def __init__(
        self,
        group: Group,
        store: Store,
        abort_signal: AbortSignal,
        positions: CallPositions,
        seconds: float,
        meanwhile: Callable[[], object],
    ) -> None:
        self._group = group
        self._store = store
        self._abort_signal = abort_signal
        self._positions = positions
        self._seconds = seconds
        self._meanwhile = meanwhile
        self._answered = 0
        self._inquiries: list[_Inquiry] = []
        self.main_thread = 0
        """The thread whose stack is shown to the other ranks."""

    @property
    def due(self) -> float:
        """The time at which `report` has something to do (monotonic seconds)."""
        return min((inquiry.due for inquiry in self._inquiries), default=float("inf"))

    def consider(self, position: CallPosition, seconds: float, reports: int, now: float) -> bool:
        """Ask the other ranks if a report on a call is due; True if it was.

        seconds   time for which the call has been at this position
        reports   number of reports on the call that have been due before
        """
        if not self._seconds or seconds < self._seconds * 2**reports:
            return False
        caller, number = position.caller, position.number
        if not reports:
            caller.meter.count("stalls")
        if number == 0 or self._store.add(f"claim/{caller.key}/{number}/{reports}", 1) == 1:
            questions = {}
            for rank in position.peers:
                if rank != self._group.rank:
                    questions[rank] = self._ask(rank)
                    self._meanwhile()
            self._inquiries.append(_Inquiry(questions, position, seconds, now + COLLECT_SECONDS))
        return True

    def explain_timeout(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """`error` with the culprit as its peer, and the wait chain in its text. For the thread of the call; raises
        nothing."""
        mine = next((wait for wait in _waits(self._positions.now()) if wait.peer == error.peer), None)
        if mine is None or error.peer is None:
            return error
        until = time.monotonic() + EXPLAIN_SECONDS

        def ask(rank: int) -> tuple[Wait, ...] | None:
            answer = self._answer_of(rank, until)
            return None if answer is None else answer.waits

        try:
            chain = find_wait_chain(self._group.rank, mine, ask)
        except RendezvousError:
            return error
        text = f"{error.message}: {chain.describe(self._group.describe)}"
        return DeadlineExceeded(text, rank=error.rank, peer=chain.culprit)

    def answer(self) -> None:
        """Answer the questions to this rank that are new since the last call."""
        rank = self._group.rank
        count = self._store.peek(f"questions/{rank}") or b""
        asked = int(count) if count.isdigit() and len(count) < 20 else 0
        for number in range(max(self._answered, asked - _MOST_QUESTIONS) + 1, asked + 1):
            here = self._positions.now()
            calls = [(position.caller.key, position.number, position.text) for position in here]
            self._store.set(f"answers/{rank}/{number}", pack((calls, stack_of(self.main_thread), _waits(here))))
            self._meanwhile()
        self._answered = asked

    def report(self, now: float) -> None:
        """Log the reports whose answers are due."""
        for inquiry in [inquiry for inquiry in self._inquiries if now >= inquiry.due]:
            self._inquiries.remove(inquiry)
            answers = self._collect(inquiry.questions)
            text = _compose(self._group, inquiry.position, inquiry.seconds, answers)
            inquiry.position.caller.stalled = inquiry.position.number, text
            log.warning("%s", text)

    def _ask(self, rank: int) -> int:
        """Ask a rank for its position; the number of the question."""
        number = self._store.add(f"questions/{rank}", 1)
        self._abort_signal.notify([rank])
        return number

    def _answer_of(self, rank: int, until: float) -> Answer | None:
        """Ask a rank and wait for its answer; None if there is none by then."""
        key = f"answers/{rank}/{self._ask(rank)}"
        try:
            answer = self._store.get(key, until)
        except DeadlineExceeded:
            return None
        self._store.delete(key)
        return read_answer(answer, self._group.size)

    def _collect(self, questions: Mapping[int, int]) -> dict[int, Answer | None]:
        """The answers that have come, one by one: each has a stack."""
        answers: dict[int, Answer | None] = {}
        for rank, number in questions.items():
            answer = self._store.peek(f"answers/{rank}/{number}")
            answers[rank] = None if answer is None else read_answer(answer, self._group.size)
            if answer is not None:
                self._store.delete(f"answers/{rank}/{number}")
            self._meanwhile()
        for rank in have_closed(self._store, [rank for rank, answer in answers.items() if answer is None]):
            answers[rank] = Answer([], "", closed=True)
        return answers


def _waits(here: list[CallPosition]) -> list[Wait]:
    """The waits of the calls at these positions."""
    in_collective = {position.caller for position in here if position.number}
    return [
        Wait(
            position.caller.key,
            position.number,
            position.caller.calls - (position.caller in in_collective),
            position.phase,
            position.step,
            position.awaits,
        )
        for position in here
    ]


def read_answer(answer: bytes, size: int) -> Answer | None:
    """The answer of a rank; None if it cannot be read."""
    try:
        calls, stack, waits = unpack(answer)
        texts = [(str(key), int(number), str(text)) for key, number, text in calls]
        awaited = [
            Wait(str(key), int(number), int(done), int(phase), int(step), None if peer is None else int(peer))
            for key, number, done, phase, step, peer in waits
        ]
    except (TypeError, ValueError, OverflowError):  # OverflowError: int of an infinite number
        return None
    if any(wait.peer is not None and not 0 <= wait.peer < size for wait in awaited):
        return None
    return Answer(texts, str(stack), tuple(awaited))


def _compose(group: Group, position: CallPosition, seconds: float, answers: Mapping[int, Answer | None]) -> str:
    """The text of a report: the call of this rank, and the answers of the others (None: no answer)."""
    same_call, elsewhere = dict[str, list[int]](), dict[tuple[str, str], list[int]]()
    closed = [rank for rank, answer in answers.items() if answer is not None and answer.closed]
    silent = [rank for rank, answer in answers.items() if answer is None]
    for rank, answer in answers.items():
        if answer is None or answer.closed:
            continue
        call = position.caller.key, position.number
        texts = [text for key, number, text in answer.calls if (key, number) == call]
        if position.number and texts:
            same_call.setdefault(texts[0], []).append(rank)
        else:
            calls = "; ".join(text for _, _, text in answer.calls)
            elsewhere.setdefault((f"in {calls}" if calls else "in no call", answer.stack), []).append(rank)
    lines = [f"{group.describe(group.rank)} has made no progress for {seconds:.1f} s in {position.text}"]
    lines += [f"  in the same call: {_names(group, ranks)}: {text}" for text, ranks in same_call.items()]
    for (calls, stack), ranks in elsewhere.items():
        lines.append(f"  not there: {_names(group, ranks)}, {calls}:")
        lines.append(textwrap.indent(stack.rstrip(), "    "))
    if closed:
        lines.append(f"  closed: {_names(group, closed)}")
    if silent:
        lines.append(f"  no answer: {_names(group, silent)}")
    return "\n".join(lines)


def _names(group: Group, ranks: list[int]) -> str:
    return ", ".join(map(group.describe, ranks))
