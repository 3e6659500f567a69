"""The terms of an elastic job: how many ranks, and how long to wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from collectives.scaling.slots import Cooldown

SETTLE_SECONDS: Final = 2.0
"""Time for the change of ranks to be known in which a process has left that has already ended."""


@dataclass(frozen=True)
class Terms:
    """Times in seconds.

    minimum        number of ranks below which the job waits for slots
    maximum        number of ranks that are never exceeded; None for no limit
    first          number of ranks to begin with, if there are slots; None for as many as there may be
    spares         processes beyond `maximum` that wait to replace a rank
    patience       time to wait for `minimum` slots, at the start and later
    changes        number of changes of the ranks after which the job ends; None for no limit
    cooldown       rests of a slot after faults
    leave_timeout  time for processes that are asked to leave; after it they get SIGTERM
    grace          time between SIGTERM and SIGKILL
    """

    minimum: int
    maximum: int | None = None
    first: int | None = None
    spares: int = 0
    patience: float = 600.0
    changes: int | None = None
    cooldown: Cooldown = field(default_factory=Cooldown)
    leave_timeout: float = 60.0
    grace: float = 5.0
