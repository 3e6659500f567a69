"""The dissemination barrier (Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988).

round 1   every rank sends to the rank 1 ahead
round 2                               2 ahead
round 3                               4 ahead, and so on
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, dissemination, recv, rounds, send, settle


@algorithm(
    "barrier",
    "dissemination",
    blocks=lambda size: 1,
    cost=lambda g: Cost(rounds(g.size), 0),
)
def barrier(g: Geometry) -> Iterator[Step]:
    """Send an empty message 2**k ranks ahead in round k. No bytes, p ceil(log2 p) messages."""
    for k, (ahead, behind) in enumerate(dissemination(g.rank, g.size)):
        label = f"dissemination {k + 1}/{rounds(g.size)}"
        yield recv(behind, None, label)
        yield send(ahead, None, label)
        yield settle(label)
