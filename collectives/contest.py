"""Which of two plans is the faster one at present, where that depends on what cannot be known before.

How far cores lie from each other decides whether large arrays go faster by way of a stage, which takes two copies, or
by one copy of the kernel's, which takes longer where caches are near; and ranks may move between cores while a job
runs. So calls of one kind take turns with both plans from time to time, and go on with the one that was faster. All
ranks come to the same choice: it depends on how many such calls ended well, and on times that they agree on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from collectives.buffers import Array

_FIRST: Final = 4
"""Runs of the first round, in turn; of each plan the faster one counts, since what is first done is slow."""
_LATER: Final = 2
"""Runs of a later round."""
_SECONDS: Final = 0.25
"""How long the faster plan then stays, if that are some MIN_STAY to MAX_STAY runs."""
MIN_STAY: Final = 40
MAX_STAY: Final = 400


class Alike(NamedTuple):
    """Calls that are taken to be of one kind."""

    collective: str
    magnitude: int


class Contest:
    """Calls of one kind: two plans, 0 and 1, and which has the turn."""

    __slots__ = ("_left", "_winner", "times")

    def __init__(self) -> None:
        self.times: Array = np.full(2, np.inf)
        """The shortest run of each in this round; once that is over, of all ranks'."""
        self._left = _FIRST
        self._winner = -1

    @property
    def settled(self) -> bool:
        """False if the round is over: the ranks have to agree on the shortest times, and then to `settle`."""
        return self._winner >= 0 or self._left > 0

    @property
    def turn(self) -> int:
        """Which plan is the next to run."""
        return self._left % 2 if self._winner < 0 else self._winner

    def settle(self) -> None:
        """The times are agreed on."""
        self._winner = int(self.times[1] < self.times[0])
        self._left = int(min(max(_SECONDS / self.times[self._winner], MIN_STAY), MAX_STAY))

    def ran(self, seconds: float) -> None:
        """The plan that had the turn was run, on all ranks."""
        turn = self.turn
        self._left -= 1
        if self._winner < 0:
            self.times[turn] = min(self.times[turn], seconds)
        elif not self._left:
            self._left, self._winner = _LATER, -1
            self.times[:] = np.inf
