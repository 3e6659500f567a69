"""The slots of hosts, with faults and rests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_NEVER: Final = float("inf")


@dataclass(frozen=True)
class Cooldown:
    """The rests of a slot in seconds: `shortest` after the first fault, then twice the one before, at most `longest`.
    A fault after a rest of `longest` is the last: the slot is not used again. Faults are forgotten when a process has
    been a rank for `longest`: the time before it is in a world does not count."""

    shortest: float = 1.0
    longest: float = 64.0


@dataclass
class Slot:
    """A place for one process.

    number    the process that uses it; None if it is free
    since     when that process became a rank; infinite before that
    rest      the last rest; 0 without a fault
    rests_to  end of that rest; infinite if the slot is given up
    """

    number: int | None = None
    since: float = _NEVER
    rest: float = 0.0
    rests_to: float = 0.0

    @property
    def given_up(self) -> bool:
        """True if it is not used again."""
        return self.rests_to == _NEVER

    def take(self, number: int) -> None:
        """A process uses it."""
        self.number, self.since = number, _NEVER

    def joined(self, now: float) -> None:
        """Its process is a rank."""
        self.since = min(self.since, now)

    def fail(self, now: float, cooldown: Cooldown) -> None:
        """Count a fault, and rest."""
        if self.number is not None and now - self.since >= cooldown.longest:
            self.rest = 0.0
        if self.rest >= cooldown.longest:
            self.rests_to = _NEVER
        else:
            self.rest = min(cooldown.longest, 2 * self.rest or cooldown.shortest)
            self.rests_to = max(now + self.rest, self.rests_to)


@dataclass
class Host:
    """A host and its slots.

    offered   number of slots that discovery gives it now; 0 if it is not named
    state     'closed', 'opening' or 'ready'
    retry_at  when to open it again after a failure
    drained   why it is not used, until discovery stops to name it; '' if it is used
    """

    name: str
    offered: int = 0
    state: str = "closed"
    retry_at: float = 0.0
    drained: str = ""
    slots: list[Slot] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """The number of slots that may have processes, those that rest included. 0 once all are given up."""
        return 0 if self.drained or all(slot.given_up for slot in self.slots[: self.offered]) else self.offered

    def offer(self, count: int) -> None:
        """Discovery gives it so many slots."""
        self.offered = count
        self.slots += [Slot() for _ in range(count - len(self.slots))]
        if not count:
            self.drained = ""

    def fail(self, now: float, cooldown: Cooldown) -> None:
        """The host has failed, and no process is left. That is a fault of the slots that may be used; one that its
        process was to leave has none."""
        usable = self.slots[: self.usable]
        for slot in usable:
            slot.fail(now, cooldown)
        for slot in self.slots:
            slot.number = None
        self.state = "closed"
        self.retry_at = min((slot.rests_to for slot in usable), default=now)

    def free(self, now: float) -> list[int]:
        """The slots that can get a process now."""
        if self.state != "ready":
            return []
        return [i for i, slot in enumerate(self.slots[: self.usable]) if slot.number is None and slot.rests_to <= now]
