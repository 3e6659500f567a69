r"""Double binary trees: two trees carry half of the data each, and the inner ranks of one are leaves of the other.

    ten ranks, first tree            second tree: the mirror image, rank 9 - r in the place of r

    0---------------8                9---------------1
           ______/   \                      ______/   \
          4           9                     5           0
        /   \                             /   \
       2     6                            7     3
      / \   / \                          / \   / \
     1   3 5   7                        8   6 4   2

In one tree an inner rank sends everything twice and a leaf nothing; in both together all ranks send alike: the whole
rate of all links is used, in logarithmic depth. For an odd number of ranks the second tree is shifted by one rank.
(Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; the form of the
trees is that of NCCL 2.4.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Ref, Step, copy, inp, out, recv, reduce, rounds, scratch, send

_Links = tuple[int | None, list[int]]
"""The parent, None at the root, and the children."""


_AHEAD = 3
"""Segments for which a rank posts receives, and sends what it has as a leaf, before it waits for its children. With
fewer, each tree waits for the other in turn."""


def _links(position: int, size: int) -> _Links:
    """Return the links of a position in the first tree. Odd positions are leaves."""
    if not position:
        return None, [1 << (size - 1).bit_length() - 1] if size > 1 else []
    bit = position & -position
    above = (position ^ bit) | bit << 1
    parent = above if above < size else position ^ bit
    children = [position - bit // 2] if bit > 1 else []
    right = bit // 2
    while right and position + right >= size:
        right //= 2
    return parent, [*children, position + right] if right else children


def _trees(team: Sequence[int], me: int) -> list[_Links]:
    """Return the links of a team's member in both trees, as ranks."""
    size = len(team)
    turned = [team[::-1], [*team[1:], team[0]]][size % 2]
    found = []
    for order in (team, turned):
        parent, children = _links(order.index(team[me]), size)
        found.append((None if parent is None else order[parent], [order[child] for child in children]))
    return found


def _down(g: Geometry, links: Sequence[_Links], whole: bool, label: str) -> Iterator[Step]:
    """Pass both halves from parents to children, a segment of each in turn, with one receive posted ahead. `whole`: a
    rank without parents has the data in IN, otherwise in OUT."""
    turns = [(half, half * g.segments + s) for s in range(g.segments) for half in (0, 1)]

    def receive(turn: int) -> Iterator[Step]:
        if turn < len(turns):
            parent, chunk = links[turns[turn][0]][0], turns[turn][1]
            if parent is not None:
                yield recv(parent, out(chunk), label)

    for turn in range(2 * _AHEAD - 1):
        yield from receive(turn)
    for turn, (half, chunk) in enumerate(turns):
        yield from receive(turn + 2 * _AHEAD - 1)
        parent, children = links[half]
        for child in children:
            yield send(child, inp(chunk) if whole and parent is None else out(chunk), label)


def _allreduce_cost(g: Geometry) -> Cost:
    """Count successive messages of half a segment; a rank passes two in a segment's turn upwards and two downwards, and
    loses one where trees wait for each other."""
    if g.size == 1:
        return Cost(0, 0)
    each = 2 if g.size == 2 else 4 if g.size == 3 else 5
    messages = 4 * rounds(g.size) - 1 - (g.size < 4) + each * (g.segments - 1)
    return Cost(messages, messages / 2 / g.segments, min(2, g.size - 1) / 2, flight=min(g.segments, _AHEAD))


def _broadcast_cost(g: Geometry) -> Cost:
    messages = 2 * rounds(g.size) + 2 * (g.segments - 1) if g.size > 1 else 0
    return Cost(messages, messages / 2 / g.segments)


@algorithm(
    "allreduce",
    "double_tree",
    blocks=lambda size: 2,
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=_allreduce_cost,
    segmented=True,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Each half of the data goes up a binary tree, combined on the way, and down again. The inner ranks of one tree are
    leaves of the other, so that all ranks send and receive alike.

    Traffic 2 (p - 1) N (Sanders, Speck, Träff 2009). Time for s segments: (4 log2 p + 5 s) (alpha + beta N / 2 s).
    """
    if g.size == 1:
        yield copy(inp(0, 2 * g.segments), out(0, 2 * g.segments), "copy")
    trees = _trees(range(g.size), g.rank)
    apart = trees[0][0] != trees[1][0]  # else the messages of both trees must keep their order
    leaves = [half for half, (parent, children) in enumerate(trees) if parent is not None and not children and apart]

    def receive(s: int) -> Iterator[Step]:
        for half, (_, children) in enumerate(trees) if s < g.segments else ():
            for turn, child in enumerate(children):
                slot = 4 * (s % _AHEAD) + 2 * half + turn
                yield recv(child, scratch(slot, half * g.segments + s), "double tree reduce")

    def send_up(half: int, total: Ref) -> Iterator[Step]:
        parent = trees[half][0]
        if parent is not None:
            yield send(parent, total, "double tree reduce")

    def give(s: int) -> Iterator[Step]:
        for half in leaves if s < g.segments else ():
            yield from send_up(half, inp(half * g.segments + s))

    for s in range(_AHEAD - 1):
        yield from receive(s)
        yield from give(s)
    for s in range(g.segments):
        yield from receive(s + _AHEAD - 1)
        yield from give(s + _AHEAD - 1)
        for half in (half for half in (0, 1) if half not in leaves):
            chunk = half * g.segments + s
            own = inp(chunk)
            for turn in range(len(trees[half][1])):
                slot = 4 * (s % _AHEAD) + 2 * half + turn
                yield reduce(scratch(slot, chunk), own, out(chunk), "double tree reduce")
                own = out(chunk)
            yield from send_up(half, own)
    yield from _down(g, trees, False, "double tree broadcast")


@algorithm(
    "broadcast",
    "double_tree",
    blocks=lambda size: 2,
    traffic=lambda g: Fraction(g.size - 1),
    cost=_broadcast_cost,
    segmented=True,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """The root sends one half of the data to each root of two binary trees of the other ranks. The inner ranks of one
    tree are leaves of the other, so that every rank sends no more than it receives.

    Traffic (p - 1) N (Sanders, Speck, Träff 2009). Time for s segments: 2 (s + log2 p) (alpha + beta N / 2 s).
    """
    team = [(g.root + 1 + position) % g.size for position in range(g.size - 1)]
    if g.rank == g.root:
        links: list[_Links] = [(None, team[:1]), (None, ([team[-1:], team[1:2]][len(team) % 2] or team[:1]))]
    else:
        links = [
            (g.root if parent is None else parent, children) for parent, children in _trees(team, team.index(g.rank))
        ]
    yield from _down(g, links, True, "double tree broadcast")
    if g.rank == g.root:
        yield copy(inp(0, 2 * g.segments), out(0, 2 * g.segments), "copy")
