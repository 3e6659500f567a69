"""The state machine of a job whose hosts and ranks are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from collectives.scaling.actions import Action, Ask, Begin, Finish, Open, Refuse, Serve

OTHERS_SECONDS: Final = 2.0
"""Time, after one host could not be reached, for the others to tell what is wrong with them."""

REPORT_SECONDS: Final = 1.5
"""Time for ranks to notice a failure, or that the others have gone on without them, and to print their errors."""

MOST_AT_ONCE: Final = 64
"""Number of hosts that are being reached at the same time."""

_NEVER: Final = float("inf")
_LATE: Final = {"reach": "was not reached", "serve": "did not serve the store", "start": "did not start its ranks"}


class FixedPlan:
    """Decides what a job does whose ranks all start, or none. It is used as `Plan`.

        ready, lost     the answers to Open, Serve and Begin, from each host; a host can be lost later
        ended           a rank has ended
        left_behind     the answer to Ask: the others have gone on without the ranks that run

    The first failure of a rank ends the job. With `keep_going` the others go on, until all have ended or were left
    behind; the job ends well if any of them does.

    hosts          the ranks of each. They are called by their numbers, and the first serves the store
    start_seconds  time until the ranks must have started on all hosts
    """

    def __init__(
        self, hosts: Sequence[Sequence[int]], now: float, *, start_seconds: float, keep_going: bool = False
    ) -> None:
        self._ranks = {str(number): list(ranks) for number, ranks in enumerate(hosts)}
        self._start_seconds = start_seconds
        self._keep_going = keep_going
        self._step = "reach"  # then "serve", "start" and "run"
        self._closed = list(self._ranks)
        self._waiting = set(self._ranks)
        self._lost: set[str] = set()
        self._until = now + start_seconds
        self._running = {rank for ranks in self._ranks.values() for rank in ranks}
        self._first_failed: int | None = None
        self._any_ended_well = False
        self._asks = False
        self._over = False

    # Events

    def ready(self, host: str) -> None:
        """A host was reached, or serves the store, or has started its ranks."""
        self._waiting.discard(host)

    def lost(self, host: str, now: float) -> None:
        """A host could not do that, or cannot be reached any more: its ranks are lost with it."""
        self._waiting.discard(host)
        self._lost.add(host)
        if self._step != "run":
            self._until = min(self._until, now + OTHERS_SECONDS)
            return
        for rank in self._ranks[host]:
            self.ended(rank, 1, now)

    def ended(self, number: int, status: int, now: float) -> None:
        """A rank has ended with this status, 0 for success."""
        if number in self._running:
            self._running.remove(number)
            self._asks = True
            if status == 0:
                self._any_ended_well = True
            elif self._first_failed is None:
                self._first_failed = number

    def left_behind(self, now: float) -> None:
        """The other ranks have ended, and had gone on without those that run."""
        self._until = min(self._until, now + REPORT_SECONDS)

    # Decisions

    @property
    def wake_at(self) -> float:
        """When to call `decide` if nothing happens before; infinite if never."""
        return _NEVER if self._over else self._until

    def decide(self, now: float) -> list[Action]:
        """The actions that are due now."""
        if self._over:
            return []
        if self._first_failed is not None and not self._keep_going:
            return self._end(Finish(False, "", self._first_failed))
        if self._step != "run":
            return self._go_on(now)
        if not self._running or now >= self._until:
            success = self._any_ended_well
            return self._end(Finish(success, "", None if success else self._first_failed))
        asks, self._asks = self._asks and self._keep_going, False
        return [Ask(tuple(sorted(self._running)))] if asks else []

    def _go_on(self, now: float) -> list[Action]:
        """The next step of the start, once all hosts have done the last one."""
        if self._waiting and now < self._until:
            busy = len(self._waiting) - len(self._closed)
            opened, self._closed = self._closed[: MOST_AT_ONCE - busy], self._closed[MOST_AT_ONCE - busy :]
            return [Open(host) for host in opened]
        if self._lost:
            return self._end(Refuse(tuple(sorted(self._lost, key=int))))
        if self._waiting:
            reason = f"{_LATE[self._step]} within {self._start_seconds:g} s"
            return self._end(Refuse(tuple(sorted(self._waiting, key=int)), reason))
        if self._step == "reach":
            self._step, self._waiting = "serve", {"0"}
            return [Serve("0")]
        if self._step == "serve":
            self._step, self._waiting = "start", set(self._ranks)
            places = [(rank, host, slot) for host, ranks in self._ranks.items() for slot, rank in enumerate(ranks)]
            return [Begin(tuple((host, slot) for _, host, slot in sorted(places)))]
        self._step, self._until = "run", _NEVER
        return self.decide(now)

    def _end(self, action: Action) -> list[Action]:
        self._over = True
        return [action]
