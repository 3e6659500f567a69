"""The participant: one rank's part in the negotiation, a state machine without I/O. coordinator.py has the protocol."""

from __future__ import annotations

from collectives.negotiation.messages import Announcement, Answer, bits
from collectives.operations import Signature


class Participant:
    """Collects the submissions of one rank into announcements, and keeps the rank's copy of the response cache."""

    def __init__(self, *, holds_back: bool) -> None:
        """`holds_back`: after an announcement, collect submissions until an answer arrives."""
        self._holds_back = holds_back
        self._unanswered = False
        self._entries: dict[int, tuple[str, Signature]] = {}
        self._bits: dict[str, list[int]] = {}
        self._version = 0
        self._clear()

    def _clear(self) -> None:
        """Start to collect the next announcement."""
        self._cached = 0
        self._uncached: list[tuple[str, Signature]] = []
        self._withdrawn: list[str] = []
        self._joined = False
        self._left = False

    def submit(self, name: str, signature: Signature) -> None:
        """Add an operation. No operation of this name may be in flight on this rank."""
        for bit in self._bits.get(name, ()):
            if self._entries[bit][1] == signature:
                self._cached |= 1 << bit
                return
        self._uncached.append((name, signature))

    def join(self) -> None:
        """Add that this rank has no more data."""
        self._joined = True

    def withdraw(self, name: str) -> None:
        """Add that the timeout of an operation (or JOIN) has passed."""
        self._withdrawn.append(name)

    def leave(self) -> None:
        """Add that this rank will submit nothing more."""
        self._left = True

    def announce(self) -> Announcement | None:
        """The next message to the coordinator; None if there is nothing to announce or it has to be held back."""
        urgent = self._withdrawn or self._left
        if not urgent and (self._unanswered or not (self._cached or self._uncached or self._joined)):
            return None
        announcement = Announcement(
            self._version, self._cached, tuple(self._uncached), tuple(self._withdrawn), self._joined, self._left
        )
        self._clear()
        self._unanswered = self._holds_back
        return announcement

    def receive(self, answer: Answer) -> list[tuple[str, Signature]]:
        """Apply an answer to the cache; the operations to run now, in order."""
        self._unanswered = False
        run = [self._entries[bit] for bit in bits(answer.cached)]
        for bit, name, signature in answer.uncached:
            run.append((name, signature))
            if bit >= 0:
                self._insert(bit, name, signature)
        return run

    def _insert(self, bit: int, name: str, signature: Signature) -> None:
        evicted = self._entries.get(bit)
        if evicted is not None:
            siblings = self._bits[evicted[0]]
            siblings.remove(bit)
            if not siblings:
                del self._bits[evicted[0]]
            if self._cached >> bit & 1:  # collected, but not announced yet
                self._cached ^= 1 << bit
                self._uncached.append(evicted)
        self._entries[bit] = name, signature
        self._bits.setdefault(name, []).append(bit)
        self._version += 1
