"""Rabenseifner's algorithms: recursive halving of the vector while it is combined, then doubling to collect it.

As many bytes as the ring, in log2(p) rounds: good for medium and large arrays. Four ranks, four parts; the parts that a
rank holds:

    rank   at first   halving 1   halving 2   doubling 1   doubling 2
    0      0 1 2 3    0 1         0           0 1          0 1 2 3
    1      0 1 2 3        2 3         2           2 3      0 1 2 3
    2      0 1 2 3    0 1           1         0 1          0 1 2 3
    3      0 1 2 3        2 3           3         2 3      0 1 2 3

Ranks pair at distance 1, 2, 4, ..., so that contributions combine in the order of `canonical_tree`; therefore group g
ends with part reverse_bits(g). Other sizes than powers of two are folded first (see `Fold`).
(Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner, Gropp 2005.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from collectives.algorithms.registry import Cost, algorithm
from collectives.algorithms.symmetry import in_groups
from collectives.schedule import Fold, Geometry, Ref, Step, copy, inp, out, recv, reduce, reverse_bits, scratch, send

_Hold = Callable[[int, int], Ref]
"""(chunk, width) -> its memory."""


class _Round(NamedTuple):
    """One halving: the partner's group, and the parts that are kept and given away, as (chunk, width)."""

    partner: int
    kept: tuple[int, int]
    given: tuple[int, int]


def _halvings(fold: Fold, group: int, edge: Callable[[int], int]) -> list[_Round]:
    """Return the rounds of a group; part i begins at chunk edge(i)."""
    low, high, result = 0, fold.power, []
    for k in range(fold.bits):
        middle = (low + high) // 2
        lower, upper = (edge(low), edge(middle) - edge(low)), (edge(middle), edge(high) - edge(middle))
        if group >> k & 1:
            result.append(_Round(group ^ 1 << k, upper, lower))
            low = middle
        else:
            result.append(_Round(group ^ 1 << k, lower, upper))
            high = middle
    return result


def _halve(
    g: Geometry,
    head: Callable[[int], int],
    other: int | None,
    halvings: list[_Round],
    work: _Hold,
    slot: int,
    parts: int,
) -> Iterator[Step]:
    """Combine with the second rank of the own group, then ever smaller parts with the heads of other groups.

    head    group -> its first rank
    other   the second rank of the own group, if it has one
    work    memory of the results
    slot    first SCRATCH slot for received parts
    parts   the number of parts
    """
    own: _Hold = inp
    if other is not None:
        yield recv(other, scratch(slot, 0, parts), "halving fold")
        pair = inp(0, parts), scratch(slot, 0, parts)
        left, right = pair if g.rank < other else pair[::-1]
        yield reduce(left, right, work(0, parts), "halving fold")
        own = work
    for k, (partner, kept, given) in enumerate(halvings):
        label, peer, got = f"halving {k + 1}/{len(halvings)}", head(partner), scratch(slot, *kept)
        yield recv(peer, got, label)
        yield send(peer, own(*given), label)
        left, right = (got, own(*kept)) if peer < g.rank else (own(*kept), got)
        yield reduce(left, right, work(*kept), label)
        own = work


def _same(part: int) -> int:
    return part


def _halved(g: Geometry) -> float:
    """Return the part of N that a rank gives away in all halvings."""
    return 1 - 1 / Fold(g.size).power


def _folded(g: Geometry) -> int:
    return int(Fold(g.size).pairs > 0)


def _allreduce_traffic(g: Geometry) -> Fraction:
    fold = Fold(g.size)
    return Fraction(2 * fold.pairs + 2 * (fold.power - 1))


@algorithm(
    "allreduce",
    "halving_doubling",
    blocks=lambda size: Fold(size).power,
    traffic=_allreduce_traffic,
    cost=lambda g: Cost(
        2 * Fold(g.size).bits + 2 * _folded(g), 2 * _halved(g) + 2 * _folded(g), _halved(g) + _folded(g)
    ),
    tree_order=True,
    symmetry=in_groups,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter by halving, allgather by doubling.

    Traffic 2 r N + 2 (q - 1) N (Thakur et al. 2005).
    """
    fold = Fold(g.size)
    members = fold.members(fold.group(g.rank))
    parts = fold.power
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    if g.rank != members[0]:
        yield send(members[0], inp(0, parts), "halving fold")
        yield recv(members[0], out(0, parts), "doubling fold")
        return
    other = members[1] if len(members) == 2 else None
    halvings = _halvings(fold, fold.group(g.rank), _same)
    yield from _halve(g, fold.first, other, halvings, out, 0, parts)
    for k, (partner, kept, given) in enumerate(reversed(halvings)):
        label = f"doubling {k + 1}/{fold.bits}"
        yield recv(fold.first(partner), out(*given), label)
        yield send(fold.first(partner), out(*kept), label)
    if other is not None:
        yield send(other, out(0, parts), "doubling fold")


def _reduce_traffic(g: Geometry) -> Fraction:
    fold = Fold(g.size)
    return fold.pairs + fold.power - 1 + Fraction(fold.bits, 2)


@algorithm(
    "reduce",
    "halving_gather",
    blocks=lambda size: Fold(size).power,
    traffic=_reduce_traffic,
    cost=lambda g: Cost(2 * Fold(g.size).bits + _folded(g), 2 * _halved(g) + _folded(g), _halved(g) + _folded(g)),
    tree_order=True,
)
def reduce_halving_gather(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter by halving, then a binomial gather to the root.

    Traffic r N + (q - 1) N + log2(q) / 2 N (Thakur et al. 2005).
    """
    fold = Fold(g.size)
    group, goal = fold.group(g.rank), fold.group(g.root)
    parts = fold.power

    def head(of: int) -> int:
        return g.root if of == goal else fold.first(of)

    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    if g.rank != head(group):
        yield send(head(group), inp(0, parts), "halving fold")
        return
    others = [member for member in fold.members(group) if member != g.rank]
    work: _Hold = out if g.rank == g.root else lambda chunk, width: scratch(0, chunk, width, base=0)
    halvings = _halvings(fold, group, _same)
    yield from _halve(g, head, others[0] if others else None, halvings, work, parts, parts)
    for k, (partner, kept, given) in reversed(list(enumerate(halvings))):
        label = f"gather {fold.bits - k}/{fold.bits}"
        if (group ^ goal) >> k & 1:
            yield send(head(partner), work(*kept), label)
            return
        yield recv(head(partner), work(*given), label)


def _reduce_scatter_traffic(g: Geometry) -> Fraction:
    fold = Fold(g.size)
    stay = 1 << -(-fold.bits // 2)  # parts whose number equals its reversed bits
    return fold.pairs + fold.power - 1 + Fraction(g.size - stay, g.size)


@algorithm(
    "reduce_scatter",
    "halving",
    traffic=_reduce_scatter_traffic,
    cost=lambda g: Cost(
        Fold(g.size).bits + _folded(g) + (g.size > 2) * (1 + _folded(g)),
        _halved(g) + _folded(g) + (g.size > 2) * (1 + _folded(g)) / g.size,
        _halved(g) + _folded(g),
    ),
    tree_order=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter by halving, then one message that delivers each block to its rank.

    Traffic r N + (q - 1) N + (p - s) / p N: s = 2**ceil(log2(q) / 2) blocks need no delivery. (Thakur et al. 2005 need
    no delivery, but combine in another order.)
    """
    fold = Fold(g.size)
    group = fold.group(g.rank)
    head = fold.first(group)
    keeper = fold.first(reverse_bits(group, fold.bits))
    label = "deliver"
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    if g.rank != head:
        yield send(head, inp(0, g.size), "halving fold")
        yield recv(keeper, out(g.rank), label)
        return
    if keeper != g.rank:
        yield recv(keeper, out(g.rank), label)
    other = head + 1 if len(fold.members(group)) == 2 else None

    def work(chunk: int, width: int) -> Ref:
        return scratch(0, chunk, width, base=0)

    yield from _halve(g, fold.first, other, _halvings(fold, group, fold.first), work, g.size, g.size)
    for owner in fold.members(reverse_bits(group, fold.bits)):
        if owner == g.rank:
            yield copy(work(owner, 1), out(owner), label)
        else:
            yield send(owner, work(owner, 1), label)
