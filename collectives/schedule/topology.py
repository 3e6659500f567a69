"""Communication patterns: rings, trees, folds, hosts. Pure arithmetic on ranks; imports nothing of Ronde."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Tree: TypeAlias = "int | tuple[Tree, Tree]"
Run: TypeAlias = tuple[int, int]
"""First and width of consecutive numbers."""


def neighbours(rank: int, size: int) -> tuple[int, int]:
    """Return the left and the right neighbour of `rank` on a ring."""
    return (rank - 1) % size, (rank + 1) % size


def around(rank: int, size: int) -> list[int]:
    """Return all other ranks, the right neighbour first, so that not all ranks access rank 0 at the same time."""
    return [(rank + distance) % size for distance in range(1, size)]


def rounds(size: int) -> int:
    """Return the binary logarithm of `size`, rounded up: the number of doublings from 1 to `size`."""
    return (size - 1).bit_length()


def reverse_bits(value: int, bits: int) -> int:
    """Return the lowest `bits` bits of `value` in reverse order."""
    result = 0
    for _ in range(bits):
        result = result << 1 | value & 1
        value >>= 1
    return result


def circular_runs(first: int, width: int, size: int) -> list[Run]:
    """Return `width` consecutive numbers modulo `size`, from `first` on, as one or two runs."""
    first %= size
    head = min(width, size - first)
    return [(first, head)] if head == width else [(first, head), (0, width - head)]


def runs(numbers: Iterable[int]) -> list[Run]:
    """Return distinct numbers as ascending runs."""
    found: list[Run] = []
    for number in sorted(numbers):
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found


def dissemination(rank: int, size: int) -> list[tuple[int, int]]:
    """Return (destination, source) of every round: 1, 2, 4, ... ranks ahead and behind (Hensgen et al. 1988)."""
    return [((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range(rounds(size))]


# Binomial trees over positions 0..size-1, the root at position 0: a position's parent lacks its lowest bit.


def binomial_parent(position: int) -> int:
    """Return the parent of a position other than 0."""
    return position & (position - 1)


def binomial_width(position: int, size: int) -> int:
    """Return the size of the subtree at `position`. Its positions are consecutive, from `position` on."""
    return min(position & -position, size - position) if position else size


def binomial_children(position: int, size: int) -> list[int]:
    """Return the children, the largest subtree first."""
    width = binomial_width(position, size)
    return [position + (1 << k) for k in reversed(range(rounds(width)))]


@dataclass(frozen=True, slots=True)
class Fold:
    """`size` ranks folded onto 2**bits groups: the first `pairs` groups have two adjacent ranks, the others one.

        ranks    0 1   2 3   4    5        size 6: power 4, pairs 2
        groups    0     1    2    3

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
        """Return the group of a rank."""
        return rank // 2 if rank < 2 * self.pairs else rank - self.pairs

    def first(self, group: int) -> int:
        """Return the first rank of a group; `size` for group `power`."""
        return group + min(group, self.pairs)

    def members(self, group: int) -> range:
        """Return the ranks of a group."""
        return range(self.first(group), self.first(group + 1))


def canonical_tree(size: int) -> Tree:
    """Return the fixed tree in which algorithms in tree order combine the contributions of ranks 0..size-1.

    It is a balanced binary tree over the groups of the fold; the leaf of a pair is the combination of its two ranks.
    The left child is the left operand. Six ranks: (((0, 1), (2, 3)), (4, 5)).
    """
    fold = Fold(size)
    level: list[Tree] = []
    for group in range(fold.power):
        members = fold.members(group)
        level.append((members[0], members[1]) if len(members) == 2 else members[0])
    while len(level) > 1:
        level = [(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def canonical_siblings(size: int) -> dict[Run, tuple[Run, Run]]:
    """Map every node of the canonical tree but its root to the two children of its parent. Nodes are runs of ranks."""
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
    """Return a rank's children, in order, and its parent (None at the root) in a binomial reduction tree.

    The tree ends at `root` and combines in the order of the canonical tree. A partial result from a lower rank is the
    left operand. Groups are paired by exclusive or; unlike rotation, this keeps the order of ranks for any root.
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
    """Return the ranks of every host in ascending order. Empty `hosts` means one host."""
    groups: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts or [0] * size):
        groups.setdefault(host, []).append(rank)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Lanes:
    """Ranks by host and lane. There are as many lanes as the host with the fewest ranks has ranks.

    A lane has a team of ranks on every host; the first rank of a team leads it. With equally populated hosts a team is
    one rank. If some host has one rank, there is one lane.

    teams   teams[host][lane] are ranks in ascending order
    """

    teams: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def hosts(self) -> int:
        return len(self.teams)

    @property
    def lanes(self) -> int:
        return len(self.teams[0])

    def find(self, rank: int) -> tuple[int, int]:
        """Return host and lane of a rank. Raises ValueError for an unknown rank."""
        for host, lanes in enumerate(self.teams):
            for lane, team in enumerate(lanes):
                if rank in team:
                    return host, lane
        raise ValueError(f"rank {rank} is on no host")


def lanes(hosts: Sequence[int], size: int) -> Lanes:
    """Return the lanes of `size` ranks on `hosts`."""
    groups = by_host(hosts, size)
    count = min(len(members) for members in groups)
    return Lanes(tuple(tuple(tuple(members[lane::count]) for lane in range(count)) for members in groups))
