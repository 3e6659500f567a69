"""The reason for the waiting of a world: a rank that computes longer than the others, one whose core is shared, or a
link that is slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from collectives.observing.charges import Call, Charges
from collectives.observing.comparing import MUTUAL, NEVER, Joint, arrivals, host_of, hostname_of

_LEAST_LOSS: Final = 0.01
"""The part of the time that others must lose by a rank for it to be named."""
_LEAST_DELAY: Final = 0.5
"""The part of a rank's lateness that the wait for a core must explain."""
_LEAST_TRANSFER: Final = 0.1
"""The part of the time that calls must take behind their last arrival for a link to be named."""
_SLOWER: Final = 2.5
"""The factor by which a link is slower than others to be named."""
_MUCH_SLOWER: Final = 10.0
"""The same of calls between hosts, compared with those within hosts."""
_LEAST_PART: Final = 0.1
"""The part of the time of a call that a slow link must explain."""
_LEAST_LONGER: Final = 3e-4
"""Seconds by which a round trip must be longer than others."""
_NOTABLE: Final = 0.1
"""The part of a rank's charges that a kind of calls must have to be named."""


class Kind(StrEnum):
    """See the head of this file."""

    LATE = "late"
    SLOW_CORE = "slow core"
    SLOW_LINK = "slow link"


class Link(NamedTuple):
    """The connections between two hosts, as TCP_INFO has them.

    round_trip  seconds
    rate        bytes a second that were delivered; 0 if it is not known
    """

    round_trip: float
    rate: float = 0.0

    def better(self, other: Link) -> Link:
        """The better figures of both."""
        return Link(min(self.round_trip, other.round_trip), max(self.rate, other.rate))

    def worse(self, other: Link) -> Link:
        """The worse figures of both."""
        rates = [rate for rate in (self.rate, other.rate) if rate > 0]
        return Link(max(self.round_trip, other.round_trip), min(rates, default=0.0))


_USUAL_LINK: Final = Link(1e-3, 50e6)
"""A slow one among those that are usual between the hosts of a job, for a job whose hosts have one link only."""


@dataclass(frozen=True)
class Culprit:
    """A rank or a host that makes the others wait.

    ranks    one, or all of the host with the slow link or of the two hosts between which it is; empty if the record
             does not tell which link it is
    host     for people, or "one and other"; empty likewise
    share    the part of all waiting that it causes; for a link the part of the time that its calls take
    seconds  that the job loses by it
    calls    those in which others wait for it most, the worst first
    reason   in words
    """

    kind: Kind
    ranks: tuple[int, ...]
    host: str
    share: float
    seconds: float
    calls: tuple[Call, ...]
    reason: str


def judge(
    charges: Charges, run_delay: Mapping[int, float] | None = None, links: Mapping[tuple[str, str], Link] | None = None
) -> tuple[Culprit, ...]:
    """The culprits, the worst first; none if the waits are spread evenly.

    run_delay  by rank, the seconds in each second for which its threads were ready and waited for a core (Linux:
               /proc/PID/task/*/schedstat, the second field)
    links      by the host that sends and the other one (`host` of a rank's state)
    """
    found = [*_late(charges, run_delay or {})]
    if not found:
        found += _slow_links(charges, links or {})
    return tuple(sorted(found, key=lambda culprit: -culprit.seconds))


def _late(charges: Charges, run_delay: Mapping[int, float]) -> Iterator[Culprit]:
    world, least = charges.world, 1.5 / charges.world.size + 0.1
    longest = charges.matrix().max(axis=0, initial=0.0)  # the rank that loses most: not all need wait
    suspects = [rank for rank in np.flatnonzero(charges.shares >= least / 2).tolist() if rank in run_delay]
    usual = {rank: _usual(run_delay, rank) for rank in suspects}
    for_core = {
        rank
        for rank, others in usual.items()
        if run_delay[rank] > 2 * others and (run_delay[rank] - others) * charges.span >= _LEAST_DELAY * longest[rank]
    }
    own = charges.caused - charges.busy  # a wait for a rank that is in a call itself may be due to a slow link,
    own[sorted(for_core)] = charges.caused[sorted(for_core)]  # or to the core
    for rank in np.argsort(-own).tolist():
        record, part = world.by_rank.get(rank), float(own[rank] / max(1e-9, charges.caused[rank]))
        seconds, share = float(longest[rank]) * part, float(charges.shares[rank]) * part
        if record is None or own[rank] < least * own.sum() or share < least / 2 or seconds < _LEAST_LOSS * charges.span:
            continue
        mine = charges.waits.where(charges.waits.culprit == rank)
        if seconds * 1e9 < 2 * world.error * max(1, len(np.unique(mine.call * (1 << 32) + mine.number))):
            continue  # the clocks of the hosts may differ by as much
        by_call = sorted(
            ((call, float(each[rank])) for call, each in charges.by_call().items()), key=lambda item: -item[1]
        )
        calls = tuple(call for call, part in by_call if part >= charges.caused[rank] * _NOTABLE)
        waiting = f"{share:.0%} of all waiting is for rank {rank}"
        if rank in for_core:
            delays = f"{run_delay[rank]:.0%} of the time (other ranks {usual[rank]:.0%})"
            reason, kind = f"{waiting}, whose threads wait for a core {delays}", Kind.SLOW_CORE
        else:
            reason, kind = f"{waiting}, which comes late to its calls", Kind.LATE
        yield Culprit(kind, (rank,), hostname_of(record), share, seconds, calls, reason)


def _usual(run_delay: Mapping[int, float], rank: int) -> float:
    others = [delay for other, delay in run_delay.items() if other != rank]
    return float(np.median(others)) if others else 0.0


class _Transfer(NamedTuple):
    """One kind of calls: `seconds` of one call behind its last arrival, `total` of all."""

    call: Call
    hosts: frozenset[str]
    seconds: float
    total: float


def _slow_links(charges: Charges, links: Mapping[tuple[str, str], Link]) -> Iterator[Culprit]:
    transfers = [one for joint in charges.world.joints.values() if not joint.is_messages for one in _transfers(joint)]
    across = [one for one in transfers if len(one.hosts) > 1]
    total = sum(one.total for one in across)
    if len(charges.world.hosts) > 1:  # the last to come may have the data of the others already
        total = max(total, float(charges.busy.sum()) / charges.world.size)
    if total < _LEAST_TRANSFER * charges.span:
        return
    slow = _by_links(charges, links, across) or _by_hosts(across)
    calls = tuple(one.call for one in sorted(across, key=lambda one: -one.total))[:3]
    if slow is not None:
        hosts, reason = slow
        by_host = [charges.world.hosts[host] for host in hosts]
        ranks = tuple(sorted(rank for ranks in by_host for rank in ranks))
        name = " and ".join(hostname_of(charges.world.by_rank[ranks[0]]) for ranks in by_host)
        which = "with host" if len(hosts) == 1 else "between hosts"
        reason = f"no rank is late, but calls {which} {name} take long: {reason}"
        yield Culprit(Kind.SLOW_LINK, ranks, name, min(1.0, total / charges.span), total, calls, reason)
        return
    ratio = _ratio(across, [one for one in transfers if len(one.hosts) == 1])
    if ratio >= _MUCH_SLOWER:
        reason = f"no rank is late, but calls between hosts take {ratio:.0f} times as long as those within a host"
        yield Culprit(Kind.SLOW_LINK, (), "", min(1.0, total / charges.span), total, calls, reason)


def _transfers(joint: Joint) -> Iterator[_Transfer]:
    """The kinds of calls of a communicator in which every rank waits for every other one. The time of the rank that
    comes last counts: it does not depend on how well the clocks of hosts are compared."""
    rows, world = joint.rows, joint.world
    hosts = frozenset(host_of(world.by_rank[joint.ranks[place]]) for place in joint.known)
    for kind, description in enumerate(rows.descriptions):
        chosen = (rows.kinds == kind) & (rows.ended < NEVER).all(axis=1)
        if description.collective in MUTUAL and chosen.any():
            began, ended = rows.began[chosen], rows.ended[chosen]
            _, last = arrivals(description.collective, -1, began)
            own = np.take_along_axis(ended - began, last[:, :1], axis=1) / 1e9
            yield _Transfer(Call(joint.title, description), hosts, float(np.median(own)), float(own.sum()))


def _by_links(
    charges: Charges, links: Mapping[tuple[str, str], Link], across: Sequence[_Transfer]
) -> tuple[tuple[str, ...], str] | None:
    """The host whose connections stand out, or the two hosts between which they do; and the reason."""
    pairs: dict[tuple[str, ...], Link] = {}
    for hosts, link in links.items():
        if all(host in charges.world.hosts for host in hosts):
            pair = tuple(sorted(hosts, key=charges.world.hosts.__getitem__))
            pairs[pair] = link.worse(pairs.get(pair, link))
    by_host: dict[tuple[str, ...], Link] = {}
    for pair, link in pairs.items():  # that of a host is its best one: a bad one may be due to the other end
        for host in pair:
            by_host[host,] = link.better(by_host.get((host,), link))
    for found in (by_host, pairs):
        slow = _outlier(found, across)
        if slow is not None:
            return slow
    if len(pairs) == 1:  # there is no other to compare with
        return _outlier({**pairs, (): _USUAL_LINK}, across)
    return None


def _outlier(links: Mapping[tuple[str, ...], Link], across: Sequence[_Transfer]) -> tuple[tuple[str, ...], str] | None:
    """The hosts whose link is slower than others, by so much that it explains the time of their calls; and the
    reason."""
    worst: tuple[float, tuple[str, ...], str] | None = None
    for hosts, link in links.items():
        others = [other for them, other in links.items() if them != hosts]
        calls = [one for one in across if not one.hosts.isdisjoint(hosts)]
        if not others or not calls:
            continue
        call = max(calls, key=lambda one: one.total)
        usual = Link(
            float(np.median([other.round_trip for other in others])),
            float(np.median([other.rate for other in others if other.rate > 0] or [0.0])),
        )
        longer = link.round_trip - usual.round_trip
        slower = call.call.description.nbytes * (1 / link.rate - 1 / usual.rate) if link.rate and usual.rate else 0.0
        least = max(_LEAST_LONGER, _LEAST_PART * call.seconds)
        factors = [
            link.round_trip / max(1e-9, usual.round_trip) if longer >= least else 0.0,
            usual.rate / link.rate if slower >= _LEAST_PART * call.seconds and link.rate else 0.0,
        ]
        factor = max(factors)
        if factor >= _SLOWER and (worst is None or factor > worst[0]):
            if factors[0] >= factors[1]:
                text = f"a round trip takes {link.round_trip * 1e3:.3g} ms, {usual.round_trip * 1e3:.3g} ms on others"
            else:
                text = f"it delivers {link.rate / 1e6:.3g} MB/s, others {usual.rate / 1e6:.3g} MB/s"
            worst = factor, hosts, text
    return None if worst is None else worst[1:]


def _by_hosts(across: list[_Transfer]) -> tuple[tuple[str, ...], str] | None:
    """The host whose calls with others take longer than calls of others."""
    worst: tuple[float, str] | None = None
    for host in sorted(frozenset().union(*(one.hosts for one in across))):
        ratio = _ratio([one for one in across if host in one.hosts], [one for one in across if host not in one.hosts])
        if ratio >= _SLOWER and (worst is None or ratio > worst[0]):
            worst = ratio, host
    return None if worst is None else ((worst[1],), f"{worst[0]:.1f} times as long as those of other hosts")


def _ratio(ones: list[_Transfer], others: list[_Transfer]) -> float:
    """The least factor by which the calls of `ones` are slower than like calls of `others`; 0 if there are no like
    ones."""
    factors = []
    for one in ones:
        like = [other.seconds for other in others if _are_like(one.call, other.call)]
        if like:
            factors.append(one.seconds / max(1e-9, max(like)))
    return min(factors, default=0.0)


def _are_like(one: Call, other: Call) -> bool:
    """True for calls of one collective and of about the same size."""
    sizes = sorted((one.description.nbytes, other.description.nbytes))
    return one.description.collective == other.description.collective and sizes[1] <= 4 * max(64, sizes[0])
