"""The sequence of signals that ends processes: a first one, SIGKILL after a grace time, then no more."""

from __future__ import annotations

import signal
import time
from collections import deque
from typing import Final

from collectives.launch.host import Host, Hosts

KILL_SECONDS: Final = 5.0
"""Seconds for a process to end after SIGKILL; after them it counts as hanging in the kernel."""


class Escalation:
    """A plan of signals. `grace`: seconds from the first to SIGKILL."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._steps: deque[tuple[float, signal.Signals | None]] = deque()  # when to send what; None: give up

    @property
    def planned(self) -> bool:
        """True while there is something to send or to give up."""
        return bool(self._steps)

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `apply`; infinite if no signal is planned."""
        return self._steps[0][0] if self._steps else float("inf")

    def begin(self, when: float, number: signal.Signals) -> None:
        """Send `number` at `when`, SIGKILL after the grace time, and give up after that. Replaces an earlier plan."""
        kill_at = when if number == signal.SIGKILL else when + self._grace
        self._steps = deque([(when, number), (kill_at, signal.SIGKILL), (kill_at + KILL_SECONDS, None)])

    def cancel(self) -> None:
        """Send nothing more."""
        self._steps.clear()

    def apply(self, processes: Host | Hosts) -> None:
        """Do what is due."""
        while self._steps and time.monotonic() >= self._steps[0][0]:
            _, number = self._steps.popleft()
            if number is None:
                processes.give_up()
            else:
                processes.signal_groups(number)
