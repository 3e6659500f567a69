"""Bruck's algorithms: the fewest rounds, ceil(log2 p), for any number of ranks. Good for small arrays.

Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
systems", 1997.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import circular_runs, rounds
from collectives.schedule import Geometry, Step, copy, inp, out, recv, scratch, send


@algorithm(
    "allgather",
    "bruck",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(rounds(g.size), (g.size - 1) / g.size, copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """What a rank holds, its own block and those behind it on the circle, doubles each round. Traffic (p - 1) N.

    Blocks go to their final places at once instead of being rotated at the end: where they wrap around it takes two
    messages.
    """
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    for k in range(rounds(g.size)):
        held = 1 << k
        width = min(held, g.size - held)
        label = f"bruck {k + 1}/{rounds(g.size)}"
        for run in circular_runs(g.rank + held, width, g.size):
            yield recv((g.rank + held) % g.size, out(*run), label)
        for run in circular_runs(g.rank, width, g.size):
            yield send((g.rank - held) % g.size, out(*run), label)


def _hops(size: int) -> int:
    """Blocks that a rank sends: one goes i ranks ahead in as many hops as i has one-bits."""
    return sum(i.bit_count() for i in range(size))


@algorithm(
    "alltoall",
    "bruck",
    traffic=lambda g: Fraction(_hops(g.size)),
    cost=lambda g: Cost(rounds(g.size), _hops(g.size) / g.size, copied=(_hops(g.size) + g.size) / g.size),
    uniform=True,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """In round k every block that still has bit k of its distance to go travels 2**k ranks ahead, packed with others.

    Traffic: one-bits of 0..p-1 in blocks per rank, about log2(p) / 2 rows.
    """
    row = g.rank * g.size
    half = (g.size + 1) // 2
    where = [inp(row + (g.rank + i) % g.size) for i in range(g.size)]
    landing = 2 * half
    for k in range(rounds(g.size)):
        label = f"bruck {k + 1}/{rounds(g.size)}"
        moving = [i for i in range(g.size) if i >> k & 1]
        packed = k % 2 * half
        for slot, i in enumerate(moving):
            yield copy(where[i], scratch(packed + slot, row), f"{label} pack")
            where[i] = scratch(landing + slot, row)
        yield recv((g.rank - (1 << k)) % g.size, scratch(landing, row, len(moving)), label)
        yield send((g.rank + (1 << k)) % g.size, scratch(packed, row, len(moving)), label)
        landing += len(moving)
    for i, block in enumerate(where):
        yield copy(block, out((g.rank - i) % g.size * g.size + g.rank), "bruck unpack")
