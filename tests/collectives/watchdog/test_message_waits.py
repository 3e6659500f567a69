"""The waits for messages in the flight record."""

from __future__ import annotations

from typing import Any, cast

from collectives.execution import CallPositions
from collectives.execution.positions import CallPosition
from collectives.failure import AbortSignal
from collectives.watchdog.message_waits import MessageWaits
from transports.errors import DeadlineExceeded, RondeError


class Noted:
    """A log, its caller, and the source of a position."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.begun = 0

    def notes(self, *_: Any) -> Noted:
        return self

    def begin(self, *_: Any) -> int:
        self.begun += 1
        return self.begun

    def end(self, entry: int) -> None:
        self.ends.append(entry)

    def position(self) -> CallPosition:
        return CallPosition(cast(Any, self), 0, 5, "a call to receive", (1,), 1)


class Signal:
    failure: RondeError | None = None


def test_a_wait_that_the_failure_ended_is_not_noted_as_over() -> None:
    noted, positions, signal = Noted(), CallPositions(), Signal()
    waits = MessageWaits(positions, cast(AbortSignal, signal))
    for failure, ends in ((None, [1]), (DeadlineExceeded("late", rank=0), [1])):
        positions.add(noted)
        waits.look()
        signal.failure = failure
        positions.remove(noted)
        waits.look()
        assert noted.ends == ends
    assert noted.begun == 2
