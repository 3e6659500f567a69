r"""Gather and scatter along a tree of hosts: blocks of a host cross its link together, in as few messages as possible.

                   0                  hosts A: 0 1 2, B: 3 4 5, C: 6 7, D: 8 9; root 0
           /    |     \    \         inside a host a binomial tree, rooted at its leader
          3     6      1    2         across hosts a binomial tree of the leaders: A -> C, A -> B, C -> D
         / \   / \                   (the root leads its host)
        4   5  7   8
                   |
                   9

A message carries all blocks of a subtree, one message for each run of successive ranks in it. (Thakur and Gropp,
"Improving the performance of collective operations in MPICH", 2003; Karonis et al., "MPI collective operations over
topology-aware trees", 2000.)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import (
    Geometry,
    Ref,
    Run,
    Step,
    binomial_children,
    by_host,
    copy,
    inp,
    out,
    recv,
    rounds,
    runs,
    scratch,
    send,
)


class _Tree:
    """The tree of a geometry.

    children   of every rank, those with the largest subtrees across hosts first
    parents    of every rank; -1 at the root
    below      the ranks of every rank's subtree, as runs
    depths     hops from every rank to the root
    """

    def __init__(self, hosts: tuple[int, ...], size: int, root: int) -> None:
        teams = by_host(hosts, size)
        home = next(number for number, team in enumerate(teams) if root in team)
        teams = [*teams[home:], *teams[:home]]
        leaders = [root, *(team[0] for team in teams[1:])]
        self.children: list[list[int]] = [[] for _ in range(size)]
        for number, leader in enumerate(leaders):
            self.children[leader] += [leaders[child] for child in binomial_children(number, len(leaders))]
        for leader, team in zip(leaders, teams, strict=True):
            first = team.index(leader)
            team = [*team[first:], *team[:first]]
            for position, rank in enumerate(team):
                self.children[rank] += [team[child] for child in binomial_children(position, len(team))]
        self.parents = [-1] * size
        self.depths = [0] * size
        order = [root]
        for rank in order:
            for child in self.children[rank]:
                self.parents[child], self.depths[child] = rank, self.depths[rank] + 1
                order.append(child)
        ranks = [{rank} for rank in range(size)]
        for rank in reversed(order[1:]):
            ranks[self.parents[rank]] |= ranks[rank]
        self.below: list[list[Run]] = [runs(of) for of in ranks]

    def keep(self, rank: int) -> list[tuple[Run, int]]:
        """Return the runs of a rank's subtree with the SCRATCH slots in which it keeps them."""
        kept, slot = [], 0
        for run in self.below[rank]:
            kept.append((run, slot))
            slot += run[1]
        return kept


_tree = lru_cache(maxsize=16)(_Tree)
"""The same tree serves all ranks; the prover and the simulator ask for every rank's."""


def _blocks_moved(g: Geometry) -> Fraction:
    return Fraction(sum(_tree(g.hosts, g.size, g.root).depths), g.size)


def _cost(g: Geometry) -> Cost:
    teams = by_host(g.hosts, g.size)
    largest = max(len(team) for team in teams)
    tree = _tree(g.hosts, g.size, g.root)
    pieces = max(len(tree.below[child]) for child in tree.children[g.root]) if g.size > 1 else 1
    local, far = rounds(largest), rounds(len(teams)) * pieces
    inside = (largest - 1) / g.size
    return Cost(local + far, share(g), copied=1 / g.size, local_rounds=local, local_sent=inside)


def _memory(g: Geometry, tree: _Tree) -> list[tuple[Run, Ref]]:
    """Return the memory in which a rank that forwards blocks keeps each run of its subtree."""
    return [(run, scratch(slot, *run, base=run[0])) for run, slot in tree.keep(g.rank)]


def _part(memory: list[tuple[Run, Ref]], run: Run) -> Ref:
    """Return the memory of successive blocks, which are part of one run."""
    for (first, width), whole in memory:
        if first <= run[0] < first + width:
            return whole._replace(chunk=run[0], width=run[1])
    raise ValueError(f"blocks {run} are in no subtree of this rank")


@algorithm("gather", "hierarchical", traffic=_blocks_moved, cost=_cost, multihost=True)
def gather(g: Geometry) -> Iterator[Step]:
    """Binomial gathers inside the hosts, then one across their leaders; the root leads its host. Every rank sends the
    blocks of its subtree to its parent, each run of successive ranks as one message. ceil(log2 h) messages between
    hosts follow each other, in any order of ranks (Karonis et al. 2000).

    Traffic: each block makes as many hops as its rank is deep. Time with hosts of l ranks: ceil(log2 l) local messages
    with (l - 1) / p N, and ceil(log2 h) with (p - l) / p N.
    """
    tree = _tree(g.hosts, g.size, g.root)
    children = tree.children[g.rank]
    if g.rank == g.root:
        for child in reversed(children):
            for run in tree.below[child]:
                yield recv(child, out(*run), "gather")
        yield copy(inp(g.rank), out(g.rank), "copy own block")
        return
    memory = _memory(g, tree) if children else [((g.rank, 1), inp(g.rank))]
    for child in reversed(children):
        for run in tree.below[child]:
            yield recv(child, _part(memory, run), "gather")
    if children:
        yield copy(inp(g.rank), _part(memory, (g.rank, 1)), "copy own block")
    for run in tree.below[g.rank]:
        yield send(tree.parents[g.rank], _part(memory, run), "gather")


@algorithm("scatter", "hierarchical", traffic=_blocks_moved, cost=_cost, multihost=True)
def scatter(g: Geometry) -> Iterator[Step]:
    """The mirror image of the hierarchical gather, with the same traffic."""
    tree = _tree(g.hosts, g.size, g.root)
    children = tree.children[g.rank]
    if g.rank == g.root:
        for child in children:
            for run in tree.below[child]:
                yield send(child, inp(*run), "scatter")
        yield copy(inp(g.rank), out(g.rank), "copy own block")
        return
    memory = _memory(g, tree) if children else [((g.rank, 1), out(g.rank))]
    for run in tree.below[g.rank]:
        yield recv(tree.parents[g.rank], _part(memory, run), "scatter")
    for child in children:
        for run in tree.below[child]:
            yield send(child, _part(memory, run), "scatter")
    if children:
        yield copy(_part(memory, (g.rank, 1)), out(g.rank), "copy own block")
