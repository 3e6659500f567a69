"""The dissemination barrier (Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import dissemination, rounds
from collectives.schedule import Geometry, Step, recv, send, settle


@algorithm(
    "barrier",
    "dissemination",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(0),
    cost=lambda g: Cost(rounds(g.size), 0),
)
def barrier(g: Geometry) -> Iterator[Step]:
    """In round k a token goes 2**k ranks ahead; after ceil(log2 p) rounds each rank has heard, indirectly, of all.

    No bytes, p ceil(log2 p) tokens.
    """
    for k, (ahead, behind) in enumerate(dissemination(g.rank, g.size)):
        label = f"dissemination {k + 1}/{rounds(g.size)}"
        yield recv(behind, None, label)
        yield send(ahead, None, label)
        yield settle(label)
