"""The alpha-beta-gamma model: the cost of a message, of a byte sent, of a byte combined and of a byte copied.

R. Hockney, "The communication challenge for MPP", 1994 (alpha, beta); Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005 (gamma, and its use for choosing algorithms).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from collectives.algorithms import Algorithm, Cost
from collectives.schedule import Geometry


@dataclass(frozen=True, slots=True)
class Model:
    """Costs in seconds: per message (alpha), per byte sent (beta), combined (gamma), copied (copy), and copied by the
    kernel out of another process (read), and per signal that one-sided algorithms wait for (signal).

    alpha and beta are those between ranks of one host; inter_alpha and inter_beta those across hosts, where the ranks
    of a host share its link. inter_betas are those of each host's link, by the host's number: the slowest is
    inter_beta; empty, they are alike. `alone` is the time of bytes that cross with one message under way, by that with
    several: the link is idle while a message is combined and its peer wakes up (measured on 4 hosts of one rank at 200
    Mbit/s, 4 to 16 MiB: 1.09 to 1.4). `turning` is the same where successive messages go to different ranks (there,
    halving and doubling beside the ring, 64 KiB to 1 MiB: 1.1 to 1.4 times as long). Both were measured under BBR; see
    docs/evidence.md for reno. `overhead` is the time for which a message across hosts keeps its sender and receiver
    busy, beside its bytes. `cores` is the number of those that all ranks use together, 0 if it is unknown, if there are
    several hosts, or if ranks are threads of one process, which wait for Python's lock more than for cores. If there
    are fewer cores than ranks, `switch` is the time for which a rank waits in each round for another rank of its core
    (measured on 4 ranks on 2 cores of a Zen 3: a round of 4 bytes takes 55 us). gamma, copy, read and signal are those
    of two ranks on two cores of an AMD Zen 4.
    """

    alpha: float = 20e-6
    beta: float = 0.8e-9
    gamma: float = 0.04e-9
    copy: float = 0.06e-9
    read: float = 0.1e-9
    signal: float = 3e-6
    inter_alpha: float = 50e-6
    inter_beta: float = 0.9e-9
    alone: float = 1.1
    turning: float = 1.3
    overhead: float = 50e-6
    inter_betas: tuple[float, ...] = ()
    cores: int = 0
    switch: float = 20e-6

    def link(self, geometry: Geometry, a: int, b: int) -> tuple[float, float]:
        """Return alpha and beta between two ranks."""
        hosts = geometry.hosts
        if hosts and hosts[a] != hosts[b]:
            return self.inter_alpha, self.inter_beta
        return self.alpha, self.beta


@lru_cache(maxsize=4096)
def _cost(cost: Callable[[Geometry], Cost], geometry: Geometry) -> Cost:
    """Return the terms of an algorithm, computed once for each geometry: they do not depend on the size."""
    return cost(geometry)


def told_apart(links: Sequence[float]) -> tuple[float, ...]:
    """Return the `Model.inter_betas` of links that take so many seconds for a byte: the slowest link's, divided by a
    power of three, 729 at most; empty if all links are alike.

    So links count as alike whose rates differ by less than a factor of three: where cores are busy, the measured rates
    of equal links differ by a factor of two, and other algorithms gain little there.
    """
    slowest = max(links)
    powers = [int(math.log(slowest / max(seconds, slowest / 730), 3)) if slowest else 0 for seconds in links]
    return tuple(slowest / 3**power for power in powers) if any(powers) else ()


@lru_cache(maxsize=4096)
def crossing(algorithm: Algorithm, geometry: Geometry, betas: tuple[float, ...] = ()) -> tuple[float, int, float]:
    """Return the bytes that cross the link of the busiest host in one direction, in units of N; the largest number of
    ranks on other hosts to which a rank sends; and the largest product of a host's bytes and its `betas`, 0 without.

    The figures are counted in the steps of the ranks of the hosts that may be busiest: the first, the middle one, the
    last and the root's, and the first, the middle one and the last that have the same of `betas`. `geometry` is that of
    any rank, with one segment.
    """
    hosts = geometry.hosts
    chunk = 1 / algorithm.blocks(geometry.size)
    counted = {hosts[0], hosts[geometry.size // 2], hosts[-1], hosts[geometry.root]}
    for beta in set(betas):
        alike = [host for host, its in enumerate(betas) if its == beta]
        counted |= {alike[0], alike[len(alike) // 2], alike[-1]}
    busiest, most, longest = 0.0, 0, 0.0
    for host in counted:
        leaving = coming = 0
        for rank in (rank for rank, its in enumerate(hosts) if its == host):
            targets = set()
            for step in algorithm.generate(geometry.at(rank)):
                if step.peer >= 0 and hosts[step.peer] != host:
                    leaving += step.sent
                    coming += step.received
                    if step.sent:
                        targets.add(step.peer)
            most = max(most, len(targets))
        crossed = max(leaving, coming) * chunk
        busiest = max(busiest, crossed)
        longest = max(longest, crossed * betas[host]) if betas else 0.0
    return busiest, most, longest


Terms = Callable[[int], dict[str, float]]
"""(bytes in all blocks together; alltoall: in one rank's row) -> the terms of the prediction in seconds."""


def predict(algorithm: Algorithm, geometry: Geometry, nbytes: int, model: Model) -> float:
    """Predict the seconds that an algorithm takes for `nbytes`."""
    return sum(terms(algorithm, geometry, model)(nbytes).values())


def terms(algorithm: Algorithm, geometry: Geometry, model: Model) -> Terms:
    """Return the function that predicts latency, link (bytes between hosts), host (bytes inside one), combine and copy.
    All that does not depend on the size is computed here.

    If ranks are on several hosts, all rounds are taken to cross hosts that the algorithm does not declare local. The
    bytes that cross are those of a host's ranks together, since they share its link. Where several messages are under
    way at a time, a round takes the longer of the latency with one message, and of the overheads (o) with all:

        one  |--- inter_alpha ---|== bytes ==|          three  |o|= b =|o|= b =|o|= b =|
                                                               |--- inter_alpha ---|= b =|

    If the ranks of the only host share cores, each rank waits for others of its core in every round, and what all send
    together is bounded by the cores: a byte keeps that of its sender busy, and that of its receiver.

    Where links differ, all are taken to be as slow as the slowest if one message is under way, since a round waits for
    it. With several, all links work at the same time: the link that is busy for longest counts, which is a slow one
    unless few bytes cross it.
    """
    cost = _cost(algorithm.cost, geometry)
    rounds, inside, outside, beta, crawl = cost.rounds - cost.local_rounds, cost.sent, 0.0, 0.0, 1.0
    far = len(set(geometry.hosts)) > 1
    if far:
        one = dataclasses.replace(geometry, rank=0, segments=1)
        outside, targets, longest = crossing(algorithm, one, model.inter_betas)
        beta = longest / outside if longest and cost.flight > 1 else model.inter_beta
        sharing = max(Counter(geometry.hosts).values())
        # With one rank on each host all bytes of the critical path cross; segments may take other ways.
        outside = cost.sent if sharing == 1 else min(outside, sharing * cost.sent)
        inside = cost.local_sent or max(0.0, cost.sent - outside / sharing)
        crawl = 1.0 if cost.flight > 1 else model.turning if targets > 1 else model.alone
    alpha = model.alpha
    if 0 < model.cores < geometry.size and not far:
        alpha += model.switch * geometry.size / model.cores
        inside = max(inside, 2 * float(algorithm.traffic(geometry)) / model.cores)
    alone = rounds * (model.inter_alpha if far else model.signal if algorithm.onesided else alpha)
    local, copying = cost.local_rounds * alpha, cost.copied * model.copy + cost.read * model.read

    def found(nbytes: int) -> dict[str, float]:
        latency, link = alone, nbytes * outside * beta * crawl
        if far and cost.flight > 1:
            if alone + link > cost.flight * (rounds * model.overhead + link):
                latency, link = alone / cost.flight, link / cost.flight
            else:
                latency = rounds * model.overhead
        return {
            "latency": latency + local,
            "link": link,
            "host": nbytes * inside * model.beta,
            "combine": nbytes * cost.reduced * model.gamma,
            "copy": nbytes * copying,
        }

    return found
