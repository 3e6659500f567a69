"""One rank's end of the negotiation: its state machines, and the messages to and from the other ranks.

Rank 0 has a CoordinatorEndpoint, every other rank a ParticipantEndpoint. The engine's lock guards both.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import NamedTuple

from collectives.metering import Trace, now
from collectives.negotiation.control_channel import ControlChannel
from collectives.negotiation.coordinator import Coordinator
from collectives.negotiation.in_flight import NEVER, InFlight
from collectives.negotiation.messages import Announcement, Answer, bits
from collectives.negotiation.participant import Participant
from collectives.negotiation.response_cache import ResponseCache
from collectives.operations import Signature


class Decision(NamedTuple):
    """An answer of the coordinator, and the operations that it lets run, in order."""

    run: list[tuple[str, Signature]]
    answer: Answer


class Endpoint(ABC):
    """Announces this rank's submissions, and collects the decisions that its engine has to execute.

    participant   add submissions here, then call `announce`
    decisions     decisions received but not executed yet, in order
    """

    def __init__(self, channel: ControlChannel, in_flight: InFlight, *, holds_back: bool) -> None:
        self.participant = Participant(holds_back=holds_back)
        self.decisions: deque[Decision] = deque()
        self._channel = channel
        self._in_flight = in_flight

    def _apply(self, answer: Answer) -> None:
        run = self.participant.receive(answer)
        if run:
            self._in_flight.agree(name for name, _ in run)
        self.decisions.append(Decision(run, answer))

    @abstractmethod
    def open(self) -> None:
        """Begin to receive messages."""

    @abstractmethod
    def announce(self) -> None:
        """Announce the participant's submissions, unless they have to be held back."""

    @abstractmethod
    def receive(self, sender: int, message: bytes) -> None:
        """Apply a message from the channel. Raises ValueError for a malformed one."""

    @abstractmethod
    def decide(self) -> None:
        """On rank 0, answer the announcements received so far; elsewhere nothing."""

    @property
    @abstractmethod
    def coordinates(self) -> bool:
        """True on rank 0."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True once the coordinator has sent its last answer."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """True on rank 0 while any rank waits for a decision."""

    @property
    @abstractmethod
    def behind(self) -> bool:
        """True if an answer has arrived that must be applied before the next announcement, as it may be the last."""

    @abstractmethod
    def stall_report(self, now: float) -> str:
        """Warning about operations that have been waiting for too long at time `now`; '' if there is nothing new."""

    @abstractmethod
    def next_report(self, now: float) -> float:
        """The moment at which to ask for a stall report again."""


class CoordinatorEndpoint(Endpoint):
    """The endpoint of rank 0. The messages of its own participant do not pass through the channel."""

    coordinates = True
    behind = False

    def __init__(
        self,
        channel: ControlChannel,
        in_flight: InFlight,
        ranks: tuple[int, ...],
        fusion: int,
        stall: float,
        trace: Trace,
    ) -> None:
        """
        stall   seconds after which an operation that some ranks have not submitted is reported
        trace   the events of the communicator
        """
        super().__init__(channel, in_flight, holds_back=False)
        self._coordinator = Coordinator(ranks, ResponseCache(), fusion=fusion)
        self._trace = trace
        self._arrivals: dict[str, list[tuple[int, int]]] = {}  # while there is a timeline: rank and time, by name
        self._others = range(1, len(ranks))
        self._stall = stall

    def open(self) -> None:
        """Begin to receive messages, and tell the ranks that already wait for an answer that rank 0 is there."""
        self._channel.open(self._others)
        for rank in self._others:
            self._channel.send(rank, Answer().pack())

    def announce(self) -> None:
        announcement = self.participant.announce()
        if announcement is not None:
            self._receive(0, announcement)

    def receive(self, sender: int, message: bytes) -> None:
        announcement = Announcement.unpack(message)
        self._receive(sender, announcement)
        if announcement.left:
            self._channel.remove_sender(sender)

    def _receive(self, rank: int, announcement: Announcement) -> None:
        self._coordinator.receive(rank, announcement, time.monotonic())
        if self._trace.on:
            moment = now()
            for name in self._coordinator.names(announcement):
                self._arrivals.setdefault(name, []).append((rank, moment))
        elif self._arrivals:
            self._arrivals.clear()

    def _apply(self, answer: Answer) -> None:
        super()._apply(answer)
        if self._arrivals:
            for name, _ in self.decisions[-1].run:
                found, operation = self._arrivals.pop(name, []), self._in_flight.get(name)
                if operation is not None:
                    operation.arrivals = found

    def decide(self) -> None:
        for ranks, answer in self._coordinator.decide():
            packed = answer.pack()
            for rank in bits(ranks & ~1):
                self._channel.send(rank, packed)
            if ranks & 1:
                self._apply(answer)

    @property
    def ended(self) -> bool:
        return self._coordinator.ended

    @property
    def pending(self) -> bool:
        return self._coordinator.pending

    def stall_report(self, now: float) -> str:
        stalled = self._coordinator.stalled(now - self._stall)
        if not stalled:
            return ""
        rows = "".join(f"\n  {operation.describe(now)}" for operation in stalled)
        return f"named operations that some ranks have submitted and others have not:{rows}"

    def next_report(self, now: float) -> float:
        return min(self._coordinator.oldest, now) + self._stall  # `now`: for announcements that arrive from now on


class ParticipantEndpoint(Endpoint):
    """The endpoint of every other rank."""

    coordinates = False
    pending = False
    ended = False

    def __init__(self, channel: ControlChannel, in_flight: InFlight, coordinator: str, stall: float) -> None:
        """
        coordinator   description of rank 0
        stall         seconds after which it is reported that rank 0 has never sent anything
        """
        super().__init__(channel, in_flight, holds_back=True)
        self._coordinator = coordinator
        self._stall = stall
        self._report_at = NEVER

    def open(self) -> None:
        self._channel.open((0,))
        self._report_at = time.monotonic() + self._stall

    def announce(self) -> None:
        if self.ended:
            return
        announcement = self.participant.announce()
        if announcement is not None:
            self._channel.send(0, announcement.pack())

    def receive(self, sender: int, message: bytes) -> None:
        answer = Answer.unpack(message)
        self._report_at = NEVER
        self.ended |= answer.ended
        self._apply(answer)
        self.announce()  # before the decision is executed, so that the next messages travel meanwhile

    def decide(self) -> None:
        pass

    @property
    def behind(self) -> bool:
        return self._channel.ready()

    def stall_report(self, now: float) -> str:
        if now < self._report_at or not self._in_flight:
            return ""
        self._report_at = NEVER
        waiting = ", ".join(self._in_flight.describe())
        return f"{self._coordinator}, which coordinates named operations, has submitted none; waiting: {waiting}"

    def next_report(self, now: float) -> float:
        return self._report_at
