"""Circulant-graph algorithms: ceil(log2 p) rounds and the fewest bytes, for any number of ranks.

In the round with skip s every rank sends to the rank s ahead, and receives from the rank s behind. The skips are
halves, rounded up: for six ranks 3, 2, 1. Number i of a rank r is its partial result for block (r + i) mod p. A round
adds the last numbers, from s on, to the first ones of the rank s ahead:

    numbers held    0 1 2 3 4 5
    skip 3          0 1 2|3 4 5     3 4 5 go to rank r + 3, and are its numbers 0 1 2
    skip 2          0 1|2           2     goes to rank r + 2, and is its number 0
    skip 1          0|1             1     goes to rank r + 1, and is its number 0
    in the end      0               block r, complete

The allgather is the same in reverse order. No rank is folded where p is no power of two, and none sends a byte twice.
(Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024, arXiv:2410.14234; Bruck et al. 1997 for
the allgather with skips 1, 2, 4, ....)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.symmetry import around_the_ring_in_runs
from collectives.schedule import (
    Geometry,
    Ref,
    Run,
    Step,
    circular_runs,
    copy,
    inp,
    out,
    recv,
    reduce,
    rounds,
    scratch,
    send,
)

_Place = Callable[[int, int], Ref]
"""(block, width) -> its memory."""


def _skips(size: int) -> list[tuple[int, int]]:
    """Return the pairs (skip, numbers held before the round), from the largest skip to 1."""
    held = [size]
    while held[-1] > 1:
        held.append((held[-1] + 1) // 2)
    return [(skip, before) for before, skip in pairwise(held)]


def _messages(g: Geometry) -> float:
    """Return the messages on the critical path of one phase: a run of blocks that wraps around takes two, and in most
    rounds that of some rank does."""
    return rounds(g.size) * (1.5 if g.size > 2 else 1)


def _reduce_scatter(g: Geometry, work: _Place, landing: int, last: _Place) -> Iterator[Step]:
    """Combine until this rank holds its own block.

    work     memory of partial results
    landing  first SCRATCH slot for received blocks
    last     memory of the own block's result
    """
    size, rank = g.size, g.rank
    combined: set[int] = set()  # blocks whose partial result is in `work`; the others are still in IN

    def held(run: Run) -> Iterator[Run]:
        """Cut a run of blocks into runs that are all in `work` or all in IN."""
        first, width = run
        begin = first
        for block in range(first, first + width + 1):
            if block == first + width or (block in combined) != (begin in combined):
                yield begin, block - begin
                begin = block

    def own(run: Run) -> Ref:
        return work(*run) if run[0] in combined else inp(*run)

    for number, (skip, before) in enumerate(_skips(size)):
        label = f"circulant reduce-scatter {number + 1}/{rounds(size)}"
        width = before - skip
        received = circular_runs(rank, width, size)
        slots = [landing, landing + received[0][1]]
        for run, slot in zip(received, slots, strict=False):
            yield recv((rank - skip) % size, scratch(slot, *run), label)
        for run in circular_runs(rank + skip, width, size):
            parts = list(held(run))
            if len(parts) > 1:  # one message of what lies in two places
                for part in parts:
                    if part[0] not in combined:
                        yield copy(inp(*part), work(*part), label)
                        combined.update(range(part[0], sum(part)))
            yield send((rank + skip) % size, own(run), label)
        for run, slot in zip(received, slots, strict=False):
            for part in held(run):
                got = scratch(slot, *part, base=run[0])
                target = last(*part) if skip == 1 else work(*part)
                yield reduce(got, own(part), target, label)
            combined.update(range(run[0], sum(run)))


def _allgather(g: Geometry) -> Iterator[Step]:
    """Spread the own block, which is in OUT, and collect the others there."""
    skips = _skips(g.size)[::-1]
    for number, (skip, after) in enumerate(skips):
        label = f"circulant allgather {number + 1}/{len(skips)}"
        for run in circular_runs(g.rank + skip, after - skip, g.size):
            yield recv((g.rank + skip) % g.size, out(*run), label)
        for run in circular_runs(g.rank, after - skip, g.size):
            yield send((g.rank - skip) % g.size, out(*run), label)


@algorithm(
    "allreduce",
    "circulant",
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=lambda g: Cost(2 * _messages(g), 2 * share(g), share(g)),
    symmetry=around_the_ring_in_runs,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter, then allgather. Traffic 2 (p - 1) N (Träff 2024)."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    yield from _reduce_scatter(g, out, 0, out)
    yield from _allgather(g)


@algorithm(
    "reduce_scatter",
    "circulant",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_messages(g), share(g), share(g)),
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Halve the numbers held until the own block is left. Traffic (p - 1) N (Träff 2024)."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    yield from _reduce_scatter(g, lambda block, width: scratch(0, block, width, base=0), g.size, out)


@algorithm(
    "allgather",
    "circulant",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_messages(g), share(g), copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Grow the run of blocks that each rank holds. Traffic (p - 1) N (Träff 2024)."""
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    yield from _allgather(g)
