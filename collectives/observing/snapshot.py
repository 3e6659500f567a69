"""A world at one moment: the call that each rank is in, for whom it waits, and who makes the others wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from collectives.flight import Calls, Description, Record
from collectives.observing.charges import Charges, behind
from collectives.observing.comparing import Comparison, Joint, host_of, hostname_of

RECENT: Final = 1.0
"""Seconds whose calls and bytes are counted, by default."""


@dataclass(frozen=True)
class CurrentCall:
    """A call that a rank is in.

    communicator   its title
    number         of the call in it
    seconds        since the call has begun
    waits_for      ranks
    """

    communicator: str
    number: int
    description: Description
    seconds: float
    waits_for: tuple[int, ...]


@dataclass(frozen=True)
class RankState:
    """One rank.

    host, hostname     the identity of its host, and the name for people
    alive              True if its process lived when the record was read or copied
    state              OPEN, CLOSED, FAILED or SAVED, as in collectives.flight
    calls              those that it is in; more than one where several threads make calls. The oldest first
    last               its newest call that has ended; None if it is not known
    seconds            since it has begun the first of `calls`, or since its last call has ended: it computes
    waits_for          ranks; `waits` is for how many seconds
    calls_per_second, bytes_per_second
                       over the last second, or the time that the record covers
    communicating      the part of this time in calls, 0 to 1
    waited, caused     seconds that it has waited, and that others have waited for it
    share              the part of all waiting that it causes, 0 to 1
    """

    rank: int
    host: str
    hostname: str
    pid: int
    alive: bool
    state: int
    calls: tuple[CurrentCall, ...]
    last: Description | None
    seconds: float
    waits_for: tuple[int, ...]
    waits: float
    calls_per_second: float
    bytes_per_second: float
    communicating: float
    waited: float
    caused: float
    share: float

    @property
    def call(self) -> CurrentCall | None:
        """The call that it is in; None if it computes."""
        return self.calls[0] if self.calls else None


@dataclass(frozen=True)
class HostState:
    """The ranks of one host, together. `waiting` and `alive` count ranks."""

    host: str
    hostname: str
    ranks: tuple[int, ...]
    alive: int
    waiting: int
    calls_per_second: float
    bytes_per_second: float
    communicating: float
    waited: float
    caused: float
    share: float


@dataclass(frozen=True)
class CallKind:
    """All calls with one description, of all ranks together.

    count          on one rank
    mean, longest  seconds of one call
    total          seconds of all calls on all ranks
    waiting        the part of this time in which ranks wait for others, 0 to 1
    """

    communicator: str
    description: Description
    count: int
    mean: float
    longest: float
    total: float
    waiting: float


@dataclass(frozen=True)
class Chain:
    """Ranks each of which waits for the next one. The last one does not wait, or, in a `circle`, for one before it."""

    ranks: tuple[int, ...]
    circle: bool

    @property
    def culprit(self) -> int:
        """The last one."""
        return self.ranks[-1]


@dataclass(frozen=True)
class Snapshot:
    """See the head of this file.

    ranks    in their order, those with a record
    missing  ranks without a record
    hosts    the worst first
    chain    of the rank that has waited longest; None if none waits
    slowest  kinds of calls, by the time that they take
    charges  see there
    """

    world: str
    size: int
    ranks: tuple[RankState, ...]
    missing: tuple[int, ...]
    hosts: tuple[HostState, ...]
    chain: Chain | None
    slowest: tuple[CallKind, ...]
    charges: Charges

    @classmethod
    def of(cls, records: Iterable[Record], recent: float = RECENT, since: int | None = None) -> Snapshot:
        """The snapshot of records of one world that were read at about the same time.

        recent  seconds over which calls and bytes are counted
        since   a moment of the first host's clock: what was before is not charged

        Raises DifferentWorlds.
        """
        world = Comparison(records)
        charges = Charges.of(world, since)
        current: dict[int, list[CurrentCall]] = {record.rank: [] for record in world.records}
        for joint in world.joints.values():
            for rank, call in _current(joint):
                current[rank].append(call)
        ranks = tuple(_state(world, record, current[record.rank], charges, recent) for record in world.records)
        return cls(
            world=str(world.records[0].facts["world"]) if world.records else "",
            size=world.size,
            ranks=ranks,
            missing=world.missing,
            hosts=_hosts(ranks),
            chain=chain_of(ranks),
            slowest=_slowest(world, charges),
            charges=charges,
        )


def _current(joint: Joint) -> Iterable[tuple[int, CurrentCall]]:
    """The calls of a communicator that have not ended, by rank."""
    world = joint.world
    for place, (number, began, description, late) in behind(joint).items():
        rank = joint.ranks[place]
        seconds = max(0, world.moments[rank] - began) / 1e9
        yield rank, CurrentCall(joint.title, number, description, seconds, late)


def _state(world: Comparison, record: Record, calls: list[CurrentCall], charges: Charges, recent: float) -> RankState:
    rank, moment = record.rank, world.moments[record.rank] - world.offset_of(record.rank)
    calls = sorted(calls, key=lambda call: -call.seconds)
    waiting = [call for call in calls if call.waits_for]
    ended, last = 0, None
    number, count, inside = 0.0, 0.0, 0.0
    for logged in record.calls.values():
        over = np.flatnonzero(logged.ended > 0)
        if len(over) and logged.ended[over[-1]] > ended:
            ended, last = int(logged.ended[over[-1]]), record.text(int(logged.texts[over[-1]]))
        more = _rates(record, logged, moment, recent)
        number, count, inside = number + more[0], count + more[1], inside + more[2]
    return RankState(
        rank=rank,
        host=host_of(record),
        hostname=hostname_of(record),
        pid=int(record.facts.get("pid", 0)),
        alive=record.runs,
        state=record.state,
        calls=tuple(calls),
        last=last,
        seconds=calls[0].seconds if calls else max(0, moment - (ended or moment)) / 1e9,
        waits_for=tuple(dict.fromkeys(other for call in waiting for other in call.waits_for)),
        waits=waiting[0].seconds if waiting else 0.0,
        calls_per_second=number,
        bytes_per_second=count,
        communicating=min(1.0, inside),
        waited=float(charges.waited[rank]),
        caused=float(charges.caused[rank]),
        share=float(charges.shares[rank]),
    )


def _rates(record: Record, calls: Calls, moment: int, recent: float) -> tuple[float, float, float]:
    """Calls and bytes a second of one communicator, and the part of the time in its calls."""
    if not len(calls.numbers):
        return 0.0, 0.0, 0.0
    since = moment - int(recent * 1e9)
    if int(calls.numbers[0]) > 1:
        since = max(since, int(calls.began[0]))
    span = max(1, moment - since)
    ended = np.where(calls.ended > 0, calls.ended, moment)
    inside = np.clip(np.minimum(ended, moment) - np.maximum(calls.began, since), 0, None).sum() / span
    texts, counts = np.unique(calls.texts[(calls.began >= since) & (calls.began <= moment)], return_counts=True)
    nbytes = sum(record.text(int(text)).nbytes * int(count) for text, count in zip(texts, counts, strict=True))
    return int(counts.sum()) * 1e9 / span, nbytes * 1e9 / span, float(inside)


def _hosts(ranks: Iterable[RankState]) -> tuple[HostState, ...]:
    by_host: dict[str, list[RankState]] = {}
    for rank in ranks:
        by_host.setdefault(rank.host, []).append(rank)
    found = [
        HostState(
            host=host,
            hostname=members[0].hostname,
            ranks=tuple(member.rank for member in members),
            alive=sum(member.alive for member in members),
            waiting=sum(bool(member.waits_for) for member in members),
            calls_per_second=sum(member.calls_per_second for member in members),
            bytes_per_second=sum(member.bytes_per_second for member in members),
            communicating=sum(member.communicating for member in members) / len(members),
            waited=sum(member.waited for member in members),
            caused=sum(member.caused for member in members),
            share=sum(member.share for member in members),
        )
        for host, members in by_host.items()
    ]
    return tuple(sorted(found, key=lambda host: -host.caused))


def chain_of(ranks: Iterable[RankState]) -> Chain | None:
    """The chain from the rank that has waited longest."""
    by_rank = {state.rank: state for state in ranks}
    waiting = [state for state in by_rank.values() if state.waits_for]
    if not waiting:
        return None
    state = max(waiting, key=lambda state: state.waits)
    chain = [state.rank]
    while True:
        awaited = [by_rank[other] for other in by_rank[chain[-1]].waits_for if other in by_rank]
        unknown = [other for other in by_rank[chain[-1]].waits_for if other not in by_rank]
        if unknown:  # nobody tells more of it
            return Chain((*chain, unknown[0]), circle=False)
        if not awaited:
            return Chain(tuple(chain), circle=False)
        idle = [other for other in awaited if not other.waits_for]
        chosen = max(idle or awaited, key=lambda other: (not other.alive, other.seconds))
        if chosen.rank in chain:
            return Chain(tuple(chain), circle=True)
        chain.append(chosen.rank)


def _slowest(world: Comparison, charges: Charges) -> tuple[CallKind, ...]:
    """All kinds of calls of which some have ended, the one that takes most time first."""
    waited: dict[tuple[str, str], float] = {}
    for call, seconds in charges.by_call().items():
        key = call.communicator, call.description.call
        waited[key] = waited.get(key, 0.0) + float(seconds.sum())
    found: dict[tuple[str, str], list[tuple[Description, int, float, float]]] = {}
    for joint in world.joints.values():
        for calls in joint.calls.values():
            record = world.by_rank[joint.ranks[calls.index]]
            over = calls.ended > 0
            texts, kinds = np.unique(calls.texts[over], return_inverse=True)
            seconds = (calls.ended[over] - calls.began[over]) / 1e9
            for kind, text in enumerate(texts.tolist()):
                mine, description = seconds[kinds == kind], record.text(text)
                one = description, len(mine), float(mine.sum()), float(mine.max())
                found.setdefault((joint.title, description.call), []).append(one)
    kinds_of_calls = []
    for (title, text), parts in found.items():
        total = sum(part[2] for part in parts)
        kinds_of_calls.append(
            CallKind(
                communicator=title,
                description=parts[0][0],
                count=max(part[1] for part in parts),
                mean=total / sum(part[1] for part in parts),
                longest=max(part[3] for part in parts),
                total=total,
                waiting=min(1.0, waited.get((title, text), 0.0) / total) if total else 0.0,
            )
        )
    return tuple(sorted(kinds_of_calls, key=lambda kind: -kind.total))
