"""The actions that a plan asks the launcher for. Processes have numbers, which are never used again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Open:
    """Reach a host. The answer is `ready` or `lost`."""

    host: str


@dataclass(frozen=True)
class Serve:
    """Let a host serve the store. The answer is `FixedPlan.ready` or `lost`."""

    host: str


@dataclass(frozen=True)
class Close:
    """End the agent of a host, on which no process is left."""

    host: str


@dataclass(frozen=True)
class Begin:
    """Start the first world: process i is rank i, at the host and slot of `places[i]`. A host may answer by `ready`."""

    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Start:
    """Start a newcomer."""

    number: int
    host: str
    slot: int


@dataclass(frozen=True)
class Leave:
    """Ask processes to leave at their next boundary."""

    numbers: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Send:
    """Signal a process and everything that it has started: SIGKILL with `kill`, otherwise SIGTERM."""

    number: int
    kill: bool


@dataclass(frozen=True)
class Ask:
    """Ask the store whether the other ranks have gone on without these. If so, tell `FixedPlan.left_behind`."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """The ranks cannot be started: what these hosts were to do has failed, for `reason`, or '' if they were lost. No
    action follows."""

    hosts: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Finish:
    """End the job, and all processes that are left. No action follows.

    success  True if a rank has reached the end of the program
    reason   text for the report; '' if ranks failed or all went well
    number   the process that failed first; None if the job ends for another reason
    """

    success: bool
    reason: str = ""
    number: int | None = None


Action = Open | Serve | Close | Begin | Start | Leave | Send | Ask | Refuse | Finish
