"""Which of two plans is the faster one at present, where that depends on what cannot be known before.

How far cores lie from each other decides whether large arrays go faster by way of a stage, which takes two copies, or
by one copy of the kernel's, which takes longer where caches are near; and ranks may move between cores while a job
runs. So calls of one kind try both plans from time to time, and go on with the one that was faster. All ranks come to
the same choice: it depends on how many such calls ended well, and on times that they agree on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from collectives.buffers import Array

COUNTED: Final = 2
"""Runs that count in a trial; the faster one does."""
_SECONDS: Final = 0.25
"""How long the faster plan then stays, if that are some MIN_STAY to MAX_STAY runs; and at least until the slower one's
next trial costs no more than COST of the time."""
MIN_STAY: Final = 40
MAX_STAY: Final = 4000
COST: Final = 0.05
_CLEAR: Final = 1.2
"""How many times as fast the winner must be to stay twice as long as after the round before, if it won that too: the
cores lie where they lay."""
LONGER: Final = 16
"""How many times as long it stays at most."""
_SLOWEST: Final = 4.0
"""Times as slow as the faster plan that the slower one is taken to be at most: it may have been interrupted."""


class Alike(NamedTuple):
    """Calls that are taken to be of one kind."""

    collective: str
    magnitude: int


class Contest:
    """Calls of one kind: two plans, 0 and 1, and which is the next to run."""

    __slots__ = ("_longer", "_runs", "_trial", "_tried", "stay", "times", "winner")

    def __init__(self) -> None:
        self.stay = 0
        """Runs for which the winner of the last round stays; during a round 0."""
        self.winner = 0
        self.times: Array = np.full(2, np.inf)
        """The shortest run of each that counts in this round; once that is over, of all ranks'."""
        self._trial = 0
        self._runs = 0
        self._tried = [0, 0]
        self._longer = 0

    @property
    def turn(self) -> int:
        """Which plan is the next to run."""
        return self.winner if self.stay else self._trial

    @property
    def over(self) -> bool:
        """True if the round is: the ranks have to agree on the shortest times, and then to `settle`."""
        return self._trial == 2

    def tried(self, seconds: float, warm_up: int) -> None:
        """The plan that had the turn in a round was run, on all ranks. It takes `warm_up` runs to come to its usual
        speed."""
        self._runs += 1
        if self._runs > warm_up:
            self.times[self._trial] = min(self.times[self._trial], seconds)
        if self._runs == warm_up + COUNTED:
            self._tried[self._trial] = self._runs
            self._runs = 0
            self._trial += 1

    def settle(self) -> None:
        """The times are agreed on."""
        before, self.winner = self.winner, int(self.times[1] < self.times[0])
        shortest, other = self.times[self.winner], self.times[1 - self.winner]
        clear = self.winner == before and other > _CLEAR * shortest
        self._longer = min(max(1, 2 * self._longer), LONGER) if clear else 1
        wasted = (min(other / shortest, _SLOWEST) - 1) * self._tried[1 - self.winner]
        self.stay = int(max(min(max(_SECONDS / shortest, MIN_STAY), MAX_STAY), wasted / COST)) * self._longer
        self._trial = 0
        self.times[:] = np.inf
