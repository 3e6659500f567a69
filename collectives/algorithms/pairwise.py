"""Pairwise exchange: in round i every rank sends to the i-th rank ahead and receives from the i-th behind.

Every block takes one hop. Good for large arrays: p - 1 rounds, one partner at a time in each direction (Thakur,
Rabenseifner, Gropp 2005).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import Geometry, Step, canonical_siblings, copy, inp, out, recv, send, settle


@algorithm(
    "reduce_scatter",
    "pairwise",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(g.size - 1, share(g), 1 / g.size),
    tree_order=True,
    finishes=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank receives all contributions to its block and combines them in tree order, overlapping with the next
    message. Traffic (p - 1) N."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    order = TreeOrder(canonical_siblings(g.size), out(g.rank), 0, "pairwise combine")
    rank, value = g.rank, inp(g.rank)
    for i in range(1, g.size):
        label = f"pairwise {i}/{g.size - 1}"
        ahead, behind = (g.rank + i) % g.size, (g.rank - i) % g.size
        got = order.take()
        yield recv(behind, got, label)
        yield send(ahead, inp(ahead), label)
        yield from order.arrive(rank, value)
        yield settle(label)
        rank, value = behind, got
    yield from order.arrive(rank, value)


@algorithm(
    "alltoall",
    "pairwise",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(g.size - 1, share(g), copied=1 / g.size),
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Complete each exchange before the next one, so that no rank receives from many at once. Traffic (p - 1) rows."""
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
    for i in range(1, g.size):
        label = f"pairwise {i}/{g.size - 1}"
        ahead, behind = (g.rank + i) % g.size, (g.rank - i) % g.size
        yield recv(behind, out(behind * g.size + g.rank), label)
        yield send(ahead, inp(g.rank * g.size + ahead), label)
        yield settle(label)
