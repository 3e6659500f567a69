"""The reason for which a world has failed or hangs, from the records of its ranks: the first call in which they differ,
the rank that others missed, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from collectives.flight import CLOSED, FAILED, OPEN, Description, Record
from collectives.observing.comparing import Joint
from collectives.observing.snapshot import CurrentCall, RankState, Snapshot

STOPPED: Final = "T"
"""The state of a stopped process, as in /proc/PID/stat."""


class Failure(StrEnum):
    """The kinds of failures.

    MISMATCH   the ranks' calls do not fit together
    KILLED     the process of a rank ended without closing
    LEFT       a rank closed its world while others needed it
    STOPPED    the process of a rank is stopped
    ABORTED    the program of a rank raised an exception, or aborted
    DEADLOCK   ranks wait for each other in a circle
    ABSENT     a rank lives and does not come to a call
    OTHER      another error, which the record holds
    NONE       nothing is wrong
    """

    MISMATCH = "different calls"
    KILLED = "killed"
    LEFT = "left"
    STOPPED = "stopped"
    ABORTED = "aborted"
    DEADLOCK = "deadlock"
    ABSENT = "absent"
    OTHER = "error"
    NONE = "nothing"


@dataclass(frozen=True)
class Side:
    """Ranks that made the same call where others made another one."""

    ranks: tuple[int, ...]
    description: Description


@dataclass(frozen=True)
class Difference:
    """The first call of a communicator in which its ranks differ. `absent` have not begun it."""

    communicator: str
    number: int
    sides: tuple[Side, ...]
    absent: tuple[int, ...]


@dataclass(frozen=True)
class Explanation:
    """See the head of this file.

    kind        of the failure
    ranks       those that caused it
    call        in which others waited for them; None if none did
    cause       error, text, rank and peer of the failure that the records hold; empty if they hold none
    first       the rank that noticed it first; None if none did
    difference  None if the calls do not differ
    snapshot    the last call of every rank, and for whom it waited
    """

    kind: Failure
    ranks: tuple[int, ...]
    call: CurrentCall | None
    cause: Mapping[str, Any]
    first: int | None
    difference: Difference | None
    snapshot: Snapshot


def explain(records: Iterable[Record], processes: Mapping[int, str] | None = None) -> Explanation:
    """Explain the records of a world. Raises DifferentWorlds.

    processes  by rank, the state of a process that lives, if it is known: STOPPED or another letter of /proc/PID/stat
    """
    snapshot = Snapshot.of(records)
    world, states = snapshot.charges.world, {state.rank: state for state in snapshot.ranks}
    failed = [record for record in world.records if record.state == FAILED and record.failure]
    first = min(failed, key=lambda record: record.ended_at + world.offset_of(record.rank), default=None)
    cause: Mapping[str, Any] = {} if first is None else first.failure
    difference = first_difference(world.joints.values())
    kind, ranks = _judged(snapshot, states, cause, difference, processes or {})
    return Explanation(
        kind=kind,
        ranks=ranks,
        call=_call_without(states.values(), ranks),
        cause=cause,
        first=None if first is None else first.rank,
        difference=difference,
        snapshot=snapshot,
    )


def _judged(
    snapshot: Snapshot,
    states: Mapping[int, RankState],
    cause: Mapping[str, Any],
    difference: Difference | None,
    processes: Mapping[int, str],
) -> tuple[Failure, tuple[int, ...]]:
    """The kind of the failure, and the ranks that caused it."""
    error, peer, rank = cause.get("error"), cause.get("peer"), cause.get("rank")
    if difference is not None and error in (None, "MismatchError", "DeadlineExceeded"):
        most = len(difference.sides[0].ranks)
        odd = [side for side in difference.sides if len(side.ranks) < most] or difference.sides  # no side is right
        return Failure.MISMATCH, tuple(sorted(rank for side in odd for rank in side.ranks))
    if error == "MismatchError":
        return Failure.MISMATCH, () if rank is None else (rank,)
    if error == "AbortedError":
        return Failure.ABORTED, () if rank is None else (rank,)
    chain = snapshot.chain
    if error in (None, "DeadlineExceeded") and chain is not None and chain.circle:
        return Failure.DEADLOCK, chain.ranks
    if error in ("PeerLost", "DeadlineExceeded") and peer is not None:
        return _fate(states.get(peer), processes.get(peer), lost=error == "PeerLost"), (peer,)
    if error is not None:
        return Failure.OTHER, () if rank is None else (rank,)
    if states and all(not state.alive and state.state == OPEN for state in states.values()):
        return Failure.KILLED, tuple(states)
    if chain is not None:
        return _fate(states.get(chain.culprit), processes.get(chain.culprit), lost=False), (chain.culprit,)
    killed = tuple(rank for rank, state in states.items() if not state.alive and state.state == OPEN)
    return (Failure.KILLED, killed) if killed else (Failure.NONE, ())


def _fate(state: RankState | None, process: str | None, *, lost: bool) -> Failure:
    """The end of a rank that others missed; `lost` if they took it for dead."""
    if state is None:  # no record: the others' word counts
        return Failure.KILLED if lost else Failure.ABSENT
    if state.state == CLOSED:
        return Failure.LEFT
    if not state.alive and state.state == OPEN:
        return Failure.KILLED
    if process == STOPPED or (lost and state.alive):
        return Failure.STOPPED
    return Failure.ABSENT


def _call_without(states: Iterable[RankState], ranks: tuple[int, ...]) -> CurrentCall | None:
    """The call in which others have waited longest for one of these ranks."""
    found = [call for state in states for call in state.calls if set(call.waits_for) & set(ranks)]
    return max(found, key=lambda call: call.seconds, default=None)


def first_difference(joints: Iterable[Joint]) -> Difference | None:
    """The first call, in time, in which the members of a communicator differ."""
    found = [
        (began, difference) for joint in joints if not joint.is_messages for began, difference in _differences(joint)
    ]
    return min(found, key=lambda one: one[0], default=(0, None))[1]


def _differences(joint: Joint) -> Iterable[tuple[int, Difference]]:
    """The first difference of a communicator, with the moment at which the first member made the call; none if there
    is none."""
    if len(joint.known) < 2:
        return
    world = joint.world
    begun = [joint.calls[place] for place in joint.known]
    numbers = np.unique(np.concatenate([calls.numbers for calls in begun]))
    digests = np.zeros((len(numbers), len(begun)), np.int64)
    for column, (place, calls) in enumerate(zip(joint.known, begun, strict=True)):
        record = world.by_rank[joint.ranks[place]]
        texts, kinds = np.unique(calls.texts, return_inverse=True)
        known = np.array([record.text(int(text)).digest for text in texts], np.int64)
        if len(texts):
            digests[np.searchsorted(numbers, calls.numbers), column] = known[kinds]
    highest = digests.max(axis=1, initial=0)
    differs = ((digests != highest[:, None]) & (digests != 0)).any(axis=1)  # 0: not begun, or not kept
    if not differs.any():
        return
    row = int(differs.argmax())
    number = int(numbers[row])
    sides: dict[int, list[int]] = {}
    texts_of: dict[int, Description] = {}
    moments = []
    for column, (place, calls) in enumerate(zip(joint.known, begun, strict=True)):
        digest, rank = int(digests[row, column]), joint.ranks[place]
        if digest:
            at = int(number - calls.numbers[0])
            sides.setdefault(digest, []).append(rank)
            texts_of[digest] = world.by_rank[rank].text(int(calls.texts[at]))
            moments.append(int(calls.began[at]) + world.offset_of(rank))
    absent = tuple(joint.ranks[place] for place, calls in zip(joint.known, begun, strict=True) if calls.newest < number)
    ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
    made = tuple(Side(tuple(ranks), texts_of[digest]) for digest, ranks in ordered)
    yield min(moments), Difference(joint.title, number, made, absent)
