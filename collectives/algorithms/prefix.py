"""Prefix reductions: rank r gets the combination of the contributions of ranks 0 to r (scan) or 0 to r - 1 (exscan).

The chain forwards prefixes from rank to rank, in segments, so that all links work at once. It is good for large arrays,
and combines from left to right. Doubling takes the fewest rounds: in round k every rank passes the combination of up to
2**k ranks, which ends with its own contribution, to the rank 2**k above it (Hillis and Steele, "Data parallel
algorithms", 1986):

    rank          0      1      2      3      4
    at first      0      1      2      3      4
    round 1       0      0-1    1-2    2-3    3-4
    round 2       0      0-1    0-2    0-3    1-4
    round 3       0      0-1    0-2    0-3    0-4

Both combine in rank order, so that they are right for ops that do not commute.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.algorithms.tree import depth
from collectives.schedule import Geometry, Step, copy, inp, out, recv, reduce, scratch, send


def _chain_steps(g: Geometry) -> int:
    """Return the number of successive messages: the first segment passes p - 1 links, each other follows one later."""
    return g.size + g.segments - 2 if g.size > 1 else 0


def _chain_cost(g: Geometry) -> Cost:
    steps = _chain_steps(g)
    return Cost(steps, steps / g.segments, steps / g.segments)


def _doubling_traffic(g: Geometry) -> Fraction:
    return Fraction(sum(g.size - (1 << k) for k in range(depth(g.size))))


@algorithm(
    "scan",
    "chain",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=_chain_cost,
    segmented=True,
    tree_order=True,
)
def scan_chain(g: Geometry) -> Iterator[Step]:
    """Add the own contribution to the prefix of the rank below, and forward the result. Traffic (p - 1) N."""
    label, last = "chain scan", g.rank == g.size - 1
    if g.rank == 0:
        for s in range(0 if last else g.segments):
            yield send(1, inp(s), label)
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield recv(g.rank - 1, scratch(0, 0), label)
    for s in range(g.segments):
        if s + 1 < g.segments:
            yield recv(g.rank - 1, scratch((s + 1) % 2, s + 1), label)
        yield reduce(scratch(s % 2, s), inp(s), out(s), label)
        if not last:
            yield send(g.rank + 1, out(s), label)


@algorithm(
    "scan",
    "doubling",
    blocks=lambda size: 1,
    traffic=_doubling_traffic,
    cost=lambda g: Cost(depth(g.size), depth(g.size), depth(g.size)),
)
def scan_doubling(g: Geometry) -> Iterator[Step]:
    """Pass ever longer runs of ranks upward. Traffic p log2(p) N - (p - 1) N where p is a power of two."""
    value = inp(0)
    for k in range(depth(g.size)):
        label, distance = f"doubling scan {k + 1}/{depth(g.size)}", 1 << k
        if g.rank >= distance:
            yield recv(g.rank - distance, scratch(k % 2, 0), label)
        if g.rank + distance < g.size:
            yield send(g.rank + distance, value, label)
        if g.rank >= distance:
            yield reduce(scratch(k % 2, 0), value, out(0), label)
            value = out(0)
    if g.rank == 0:
        yield copy(inp(0), out(0), "copy")


@algorithm(
    "exscan",
    "chain",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=_chain_cost,
    segmented=True,
    tree_order=True,
)
def exscan_chain(g: Geometry) -> Iterator[Step]:
    """Keep the prefix of the rank below, and forward it with the own contribution. Traffic (p - 1) N."""
    label, last = "chain exscan", g.rank == g.size - 1
    if g.rank == 0:
        for s in range(0 if last else g.segments):
            yield send(1, inp(s), label)
        return
    yield recv(g.rank - 1, out(0), label)
    for s in range(g.segments):
        if s + 1 < g.segments:
            yield recv(g.rank - 1, out(s + 1), label)
        if not last:
            yield reduce(out(s), inp(s), scratch(s % 2, s), label)
            yield send(g.rank + 1, scratch(s % 2, s), label)


@algorithm(
    "exscan",
    "doubling",
    blocks=lambda size: 1,
    traffic=_doubling_traffic,
    cost=lambda g: Cost(depth(g.size), depth(g.size), 2 * depth(g.size)),
)
def exscan_doubling(g: Geometry) -> Iterator[Step]:
    """Pass ever longer runs of ranks upward, and combine the received ones apart from the own contribution. Traffic as
    of the scan."""
    value = inp(0)
    for k in range(depth(g.size)):
        label, distance = f"doubling exscan {k + 1}/{depth(g.size)}", 1 << k
        got = scratch(0, 0) if k else out(0)
        if g.rank >= distance:
            yield recv(g.rank - distance, got, label)
        if g.rank + distance < g.size:
            yield send(g.rank + distance, value, label)
        if g.rank >= distance:
            if g.rank + 2 * distance < g.size:
                longer = scratch(1 + k % 2, 0)
                yield reduce(got, value, longer, label)
                value = longer
            if k:
                yield reduce(got, out(0), out(0), label)
