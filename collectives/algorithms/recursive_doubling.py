"""Recursive doubling: in round k ranks 2**k apart exchange all they have. The fewest rounds; good for small arrays.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005. Other sizes than
powers of two are folded: of each pair of ranks the upper one hands its part to the lower and gets the result back.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.algorithms.tree import depth
from collectives.patterns import Fold, runs
from collectives.schedule import Geometry, Step, copy, inp, out, recv, reduce, scratch, send


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
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Partners swap partial results and both combine them, the lower rank's on the left.

    Traffic r 2 N + q log2(q) N, where q is the power of two below p and r = p - q (Thakur et al. 2005).
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
    cost=lambda g: Cost(depth(g.size) + _folding(g), (g.size - 1) / g.size * (1 + _folding(g)), copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """What a group holds doubles each round and stays contiguous. Traffic (p - 1) N (Thakur et al. 2005)."""
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
