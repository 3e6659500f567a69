"""Linear algorithms: everybody talks to everybody it must, directly and all at once.

The simplest there is; good for few ranks, and needs to know no other rank's block sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import around
from collectives.schedule import Geometry, Step, copy, inp, out, recv, send


def _share(g: Geometry) -> Fraction:
    return Fraction(g.size - 1, g.size)


def _cost(g: Geometry) -> Cost:
    return Cost(g.size - 1, float(_share(g)), copied=1 / g.size)


@algorithm("gather", "linear", traffic=_share, cost=_cost)
def gather(g: Geometry) -> Iterator[Step]:
    """Everybody sends to the root. Traffic (p - 1) / p N."""
    if g.rank != g.root:
        yield send(g.root, inp(g.rank), "linear gather")
        return
    for peer in around(g.rank, g.size):
        yield recv(peer, out(peer), "linear gather")
    yield copy(inp(g.rank), out(g.rank), "copy own block")


@algorithm("scatter", "linear", traffic=_share, cost=_cost)
def scatter(g: Geometry) -> Iterator[Step]:
    """The root sends to everybody. Traffic (p - 1) / p N."""
    if g.rank != g.root:
        yield recv(g.root, out(g.rank), "linear scatter")
        return
    for peer in around(g.rank, g.size):
        yield send(peer, inp(peer), "linear scatter")
    yield copy(inp(g.rank), out(g.rank), "copy own block")


@algorithm("alltoall", "linear", traffic=lambda g: Fraction(g.size - 1), cost=_cost)
def alltoall(g: Geometry) -> Iterator[Step]:
    """All receives are posted, then all sends: nobody waits for a slow peer more than it must. Traffic (p - 1) rows."""
    peers = around(g.rank, g.size)
    for peer in reversed(peers):
        yield recv(peer, out(peer * g.size + g.rank), "linear alltoall")
    for peer in peers:
        yield send(peer, inp(g.rank * g.size + peer), "linear alltoall")
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
