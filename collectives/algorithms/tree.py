r"""Binomial trees: log2(p) rounds. Good for small arrays.

Positions 0..7; a position's parent lacks its lowest bit:

            0
         /  |  \
        4   2   1
       / \  |
      6   5 3
      |
      7

Trees of broadcast, gather and scatter are rotated, so that the root has position 0. Reduction trees keep the order of
ranks and combine in the order of `canonical_tree`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import (
    Fold,
    Geometry,
    Ref,
    Step,
    binomial_children,
    binomial_parent,
    binomial_width,
    circular_runs,
    copy,
    inp,
    out,
    recv,
    reduce,
    reduction_links,
    rounds,
    scratch,
    send,
)


def depth(size: int) -> int:
    """Return the rounds of a reduction tree: folding, then doubling."""
    fold = Fold(size)
    return fold.bits + (fold.pairs > 0)


def reduce_to(
    team: Sequence[int], me: int, root: int, own: Ref, work: Ref, slot: int, label: str = "binomial reduce"
) -> Iterator[Step]:
    """Combine the contributions `own` of a team at its member `root`.

    The result is in `work`, or in `own` for a team of one rank.

    Other members accumulate in their `work`. Received pieces go to two slots of SCRATCH, from `slot` on.
    """
    children, parent = reduction_links(me, len(team), root)

    def receive(turn: int) -> Step:
        return recv(team[children[turn]], scratch(slot + turn % 2 * own.width, own.chunk, own.width), label)

    if children:
        yield receive(0)
    for turn, child in enumerate(children):
        if turn + 1 < len(children):
            yield receive(turn + 1)
        got = scratch(slot + turn % 2 * own.width, own.chunk, own.width)
        left, right = (got, own) if child < me else (own, got)
        yield reduce(left, right, work, label)
        own = work
    if parent is not None:
        yield send(team[parent], own, label)


def broadcast_from(
    team: Sequence[int], me: int, root: int, source: Ref, target: Ref, label: str = "binomial broadcast"
) -> Iterator[Step]:
    """Send `source` of the team's member `root` to `target` of all others."""
    size = len(team)
    position = (me - root) % size
    if position:
        yield recv(team[(binomial_parent(position) + root) % size], target, label)
        source = target
    for child in binomial_children(position, size):
        yield send(team[(child + root) % size], source, label)


@algorithm(
    "broadcast",
    "binomial",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(rounds(g.size), rounds(g.size)),
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """Every rank forwards the data to its children, largest subtree first. Traffic (p - 1) N (Thakur et al. 2005)."""
    yield from broadcast_from(range(g.size), g.rank, g.root, inp(0), out(0))
    if g.rank == g.root:
        yield copy(inp(0), out(0), "copy")


@algorithm(
    "reduce",
    "binomial",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(depth(g.size), depth(g.size), depth(g.size)),
    tree_order=True,
)
def reduce_binomial(g: Geometry) -> Iterator[Step]:
    """Combine partial results from the leaves to the root. Traffic (p - 1) N (Thakur et al. 2005)."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    work = out(0) if g.rank == g.root else scratch(0, 0)
    yield from reduce_to(range(g.size), g.rank, g.root, inp(0), work, 1)


@algorithm(
    "allreduce",
    "tree",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=lambda g: Cost(depth(g.size) + rounds(g.size), depth(g.size) + rounds(g.size), depth(g.size)),
    tree_order=True,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Binomial reduce to rank 0, then binomial broadcast: the fewest messages of all, 2 (p - 1). Traffic 2 (p - 1)
    N."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
    team = range(g.size)
    yield from reduce_to(team, g.rank, 0, inp(0), out(0), 0)
    yield from broadcast_from(team, g.rank, 0, out(0), out(0))


def _blocks_moved(g: Geometry) -> Fraction:
    """Count hops: a block makes as many as its position has one-bits."""
    return Fraction(sum(position.bit_count() for position in range(g.size)), g.size)


class _Subtree:
    """The blocks of a rank's subtree and their memory in SCRATCH: one run, or two if block numbers wrap around."""

    def __init__(self, g: Geometry) -> None:
        self.g = g
        self.position = (g.rank - g.root) % g.size
        self.children = binomial_children(self.position, g.size)

    def rank(self, position: int) -> int:
        return (position + self.g.root) % self.g.size

    def pieces(self, position: int, hold: Callable[[int, int], Ref]) -> list[Ref]:
        """Return the blocks of the subtree at `position`, as pieces of the memory that `hold` names."""
        width = binomial_width(position, self.g.size)
        return [hold(*run) for run in circular_runs(self.rank(position), width, self.g.size)]

    def image(self, block: int, width: int) -> Ref:
        if block >= self.g.rank:
            return scratch(0, block, width, base=self.g.rank)
        return scratch(self.g.size - self.g.rank, block, width, base=0)


@algorithm(
    "gather",
    "binomial",
    traffic=_blocks_moved,
    cost=lambda g: Cost(rounds(g.size), share(g), copied=1 / g.size),
)
def gather(g: Geometry) -> Iterator[Step]:
    """Every rank collects its subtree, then sends it to its parent as one message (two if ranks wrap around).

    Traffic: each block makes as many hops as its position has one-bits (Thakur et al. 2005).
    """
    tree = _Subtree(g)
    hold = tree.image if tree.position else out
    for child in reversed(tree.children):
        for piece in tree.pieces(child, hold):
            yield recv(tree.rank(child), piece, "binomial gather")
    if tree.children or not tree.position:
        yield copy(inp(g.rank), hold(g.rank, 1), "copy own block")
    else:
        hold = inp
    if tree.position:
        for piece in tree.pieces(tree.position, hold):
            yield send(tree.rank(binomial_parent(tree.position)), piece, "binomial gather")


@algorithm(
    "scatter",
    "binomial",
    traffic=_blocks_moved,
    cost=lambda g: Cost(rounds(g.size), share(g), copied=1 / g.size),
)
def scatter(g: Geometry) -> Iterator[Step]:
    """The mirror image of the binomial gather, with the same traffic."""
    tree = _Subtree(g)
    hold = inp if not tree.position else tree.image if tree.children else out
    if tree.position:
        for piece in tree.pieces(tree.position, hold):
            yield recv(tree.rank(binomial_parent(tree.position)), piece, "binomial scatter")
    for child in tree.children:
        for piece in tree.pieces(child, hold):
            yield send(tree.rank(child), piece, "binomial scatter")
    if hold is not out:
        yield copy(hold(g.rank, 1), out(g.rank), "copy own block")
