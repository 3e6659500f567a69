"""The records of a world side by side: which ranks share a communicator, and when each of them began and ended the same
call, on one clock.

Ranks of one host share a clock. Clocks of different hosts are compared by the calls themselves: a call in which every
rank waits for every other one ends nearly at the same time on all of them, and nowhere before it has begun everywhere.
So the median difference of ends is the offset, within the bounds that the begins give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.flight import BATCH, BATCHES, MESSAGES, Calls, Description, Record
from collectives.schedule import SPECS

MUTUAL: Final = frozenset(name for name, spec in SPECS.items() if not spec.rooted) - {"scan", "exscan"} | {BATCH}
"""Collectives in which every rank waits for every other one."""
GIVING: Final = frozenset({"broadcast", "scatter"})
"""Collectives in which all ranks wait for the root."""
TAKING: Final = frozenset({"reduce", "gather"})
"""Collectives in which the root waits for all ranks."""
PREFIXES: Final = frozenset({"scan", "exscan"})
"""Collectives in which a rank waits for those before it."""
NEVER: Final = np.iinfo(np.int64).max
UNKNOWN: Final = -1
"""The rank of a member without a record."""
_NEEDLESS: Final = 1_000_000_000
"""Error of an offset that only the dates tell."""


class DifferentWorlds(ValueError):
    """The records are not those of one world, or two are of one rank."""


class ClockOffset(NamedTuple):
    """The clock of a host plus `nanoseconds` is the clock of the first rank's host, within `error`."""

    nanoseconds: int
    error: int


class Rows(NamedTuple):
    """Calls that all known members of a communicator have begun: one row a call, one column a member.

    numbers        of the calls
    began, ended   on the common clock; `ended` is NEVER where the call has not ended
    kinds          index of each call's description in `descriptions`
    """

    numbers: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    kinds: NDArray[np.int64]
    descriptions: tuple[Description, ...]


@dataclass(frozen=True)
class Joint:
    """A communicator, as the records of its ranks have it.

    name     the same on all its ranks; `label` is for people
    size     number of its ranks
    ranks    the rank of each member in the world; UNKNOWN without a record
    calls    of the members that have a record, by their place in `ranks`
    """

    name: str
    label: str
    size: int
    ranks: tuple[int, ...]
    calls: Mapping[int, Calls]
    world: Comparison

    @property
    def is_messages(self) -> bool:
        """True for the log of the messages between two ranks of a communicator. Each rank numbers its own, and a
        description has as its root the other rank of the message, in the world."""
        return self.name.endswith(MESSAGES)

    @property
    def title(self) -> str:
        """A name for people."""
        context, first = _parts(self.name)
        title = f"communicator {context} of rank {first}" if context else "world"
        return f"{title}, {self.label}" if self.label else title

    @cached_property
    def known(self) -> tuple[int, ...]:
        """The places of members with a record."""
        return tuple(sorted(self.calls))

    @cached_property
    def rows(self) -> Rows:
        """The calls that all known members have begun."""
        known = [self.calls[place] for place in self.known]
        first = max((int(calls.numbers[0]) if len(calls.numbers) else calls.newest + 1) for calls in known)
        last = min(calls.newest for calls in known)
        numbers = np.arange(first, last + 1, dtype=np.int64)
        began = np.empty((len(numbers), len(known)), np.int64)
        ended = np.empty_like(began)
        for column, (place, calls) in enumerate(zip(self.known, known, strict=True)):
            if len(numbers):
                part = slice(first - int(calls.numbers[0]), last + 1 - int(calls.numbers[0]))
                offset = self.world.offset_of(self.ranks[place])
                began[:, column] = calls.began[part] + offset
                ended[:, column] = np.where(calls.ended[part] > 0, calls.ended[part] + offset, NEVER)
        kinds, descriptions = self._described(numbers)
        return Rows(numbers, began, ended, kinds, descriptions)

    def _described(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[Description, ...]]:
        """The descriptions of calls, as the first member has them."""
        if not len(numbers):
            return np.zeros(0, np.int64), ()
        place = self.known[0]
        calls, record = self.calls[place], self.world.by_rank[self.ranks[place]]
        texts, kinds = np.unique(calls.texts[numbers - calls.numbers[0]], return_inverse=True)
        return kinds.astype(np.int64), tuple(record.text(int(text)) for text in texts)


class Comparison:
    """The records of one world, compared.

    records   in the order of ranks
    by_rank   the same by rank
    size      ranks of the world, those without a record included
    offsets   of the hosts' clocks, by host
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """Raises DifferentWorlds."""
        self.records = tuple(sorted(records, key=lambda record: record.rank))
        self.by_rank = {record.rank: record for record in self.records}
        named = {str(record.facts["world"]) for record in self.records}
        if len(named) > 1:
            raise DifferentWorlds(f"the records are those of several worlds: {', '.join(sorted(named))}")
        if len(self.by_rank) < len(self.records):
            raise DifferentWorlds("two records are those of one rank")
        self.size = max((record.size for record in self.records), default=0)
        self.hosts: dict[str, list[int]] = {}
        """The ranks with records, by host."""
        for record in self.records:
            self.hosts.setdefault(host_of(record), []).append(record.rank)
        self.offsets: dict[str, ClockOffset] = {}
        self.joints = self._joints()
        """The communicators by name."""
        self.offsets.update(_offsets(self))
        for joint in self.joints.values():  # they were read on the clocks of their hosts
            joint.__dict__.pop("rows", None)

    def offset_of(self, rank: int) -> int:
        """Nanoseconds that a rank's clock lacks to the common one."""
        found = self.offsets.get(host_of(self.by_rank[rank]))
        return 0 if found is None else found.nanoseconds

    @cached_property
    def moments(self) -> dict[int, int]:
        """The common clock when each rank gave its last sign: when its record was read if it lives, else its last
        entry."""
        return {record.rank: _last_sign(record) + self.offset_of(record.rank) for record in self.records}

    @property
    def error(self) -> int:
        """Nanoseconds by which clocks of different hosts may differ."""
        return max((offset.error for offset in self.offsets.values()), default=0)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a record."""
        return tuple(rank for rank in range(self.size) if rank not in self.by_rank)

    def _joints(self) -> dict[str, Joint]:
        found: dict[str, dict[int, tuple[int, Calls]]] = {}
        for record in self.records:
            for name, calls in record.calls.items():
                found.setdefault(name, {})[calls.index] = record.rank, calls
        joints = {}
        for name, members in found.items():
            size, label = next((calls.size, calls.label) for _, calls in members.values())
            known = {**found.get(base_of(name), {}), **members}
            whole = size == self.size and not _parts(name)[0]
            ranks = tuple(known[place][0] if place in known else place if whole else UNKNOWN for place in range(size))
            by_place = {place: calls for place, (_, calls) in members.items()}
            joints[name] = Joint(name, label, size, ranks, by_place, self)
        return joints


def base_of(name: str) -> str:
    """The name of the communicator to which a log belongs."""
    return name.removesuffix(MESSAGES).removesuffix(BATCHES)


def _parts(name: str) -> tuple[int, int]:
    """The context of a communicator, 0 for the world, and its first rank: those that its name has."""
    tag, first = name.split("-")[:2]
    return int(tag, 16) >> 32, int(first)


def host_of(record: Record) -> str:
    """The host of a rank: a kernel, whose name others may share."""
    return str(record.facts.get("host", ""))


def hostname_of(record: Record) -> str:
    """The name of the host for people."""
    return str(record.facts.get("hostname") or record.facts.get("host", ""))


def awaited(description: Description, ranks: Sequence[int], place: int, behind: NDArray[np.bool_]) -> tuple[int, ...]:
    """The ranks for which the member at `place` waits in a call. `behind` tells of each member if it has not begun the
    call."""
    name, root = description.collective, description.root
    if name in GIVING:
        places = [root] if place != root and behind[root] else []
    elif name in TAKING and place != root:
        places = []
    elif name in PREFIXES:
        places = np.flatnonzero(behind[:place]).tolist()
    else:
        places = np.flatnonzero(behind).tolist()
    return tuple(ranks[other] for other in places if other != place)


def arrivals(name: str, root: int, began: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For calls of one collective, all of whose members have begun (one row a call): the begin of the last member that
    each member waits for, and the column of that member. A member that waits for none has its own. `root` is a column,
    or negative if it is not known."""
    columns = np.arange(began.shape[1])
    own = np.broadcast_to(columns, began.shape)
    if name in GIVING or (name in TAKING and root < 0):
        if root < 0:
            return began, own
        last = np.maximum(began, began[:, root : root + 1])
        return last, np.where(last > began, root, own)
    if name in PREFIXES:
        last = np.maximum.accumulate(began, axis=1)
        return last, np.maximum.accumulate(np.where(last == began, own, 0), axis=1)
    latest = began.argmax(axis=1)[:, None]
    last = np.take_along_axis(began, latest, axis=1)
    if name in TAKING:
        at_root = own == root
        return np.where(at_root, last, began), np.where(at_root, latest, own)
    return np.broadcast_to(last, began.shape), np.broadcast_to(latest, began.shape)


def _last_sign(record: Record) -> int:
    if record.alive:
        return record.read_at
    stamps = [
        int(column.max()) for calls in record.calls.values() for column in (calls.began, calls.ended) if len(column)
    ]
    return max([record.ended_at, *stamps])


def _offsets(world: Comparison) -> dict[str, ClockOffset]:
    """The offsets of all hosts. Hosts are joined to those whose clock is known, by a communicator that they share, the
    largest one first."""
    found = {host: ClockOffset(0, 0) for host in list(world.hosts)[:1]}
    joints = sorted((joint for joint in world.joints.values() if not joint.is_messages), key=lambda joint: -joint.size)
    while len(found) < len(world.hosts):
        more: dict[str, ClockOffset] = {}
        for joint in joints:
            hosts = [host_of(world.by_rank[joint.ranks[place]]) for place in joint.known]
            known = [host for host in hosts if host in found]
            if known and len(known) < len(hosts):
                base = min(known, key=lambda host: found[host].error)
                more = {
                    host: ClockOffset(found[base].nanoseconds + one.nanoseconds, found[base].error + one.error)
                    for host, one in _compared(joint, hosts, base).items()
                    if host not in found
                }
            if more:
                break
        if not more:
            host = next(host for host in world.hosts if host not in found)
            more = {host: _by_date(world, next(iter(world.hosts)), host)}
        found.update(more)
    return found


def _compared(joint: Joint, hosts: Sequence[str], base: str) -> dict[str, ClockOffset]:
    """Nanoseconds that the clock of each host lacks to that of `base`, by the calls of a communicator whose members are
    on `hosts`; empty if there are no such calls."""
    rows = joint.rows
    mutual = np.array([description.collective in MUTUAL for description in rows.descriptions], bool)
    chosen = (rows.ended < NEVER).all(axis=1)
    if len(mutual):
        chosen &= mutual[rows.kinds]
    if not chosen.any():
        return {}
    columns: dict[str, list[int]] = {}
    for column, host in enumerate(hosts):
        columns.setdefault(host, []).append(column)
    began, ended = rows.began[chosen], rows.ended[chosen]
    here, found = (began[:, columns[base]].max(axis=1), ended[:, columns[base]].min(axis=1)), {}
    for host, there in columns.items():
        last, first = began[:, there].max(axis=1), ended[:, there].min(axis=1)
        low, high = int((here[0] - first).max()), int((here[1] - last).min())
        ends = here[1] - first
        middle = int(np.median(ends))
        spread = int(np.median(np.abs(ends - middle)))
        if low <= high:
            found[host] = ClockOffset(min(max(middle, low), high), min(max(spread, 1), high - low + 1))
        else:
            found[host] = ClockOffset(middle, max(spread, low - high))
    return found


def _by_date(world: Comparison, one: str, two: str) -> ClockOffset:
    """The same by the dates of both hosts: good enough to tell what was long before."""
    zeros: list[Any] = []
    for host in (one, two):
        facts = world.by_rank[world.hosts[host][0]].facts
        zeros.append(float(facts.get("date", 0.0)) * 1e9 - int(facts.get("clock", 0)))
    return ClockOffset(int(zeros[1] - zeros[0]), _NEEDLESS)
