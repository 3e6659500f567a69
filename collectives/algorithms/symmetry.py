"""Symmetries: the program of one rank stands for those of many.

An algorithm may declare that its ranks do the same in different places. Then a rank's program is that of a
representative, with other peers. With blocks of equal size nothing else differs. Tests prove every declaration for up
to 64 ranks, by comparing the programs of all ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collectives.schedule import Fold, Geometry, by_host

Ranks: TypeAlias = NDArray[np.int64]
Relation: TypeAlias = tuple[Any, ...]
"""The position of a peer as a rank sees it: '3 ahead'."""


class Symmetry(ABC):
    """Kinds of ranks. The ranks of a kind have one program, in which peers are named by relation.

    kinds  the ranks of each kind; the first one represents them
    turns  True if a turn by whole hosts of equal size maps the algorithm onto itself
    wraps  True if a message is cut in two where its run of blocks passes the last block
    """

    kinds: tuple[Ranks, ...]
    turns = False
    wraps = False

    @abstractmethod
    def relation(self, rank: int, peer: int) -> Relation:
        """Return the position of `peer` as `rank` sees it."""

    @abstractmethod
    def peers(self, relation: Relation) -> Ranks:
        """Return the peer of every rank in a relation; -1 for ranks that have none."""


class Rotation(Symmetry):
    """Ranks in a grid of rows and columns: rank (r, c) has the peers of rank (0, 0), r rows and c columns further."""

    turns = True

    def __init__(self, grid: Ranks, *, wraps: bool = False) -> None:
        self._grid = grid
        self.wraps = wraps
        self.turns = not wraps
        self.kinds = (np.sort(grid, axis=None),)
        place = np.empty((grid.size, 2), np.int64)
        place[grid.ravel()] = np.indices(grid.shape).reshape(2, -1).T
        self._place = place

    def relation(self, rank: int, peer: int) -> Relation:
        rows, columns = (self._place[peer] - self._place[rank]) % self._grid.shape
        return int(rows), int(columns)

    def peers(self, relation: Relation) -> Ranks:
        rows, columns = ((self._place + relation) % self._grid.shape).T
        found: Ranks = self._grid[rows, columns]
        return found


class Folded(Symmetry):
    """Ranks in the groups of a fold. The first ranks of groups have peers at the same exclusive-or of group numbers."""

    def __init__(self, size: int) -> None:
        fold = Fold(size)
        ranks = np.arange(size)
        paired = ranks < 2 * fold.pairs
        second = paired & (ranks % 2 == 1)
        self._group = np.where(paired, ranks // 2, ranks - fold.pairs)
        self._first = np.array([fold.first(group) for group in range(fold.power)])
        self._second = second
        self._paired = paired
        self.turns = not fold.pairs
        kinds = (ranks[second], ranks[paired & ~second], ranks[~paired])
        self.kinds = tuple(kind for kind in kinds if kind.size)

    def relation(self, rank: int, peer: int) -> Relation:
        apart = int(self._group[rank] ^ self._group[peer])
        return ("apart", apart) if apart else ("second" if self._second[peer] else "first",)

    def peers(self, relation: Relation) -> Ranks:
        ranks = np.arange(len(self._group))
        if relation[0] == "apart":
            return np.where(self._second, -1, self._first[self._group ^ relation[1]])
        if relation[0] == "first":
            return np.where(self._second, ranks - 1, -1)
        return np.where(self._paired & ~self._second, ranks + 1, -1)


def around_the_ring(g: Geometry) -> Symmetry:
    """Return the symmetry of ranks on one ring."""
    return Rotation(np.arange(g.size)[:, None])


def around_the_ring_in_runs(g: Geometry) -> Symmetry:
    """Return the symmetry of ranks on one ring whose messages are runs of blocks, which may pass the last block."""
    return Rotation(np.arange(g.size)[:, None], wraps=True)


def in_groups(g: Geometry) -> Symmetry:
    """Return the symmetry of the groups of a fold."""
    return Folded(g.size)


def by_host_and_lane(g: Geometry) -> Symmetry | None:
    """Return the symmetry of hosts with lanes of one rank; None if hosts have different numbers of ranks."""
    members = by_host(g.hosts, g.size)
    if len({len(ranks) for ranks in members}) > 1:
        return None
    return Rotation(np.array(members))
