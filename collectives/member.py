"""One rank's part in negotiating named operations. The coordinator's, and how they work together: negotiate.py."""

from __future__ import annotations

from collectives.terms import Announcement, Answer, Terms, bits


class Member:
    """What one rank has submitted and what it may say."""

    def __init__(self, *, holds: bool) -> None:
        """`holds`: it gathers while an announcement is unanswered."""
        self._holds = holds
        self._held = False
        self._table: dict[int, tuple[str, Terms]] = {}
        self._slots_of: dict[str, list[int]] = {}
        self._known = 0
        self._slots = 0
        self._fresh: list[tuple[str, Terms]] = []
        self._withdrawn: list[str] = []
        self._joined = False
        self._left = False

    def submit(self, name: str, terms: Terms) -> None:
        """This rank is ready to run an operation, of a name that it has not in flight."""
        for slot in self._slots_of.get(name, ()):
            if self._table[slot][1] == terms:
                self._slots |= 1 << slot
                return
        self._fresh.append((name, terms))

    def join(self) -> None:
        """This rank has no more data."""
        self._joined = True

    def withdraw(self, name: str) -> None:
        """This rank has waited for an operation (or JOIN) for too long."""
        self._withdrawn.append(name)

    def leave(self) -> None:
        """This rank will submit nothing more."""
        self._left = True

    def announce(self) -> Announcement | None:
        """What to tell the coordinator now, if there is anything and it may be told."""
        urgent = self._withdrawn or self._left
        if not urgent and (self._held or not (self._slots or self._fresh or self._joined)):
            return None
        said = Announcement(
            self._known, self._slots, tuple(self._fresh), tuple(self._withdrawn), self._joined, self._left
        )
        self._slots, self._fresh, self._withdrawn, self._joined, self._left = 0, [], [], False, False
        self._held = self._holds
        return said

    def hear(self, answer: Answer) -> list[tuple[str, Terms]]:
        """Learn from an answer; what is to be run now, in this order."""
        self._held = False
        run = [self._table[slot] for slot in bits(answer.slots)]
        for slot, name, terms in answer.fresh:
            run.append((name, terms))
            if slot >= 0:
                self._assign(slot, name, terms)
        return run

    def _assign(self, slot: int, name: str, terms: Terms) -> None:
        old = self._table.get(slot)
        if old is not None:
            siblings = self._slots_of[old[0]]
            siblings.remove(slot)
            if not siblings:
                del self._slots_of[old[0]]
            if self._slots >> slot & 1:  # gathered under a slot that is another's now
                self._slots ^= 1 << slot
                self._fresh.append(old)
        self._table[slot] = name, terms
        self._slots_of.setdefault(name, []).append(slot)
        self._known += 1
