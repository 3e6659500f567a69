"""Bruck's algorithms: ceil(log2 p) rounds, the fewest possible, for any number of ranks. Good for small arrays.

The allgather of five ranks; the blocks that rank 0 holds:

    at first   0
    round 1    0 1          from rank 1
    round 2    0 1 2 3      from rank 2, which holds 2 3
    round 3    0 1 2 3 4    from rank 4

Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
systems", 1997.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import Geometry, Step, circular_runs, copy, inp, out, recv, rounds, scratch, send


@algorithm(
    "allgather",
    "bruck",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(rounds(g.size), share(g), copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Double the run of blocks that each rank holds, from its own block upwards, in every round. Traffic (p - 1) N.

    Blocks are received at their final offsets. A run that wraps around takes two messages.
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
    """Return the number of blocks that a rank sends: a block for the rank i ahead makes one hop per one-bit of i."""
    return sum(i.bit_count() for i in range(size))


@algorithm(
    "alltoall",
    "bruck",
    traffic=lambda g: Fraction(_hops(g.size)),
    cost=lambda g: Cost(rounds(g.size), _hops(g.size) / g.size, copied=(_hops(g.size) + g.size) / g.size),
    uniform=True,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """In round k send the blocks whose distance has bit k, packed into one message, to the rank 2**k ahead.

    Traffic in blocks per rank: the one-bits of 0..p-1, about log2(p) / 2 rows.
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
