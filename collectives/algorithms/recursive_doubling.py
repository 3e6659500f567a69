"""Recursive doubling: in round k ranks 2**k apart exchange all their data. The fewest rounds; good for small arrays.

    round 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7
    round 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7
    round 3   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005. Other sizes than
powers of two are folded (see `Fold`): in each pair the upper rank passes its data to the lower one and receives the
result from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.symmetry import in_groups
from collectives.algorithms.tree import depth
from collectives.schedule import Fold, Geometry, Step, copy, inp, out, recv, reduce, runs, scratch, send


def _allreduce_traffic(g: Geometry) -> Fraction:
    fold = Fold(g.size)
    return Fraction(2 * fold.pairs + fold.power * fold.bits)


def _folding(g: Geometry) -> int:
    return int(Fold(g.size).pairs > 0)


@algorithm(
    "allreduce",
    "recursive_doubling",
    blocks=lambda size: 1,
    traffic=_allreduce_traffic,
    cost=lambda g: Cost(depth(g.size) + _folding(g), depth(g.size) + _folding(g), depth(g.size)),
    tree_order=True,
    symmetry=in_groups,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Partners exchange partial results, and both combine them with the lower rank's as the left operand.

    Traffic 2 r N + q log2(q) N (Thakur et al. 2005).
    """
    fold = Fold(g.size)
    group = fold.group(g.rank)
    members = fold.members(group)
    label, got, own = "recursive doubling fold", scratch(0, 0), inp(0)
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    if g.rank != members[0]:
        yield send(members[0], inp(0), label)
        yield recv(members[0], out(0), label)
        return
    if len(members) == 2:
        yield recv(members[1], got, label)
        yield reduce(own, got, out(0), label)
        own = out(0)
    for k in range(fold.bits):
        step = f"recursive doubling {k + 1}/{fold.bits}"
        partner = fold.first(group ^ 1 << k)
        got = scratch((k + 1) % 2, 0)
        yield recv(partner, got, step)
        yield send(partner, own, step)
        left, right = (got, own) if partner < g.rank else (own, got)
        yield reduce(left, right, out(0), step)
        own = out(0)
    if len(members) == 2:
        yield send(members[1], out(0), label)


@algorithm(
    "allgather",
    "recursive_doubling",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(depth(g.size) + _folding(g), share(g) * (1 + _folding(g)), copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Double the contiguous run of blocks of every group in each round. Traffic (p - 1) N (Thakur et al. 2005)."""
    fold = Fold(g.size)
    group = fold.group(g.rank)
    members = fold.members(group)
    label = "recursive doubling fold"
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.rank != members[0]:
        yield send(members[0], inp(g.rank), label)
        for run in runs(set(range(g.size)) - {g.rank}):
            yield recv(members[0], out(*run), label)
        return
    if len(members) == 2:
        yield recv(members[1], out(members[1]), label)
    for k in range(fold.bits):
        step = f"recursive doubling {k + 1}/{fold.bits}"
        partner = group ^ 1 << k
        mine, theirs = group >> k << k, partner >> k << k
        low, high = fold.first(theirs), fold.first(theirs + (1 << k))
        yield recv(fold.first(partner), out(low, high - low), step)
        low, high = fold.first(mine), fold.first(mine + (1 << k))
        yield send(fold.first(partner), out(low, high - low), step)
    if len(members) == 2:
        for run in runs(set(range(g.size)) - {members[1]}):
            yield send(members[1], out(*run), label)
