"""Who talks to whom: rings, trees, folds, hosts. Pure arithmetic on ranks; imports nothing of Ronde."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Tree: TypeAlias = "int | tuple[Tree, Tree]"
Run: TypeAlias = tuple[int, int]
"""First and width of consecutive numbers."""


def neighbours(rank: int, size: int) -> tuple[int, int]:
    """Left and right of `rank` on a ring."""
    return (rank - 1) % size, (rank + 1) % size


def around(rank: int, size: int) -> list[int]:
    """All other ranks, the right neighbour first: so that not everybody turns to rank 0 at once."""
    return [(rank + distance) % size for distance in range(1, size)]


def rounds(size: int) -> int:
    """The binary logarithm, rounded up: how often a number must double to reach `size`."""
    return (size - 1).bit_length()


def reverse_bits(value: int, bits: int) -> int:
    """`value` (below 2**bits) read backwards."""
    result = 0
    for _ in range(bits):
        result = result << 1 | value & 1
        value >>= 1
    return result


def circular_runs(first: int, width: int, size: int) -> list[Run]:
    """`width` numbers from `first` on, counted modulo `size`, as one or two runs."""
    first %= size
    head = min(width, size - first)
    return [(first, head)] if head == width else [(first, head), (0, width - head)]


def runs(numbers: Iterable[int]) -> list[Run]:
    """Distinct numbers as runs, ascending."""
    found: list[Run] = []
    for number in sorted(numbers):
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found


def dissemination(rank: int, size: int) -> list[tuple[int, int]]:
    """(to, from) in every round: 1, 2, 4, ... ranks ahead and behind (Hensgen, Finkel, Manber 1988)."""
    return [((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range(rounds(size))]


# Binomial trees over positions 0..size-1, the root at position 0: a position's parent lacks its lowest bit.


def binomial_parent(position: int) -> int:
    """The parent of a position other than 0."""
    return position & (position - 1)


def binomial_width(position: int, size: int) -> int:
    """How many positions, from `position` on, the subtree below it has, itself included."""
    return min(position & -position, size - position) if position else size


def binomial_children(position: int, size: int) -> list[int]:
    """The children, the one with the largest subtree first."""
    width = binomial_width(position, size)
    return [position + (1 << k) for k in reversed(range(rounds(width)))]


@dataclass(frozen=True, slots=True)
class Fold:
    """`size` ranks folded onto 2**bits groups: the first `pairs` groups are two adjacent ranks, the rest single ones.

    Groups are numbered in rank order, so a range of groups is a range of ranks.
    """

    size: int

    @property
    def bits(self) -> int:
        return self.size.bit_length() - 1

    @property
    def power(self) -> int:
        return 1 << self.bits

    @property
    def pairs(self) -> int:
        return self.size - self.power

    def group(self, rank: int) -> int:
        """The group that a rank is in."""
        return rank // 2 if rank < 2 * self.pairs else rank - self.pairs

    def first(self, group: int) -> int:
        """The first rank of a group; `size` for the group behind the last."""
        return group + min(group, self.pairs)

    def members(self, group: int) -> range:
        """The ranks of a group."""
        return range(self.first(group), self.first(group + 1))


def canonical_tree(size: int) -> Tree:
    """The fixed tree in which algorithms in tree order combine the contributions of ranks 0..size-1, left operand
    first: a balanced binary tree over the groups of the fold, a pair being combined before anything else."""
    fold = Fold(size)
    level: list[Tree] = []
    for group in range(fold.power):
        members = fold.members(group)
        level.append((members[0], members[1]) if len(members) == 2 else members[0])
    while len(level) > 1:
        level = [(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def canonical_siblings(size: int) -> dict[Run, tuple[Run, Run]]:
    """For every node of the canonical tree but its root: the two children of its parent. Nodes are runs of ranks."""
    siblings: dict[Run, tuple[Run, Run]] = {}

    def visit(node: Tree) -> Run:
        if isinstance(node, int):
            return node, 1
        left, right = visit(node[0]), visit(node[1])
        siblings[left] = siblings[right] = left, right
        return left[0], left[1] + right[1]

    visit(canonical_tree(size))
    return siblings


def reduction_links(rank: int, size: int, root: int) -> tuple[list[int], int | None]:
    """A binomial tree that ends at `root` and combines as the canonical tree does: from whom a rank takes partial
    results, in order, and to whom it passes its own on (None at the root).

    A partial result from a lower rank is the left operand. Groups are paired by exclusive or, which, unlike rotation,
    keeps the order of ranks whatever the root.
    """
    fold = Fold(size)
    mine, goal = fold.group(rank), fold.group(root)

    def head(group: int) -> int:
        return root if group == goal else fold.first(group)

    if rank != head(mine):
        return [], head(mine)
    children = [member for member in fold.members(mine) if member != rank]
    for k in range(fold.bits):
        partner = head(mine ^ (1 << k))
        if (mine ^ goal) >> k & 1:
            return children, partner
        children.append(partner)
    return children, None


def by_host(hosts: Sequence[int], size: int) -> list[list[int]]:
    """The ranks of every host, ascending. No `hosts` means one host."""
    groups: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts or [0] * size):
        groups.setdefault(host, []).append(rank)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Lanes:
    """Ranks by host and lane: as many lanes as the emptiest host has ranks, each with a team of ranks on every host.

    The first of a team leads it. Where hosts are equally populated a team is one rank, and where some host has one
    rank there is one lane.

    teams[host][lane] are ranks, ascending
    """

    teams: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def hosts(self) -> int:
        return len(self.teams)

    @property
    def lanes(self) -> int:
        return len(self.teams[0])

    def find(self, rank: int) -> tuple[int, int]:
        """Host and lane of a rank. Raises ValueError for a rank that is on no host."""
        for host, lanes in enumerate(self.teams):
            for lane, team in enumerate(lanes):
                if rank in team:
                    return host, lane
        raise ValueError(f"rank {rank} is on no host")


def lanes(hosts: Sequence[int], size: int) -> Lanes:
    """The lanes of a world."""
    groups = by_host(hosts, size)
    count = min(len(members) for members in groups)
    return Lanes(tuple(tuple(tuple(members[lane::count]) for lane in range(count)) for members in groups))
