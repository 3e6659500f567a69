"""The decision on the survivors: a pure function of a rank's knowledge, as the quorum of torchft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Blame:
    """The reason why a failure is blamed on a rank, and the seconds for which the rank is awaited all the same."""

    reason: str
    patience: float


@dataclass(frozen=True)
class Knowledge:
    """The knowledge of one rank about the group.

    here     ranks that have arrived
    lost     ranks that certainly cannot continue, with reasons
    blamed   ranks that the failure is blamed on; they may have arrived since
    """

    size: int
    here: frozenset[int]
    lost: Mapping[int, str]
    blamed: Mapping[int, Blame]


@dataclass(frozen=True)
class Decision:
    """The survivors, ascending, and the other ranks with the reasons why they are left out."""

    survivors: tuple[int, ...]
    left_out: Mapping[int, str]


def decide_survivors(known: Knowledge, waited: float, timeout: float) -> tuple[Decision | None, tuple[int, ...]]:
    """The decision and no ranks; or None and the ranks to wait for.

    waited    seconds that this rank has waited
    timeout   the longest wait for a rank; a blamed rank may have less patience

    A rank that has arrived survives, unless it was lost since.
    """
    left_out = {}
    awaited = []
    for rank in range(known.size):
        if rank in known.lost:
            left_out[rank] = known.lost[rank]
        elif rank in known.here:
            continue
        elif rank in known.blamed and waited >= min(known.blamed[rank].patience, timeout):
            left_out[rank] = known.blamed[rank].reason
        elif waited >= timeout:
            left_out[rank] = f"it did not come within {timeout:g} s"
        else:
            awaited.append(rank)
    if awaited:
        return None, tuple(awaited)
    return Decision(tuple(rank for rank in range(known.size) if rank not in left_out), left_out), ()
