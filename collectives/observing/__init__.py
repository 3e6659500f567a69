"""The comparison of the flight records of a world: for whom each rank waits, who makes the others wait and why, and,
after a failure, in which call the ranks differ.

Everything here is pure: records in, facts out. The record of one rank knows nothing of the others.
"""

from __future__ import annotations

from collectives.observing.charges import Call, Charges, Waits
from collectives.observing.comparing import ClockOffset, Comparison, DifferentWorlds
from collectives.observing.culprits import Culprit, Kind, Link, judge
from collectives.observing.failures import STOPPED, Difference, Explanation, Failure, Side, explain
from collectives.observing.snapshot import CallKind, Chain, CurrentCall, HostState, RankState, Snapshot
from collectives.observing.trace import trace_events

__all__ = [
    "STOPPED",
    "Call",
    "CallKind",
    "Chain",
    "Charges",
    "ClockOffset",
    "Comparison",
    "Culprit",
    "CurrentCall",
    "Difference",
    "DifferentWorlds",
    "Explanation",
    "Failure",
    "HostState",
    "Kind",
    "Link",
    "RankState",
    "Side",
    "Snapshot",
    "Waits",
    "explain",
    "judge",
    "trace_events",
]
