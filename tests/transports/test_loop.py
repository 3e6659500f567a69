"""The progress loop: how long its thread sleeps."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest

from tests.transports.groups import groups
from transports.cores import Cores
from transports.driver import Awaited
from transports.loop import FIRST_SLEEP, LONGEST_SLEEP, MANY_RANKS, Loop


class Nothing:
    """Links on which nothing arrives."""

    def sweep(self, but: Collection[object] = ()) -> bool:
        return False

    def tick(self, now: float) -> float:
        return now + 1.0

    def crashed(self, error: BaseException) -> None:
        raise error


class Bell:
    """A doorbell that notes the sleeps that are asked for, and ends them at once."""

    sure = False

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    def arm(self, *, by_descriptor: bool) -> bool:
        return True

    def disarm(self) -> None:
        """Nobody rings."""

    def ring(self) -> None:
        """Nobody sleeps."""

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


class Slept(Awaited):
    """It has come after so many sleeps."""

    def __init__(self, bell: Bell, times: int) -> None:
        self._bell = bell
        self._times = times

    @property
    def done(self) -> bool:
        return len(self._bell.sleeps) >= self._times

    def check_possible(self) -> None:
        """It is."""


@pytest.mark.parametrize(("ranks", "longest"), [(2, 1.0), (MANY_RANKS, 1.0), (10 * MANY_RANKS, 10.0)])
def test_many_ranks_of_a_host_sleep_longer(ranks: int, longest: float) -> None:
    bell, loop = Bell(), Loop(Nothing(), Cores(groups(ranks)[0], affinity=False))
    loop.use(bell)
    with loop.driver.lock:
        assert loop.drive(Slept(bell, 16), time.monotonic() + 1000.0)
    assert bell.sleeps[:3] == [FIRST_SLEEP, 2 * FIRST_SLEEP, 4 * FIRST_SLEEP]
    assert max(bell.sleeps) == bell.sleeps[-1] == pytest.approx(longest * LONGEST_SLEEP)
