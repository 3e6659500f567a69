"""Linear algorithms: one direct message for every block, all posted at once.

Good for few ranks. A rank need not know the block sizes of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import Geometry, Step, around, copy, inp, out, recv, send


def _traffic(g: Geometry) -> Fraction:
    return Fraction(g.size - 1, g.size)


def _cost(g: Geometry) -> Cost:
    return Cost(g.size - 1, share(g), copied=1 / g.size)


def _rooted_cost(g: Geometry) -> Cost:
    """All messages of the root are under way at a time."""
    return _cost(g)._replace(flight=max(1, g.size - 1))


@algorithm("gather", "linear", traffic=_traffic, cost=_rooted_cost)
def gather(g: Geometry) -> Iterator[Step]:
    """Every rank sends its block to the root. Traffic (p - 1) / p N."""
    if g.rank != g.root:
        yield send(g.root, inp(g.rank), "linear gather")
        return
    for peer in around(g.rank, g.size):
        yield recv(peer, out(peer), "linear gather")
    yield copy(inp(g.rank), out(g.rank), "copy own block")


@algorithm("scatter", "linear", traffic=_traffic, cost=_rooted_cost)
def scatter(g: Geometry) -> Iterator[Step]:
    """The root sends each rank its block. Traffic (p - 1) / p N."""
    if g.rank != g.root:
        yield recv(g.root, out(g.rank), "linear scatter")
        return
    for peer in around(g.rank, g.size):
        yield send(peer, inp(peer), "linear scatter")
    yield copy(inp(g.rank), out(g.rank), "copy own block")


@algorithm("alltoall", "linear", traffic=lambda g: Fraction(g.size - 1), cost=_cost)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Post all receives, then all sends, so that a slow peer delays only its own blocks. Traffic (p - 1) rows."""
    peers = around(g.rank, g.size)
    for peer in reversed(peers):
        yield recv(peer, out(peer * g.size + g.rank), "linear alltoall")
    for peer in peers:
        yield send(peer, inp(g.rank * g.size + peer), "linear alltoall")
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
