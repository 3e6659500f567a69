"""The waits of a world, each charged to the rank that is waited for.

A rank that has begun a call waits until the last rank that it needs has begun it; this time is charged to that rank. If
that rank was late because it waited itself meanwhile, in a call of another communicator, the time goes on to the rank
that it waited for: at each moment the one that computed is charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectives.flight import OPEN, Description
from collectives.observing.comparing import (
    NEVER,
    UNKNOWN,
    Comparison,
    Joint,
    Rows,
    arrivals,
    awaited,
    base_of,
    hostname_of,
)

_LONGEST_CHAIN: Final = 64
"""Ranks that wait for each other in turn, through which a wait is followed."""


@dataclass(frozen=True)
class Call:
    """One kind of calls of a communicator."""

    communicator: str
    description: Description


@dataclass(frozen=True)
class Waits:
    """Waits, one an element of each array.

    rank          that waits
    culprit       the rank charged with it
    late          the rank that came last to the call, which may have waited for the culprit itself
    began, ended  on the common clock
    weight        the part that is charged: 1, or less where several ranks are waited for at once
    call          index into the kinds of calls
    number        of the call in its communicator
    """

    rank: NDArray[np.int64]
    culprit: NDArray[np.int64]
    late: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    weight: NDArray[np.float64]
    call: NDArray[np.int64]
    number: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The seconds that are charged of each."""
        return np.asarray((self.ended - self.began) * self.weight / 1e9)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Waits:
        """Some of them."""
        return Waits(*(column[chosen] for column in self._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    @classmethod
    def all_of(cls, parts: Sequence[Waits]) -> Waits:
        """Those of all parts."""
        if not parts:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none, none, np.zeros(0), none, none)
        return cls(*map(np.concatenate, zip(*(part._columns() for part in parts), strict=True)))


@dataclass(frozen=True)
class Charges:
    """The ranks that make others wait, in the time from `began` to `ended` of the common clock.

    calls    the kinds of calls to which waits belong
    late_by  seconds by which each rank came after the last other one, added up: what the job would have saved
    """

    world: Comparison
    began: int
    ended: int
    calls: tuple[Call, ...]
    waits: Waits
    late_by: NDArray[np.float64]

    @classmethod
    def of(cls, world: Comparison, since: int | None = None) -> Charges:
        """The charges of a world. `since` leaves out what was before that moment of the common clock."""
        collected: list[Waits] = []
        calls: list[Call] = []
        late_by = np.zeros(world.size)
        first, last = NEVER, max(world.moments.values(), default=0)
        for joint in world.joints.values():
            rows = None if joint.is_messages else _since(joint.rows, since)
            if rows is None:
                messages, kinds = _of_messages(joint, len(calls))
                collected += messages
                calls += kinds
            elif len(rows.numbers):
                first = min(first, int(rows.began.min()))
                collected += _of_rows(joint, rows, len(calls), late_by)
                calls += [Call(joint.title, description) for description in rows.descriptions]
            open_ones = _open_waits(joint, last, len(calls))
            if open_ones is not None:
                wait, call = open_ones
                collected.append(wait)
                calls += call
        waits = Waits.all_of(collected)
        if len(waits.began):
            first = min(first, int(waits.began.min()))
        if since is not None:
            first = max(first, since)
            waits = waits.where(waits.ended > since)
            waits.began[:] = np.maximum(waits.began, since)
        return cls(world, min(first, last), last, tuple(calls), _passed_on(waits, world.size), late_by)

    @property
    def span(self) -> float:
        """Seconds that they cover."""
        return max(1e-9, (self.ended - self.began) / 1e9)

    @cached_property
    def caused(self) -> NDArray[np.float64]:
        """Seconds that others have waited for each rank."""
        return _sums(self.waits.culprit, self.waits.seconds, self.world.size)

    @cached_property
    def waited(self) -> NDArray[np.float64]:
        """Seconds that each rank has waited."""
        return _sums(self.waits.rank, self.waits.seconds, self.world.size)

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """The part of `caused` in which the rank was in another call itself, and its data was on the way."""
        found = np.zeros(self.world.size)
        for rank in np.unique(self.waits.culprit).tolist():
            inside = self._inside(rank)
            if len(inside.began):
                _, within = _split(self.waits.where(self.waits.culprit == rank), inside)
                found[rank] = within.seconds.sum()
        return found

    def _inside(self, rank: int) -> Waits:
        """The time that a rank spends in calls, as waits for nobody that do not overlap."""
        began, ended = [], []
        record = self.world.by_rank.get(rank)
        for name, calls in () if record is None else record.calls.items():
            if name == base_of(name):
                over = calls.ended > 0
                began.append(calls.began[over] + self.world.offset_of(rank))
                ended.append(calls.ended[over] + self.world.offset_of(rank))
        if not began:
            return Waits.all_of([])
        begins, ends = np.concatenate(began), np.concatenate(ended)
        nobody = np.full(len(begins), UNKNOWN)
        return _disjoint(Waits(nobody, nobody, nobody, begins, ends, np.ones(len(begins)), nobody, nobody))

    @property
    def total(self) -> float:
        """Seconds that all ranks have waited."""
        return float(self.caused.sum())

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The part of all waiting that each rank causes, 0 to 1."""
        return self.caused / self.total if self.total > 0 else np.zeros(self.world.size)

    def matrix(self) -> NDArray[np.float64]:
        """Seconds that rank r has waited for rank c: element [r, c]."""
        size = self.world.size
        flat = _sums(self.waits.rank * size + self.waits.culprit, self.waits.seconds, size * size)
        return flat.reshape(size, size)

    def by_call(self) -> dict[Call, NDArray[np.float64]]:
        """The seconds caused by each rank, for each kind of calls, the worst first."""
        size = self.world.size
        flat = _sums(self.waits.call * size + self.waits.culprit, self.waits.seconds, len(self.calls) * size)
        found: dict[Call, NDArray[np.float64]] = defaultdict(lambda: np.zeros(size))
        for call, caused in zip(self.calls, flat.reshape(-1, size), strict=True):
            found[call] = found[call] + caused
        return dict(sorted(found.items(), key=lambda item: -float(item[1].sum())))

    def by_host(self) -> dict[str, float]:
        """The seconds caused by the ranks of each host, by its name, the worst first."""
        found: dict[str, float] = defaultdict(float)
        for record in self.world.records:
            found[hostname_of(record)] += float(self.caused[record.rank])
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _sums(indices: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The sum of the values of each index."""
    return np.asarray(np.bincount(indices, values, size), np.float64)


def _since(rows: Rows, since: int | None) -> Rows:
    """The rows whose calls have not all ended by then."""
    if since is None or not len(rows.numbers):
        return rows
    chosen = rows.ended.max(axis=1) > since
    return rows._replace(
        numbers=rows.numbers[chosen], began=rows.began[chosen], ended=rows.ended[chosen], kinds=rows.kinds[chosen]
    )


def _of_rows(joint: Joint, rows: Rows, base: int, late_by: NDArray[np.float64]) -> list[Waits]:
    """The waits in calls that all have begun. `base` is added to the kinds of calls; `late_by` grows."""
    ranks = np.array([joint.ranks[place] for place in joint.known])
    found = []
    for kind, description in enumerate(rows.descriptions):
        chosen = np.flatnonzero(rows.kinds == kind)
        if not len(chosen):
            continue
        began, ended = rows.began[chosen], rows.ended[chosen]
        root = joint.known.index(description.root) if description.root in joint.known else -1
        last, culprit = arrivals(description.collective, root, began)
        until = np.minimum(last, ended)  # a rank that buffers goes on before
        own = culprit == np.arange(began.shape[1])
        at, column = np.nonzero((until > began) & ~own)
        late = ranks[culprit[at, column]]
        numbers = rows.numbers[chosen][at]
        ones, calls = np.ones(len(at)), np.full(len(at), base + kind)
        found.append(Waits(ranks[column], late, late, began[at, column], until[at, column], ones, calls, numbers))
        if began.shape[1] > 1:
            longest = np.where(own, 0, until - began).max(axis=1)
            second = np.partition(began, -2, axis=1)[:, -2]
            gaps = np.minimum(began.max(axis=1) - second, longest)
            np.add.at(late_by, ranks[began.argmax(axis=1)], np.maximum(gaps, 0) / 1e9)
    return found


def _of_messages(joint: Joint, base: int) -> tuple[list[Waits], list[Call]]:
    """The waits for messages that have ended."""
    found: list[Waits] = []
    kinds: list[Call] = []
    for place in joint.known:
        calls, rank = joint.calls[place], joint.ranks[place]
        record, offset = joint.world.by_rank[rank], joint.world.offset_of(rank)
        for text in np.unique(calls.texts).tolist():
            description = record.text(text)
            if not 0 <= description.root < joint.world.size:
                continue
            at = np.flatnonzero((calls.texts == text) & (calls.ended > 0))
            ones = np.ones(len(at), np.int64)
            culprit, call = ones * description.root, ones * (base + len(kinds))
            began, ended = calls.began[at] + offset, calls.ended[at] + offset
            found.append(Waits(ones * rank, culprit, culprit, began, ended, np.ones(len(at)), call, calls.numbers[at]))
            kinds.append(Call(joint.title, description))
    return found, kinds


def _open_waits(joint: Joint, now: int, base: int) -> tuple[Waits, list[Call]] | None:
    """The waits that last, of members in a call that others have not begun; None if there are none."""
    world = joint.world
    rows: list[tuple[int, int, int, int, float, int, int]] = []
    calls: list[Call] = []
    for place, (number, began, description, late) in behind(joint).items():
        if not late:
            continue
        call = Call(joint.title, description)
        if call not in calls:
            calls.append(call)
        for rank in late:
            if rank in world.by_rank:
                kind = base + calls.index(call)
                rows.append((joint.ranks[place], rank, began, max(now, began), 1 / len(late), kind, number))
    if not rows:
        return None
    ranks, culprits, begins, ends, weights, kinds, numbers = (np.array(column) for column in zip(*rows, strict=True))
    return Waits(ranks, culprits, culprits, begins, ends, weights.astype(float), kinds, numbers), calls


def behind(joint: Joint) -> dict[int, tuple[int, int, Description, tuple[int, ...]]]:
    """For each member that is in a call: the number of the call, its begin on the common clock, its description, and
    the ranks that it waits for, since they have not begun the call. By places.

    A rank is waited for if the call had begun before that rank's record was read, and one that has died in the call.
    """
    world, found = joint.world, {}
    places = np.array(joint.known)
    newest = np.zeros(joint.size, np.int64)
    signs = np.full(joint.size, -1, np.int64)  # of a member without a record nothing is known
    dead = np.zeros(joint.size, bool)
    for place in joint.known:
        record = world.by_rank[joint.ranks[place]]
        newest[place] = joint.calls[place].newest
        signs[place] = world.moments[record.rank] if record.runs else NEVER
        dead[place] = not record.runs and record.state == OPEN and not joint.calls[place].ended[-1:].any()
    for place in places.tolist():
        calls, record = joint.calls[place], world.by_rank[joint.ranks[place]]
        if not len(calls.numbers) or calls.ended[-1]:
            continue
        number, began = int(calls.numbers[-1]), int(calls.began[-1]) + world.offset_of(record.rank)
        description = record.text(int(calls.texts[-1]))
        if joint.is_messages:
            others = [rank for rank in joint.ranks if rank not in (record.rank, UNKNOWN)]
            peers = (description.root,) if description.root >= 0 else tuple(others)
        else:
            late = (newest < number) & (signs >= began)
            if record.runs or record.state != OPEN:  # those that died together did not wait for each other
                late |= dead & (newest == number)
            peers = awaited(description, joint.ranks, place, late)
        found[place] = number, began, description, peers
    return found


def _passed_on(waits: Waits, size: int) -> Waits:
    """Waits for ranks that waited themselves at the same time, for others: passed on to those."""
    direct = {}
    for culprit in np.unique(waits.culprit).tolist():
        mine = waits.where(waits.rank == culprit)
        if len(mine.began):
            direct[culprit] = _disjoint(mine)
    done = []
    for _ in range(min(size, _LONGEST_CHAIN)):
        passed = []
        for culprit in np.unique(waits.culprit).tolist():
            theirs = waits.where(waits.culprit == culprit)
            if culprit in direct:
                theirs, more = _split(theirs, direct[culprit])
                passed.append(more)
            done.append(theirs)
        waits = Waits.all_of(passed)
        if not len(waits.began):
            break
    return Waits.all_of([*done, waits])


def _disjoint(waits: Waits) -> Waits:
    """Waits of one rank in the order of time. Of several at once the first one counts."""
    found = waits.where(np.argsort(waits.began, kind="stable"))
    ends = np.maximum.accumulate(found.ended)
    found.began[1:] = np.maximum(found.began[1:], ends[:-1])
    return found.where(found.ended > found.began)


def _split(waits: Waits, others: Waits) -> tuple[Waits, Waits]:
    """The parts of waits for a rank in which it did not wait itself; and those in which it did, as `others` tell, which
    are charged to the rank that it waited for. Where that is the one that waits, nothing is passed on."""
    first = np.searchsorted(others.ended, waits.began, "right")
    count = np.maximum(0, np.searchsorted(others.began, waits.ended, "left") - first)
    at = np.repeat(np.arange(len(count)), count)
    other = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    back = others.culprit[other] == waits.rank[at]
    at, other = at[~back], other[~back]
    passed = waits.where(at)
    passed.culprit[:] = others.culprit[other]
    passed.began[:] = np.maximum(passed.began, others.began[other])
    passed.ended[:] = np.minimum(passed.ended, others.ended[other])
    # What is left begins with the wait or behind a part, and ends with the next part or the wait.
    owners = np.concatenate([np.arange(len(count)), at])
    begins, ends = np.concatenate([waits.began, passed.ended]), np.concatenate([waits.ended, passed.began])
    stay = waits.where(np.sort(owners))
    stay.began[:] = begins[np.lexsort((begins, owners))]
    stay.ended[:] = ends[np.lexsort((ends, owners))]
    return stay.where(stay.ended > stay.began), passed
