"""Topologies: grids and graphs of ranks. Nothing here communicates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from frontends.mpi.constants import CART, DIST_GRAPH, GRAPH, PROC_NULL
from frontends.mpi.errors import error
from frontends.mpi.ints import as_int, as_ints


class Grid:
    """A Cartesian grid. Ranks are numbered in C order.

    dims, periods   lengths of the dimensions, and True for those that are periodic
    rank            this rank
    """

    kind: Final = CART

    def __init__(self, dims: Sequence[int], periods: Sequence[bool], rank: int) -> None:
        self.dims = as_ints(dims, "dims")
        self.periods = [bool(periodic) for periodic in periods]
        self.size = math.prod(self.dims)
        self.rank = rank

    def coords(self, rank: int) -> list[int]:
        """The place of a rank in the grid."""
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {self.size - 1}")
        return [int(n) for n in np.unravel_index(rank, self.dims)] if self.dims else []

    def at(self, coords: Sequence[int]) -> int:
        """The rank at a place. Raises ValueError for another number of coordinates, Exception outside of the grid."""
        if len(coords) != len(self.dims):
            raise ValueError(f"coords={list(coords)}: must be {len(self.dims)} ints")
        rank = self._at(as_ints(coords, "coords"))
        if rank == PROC_NULL:
            raise error("ERR_ARG", f"coords={list(coords)}: outside of the grid {self.dims}, periods {self.periods}")
        return rank

    def _at(self, coords: Sequence[int]) -> int:
        """The rank at a place, PROC_NULL outside of the grid."""
        rank = 0
        for place, length, periodic in zip(coords, self.dims, self.periods, strict=True):
            if not periodic and not 0 <= place < length:
                return PROC_NULL
            rank = rank * length + place % length
        return rank

    def shift(self, direction: int, disp: int) -> tuple[int, int]:
        """The ranks that a shift receives from and sends to."""
        direction, disp = as_int(direction, "direction"), as_int(disp, "disp")
        if not 0 <= direction < len(self.dims):
            raise error("ERR_DIMS", f"direction={direction}: must be 0 to {len(self.dims) - 1}")
        found = []
        for step in (-disp, disp):
            coords = self.coords(self.rank)
            coords[direction] += step
            found.append(self._at(coords))
        return found[0], found[1]

    @property
    def sources(self) -> list[int]:
        """The neighbours, two for each dimension: the lower one first."""
        return [rank for direction in range(len(self.dims)) for rank in self.shift(direction, 1)]

    destinations = sources

    def slot(self, edge: int, *, sent: bool) -> int:
        """A message that is sent downwards arrives from above, also if both neighbours are one rank."""
        return edge ^ 1 if sent else edge

    def moved_to(self, rank: int) -> Grid:
        """The same grid as another rank sees it."""
        return Grid(self.dims, self.periods, rank)


class Graph:
    """A graph whose edges every rank knows.

    index, edges   see MPI_Graph_create: the neighbours of rank i are edges[index[i - 1] : index[i]]
    """

    kind: Final = GRAPH

    def __init__(self, index: Sequence[int], edges: Sequence[int], rank: int) -> None:
        """Raises Exception for an index or edges that are no graph."""
        if list(index) != sorted(index) or (index and not 0 <= index[0] <= index[-1] <= len(edges)):
            raise error("ERR_ARG", f"index={list(index)}: must not decrease, and be 0 to {len(edges)}")
        self.index = list(index)
        self.edges = neighbors("edges", edges, len(index))
        self.rank = rank

    def neighbors(self, rank: int) -> list[int]:
        """The neighbours of a rank."""
        if not 0 <= rank < len(self.index):
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {len(self.index) - 1}")
        return self.edges[self.index[rank - 1] if rank else 0 : self.index[rank]]

    @property
    def sources(self) -> list[int]:
        return self.neighbors(self.rank)

    destinations = sources

    def slot(self, edge: int, *, sent: bool) -> int:
        return 0

    def moved_to(self, rank: int) -> Graph:
        """The same graph as another rank sees it."""
        return Graph(self.index, self.edges, rank)


class DistributedGraph:
    """A graph of which every rank knows its own edges.

    sources, destinations   the ranks that edges come from and go to
    weights                 those of the two; None for edges without weights
    """

    kind: Final = DIST_GRAPH

    def __init__(
        self, sources: list[int], destinations: list[int], weights: tuple[list[int], list[int]] | None
    ) -> None:
        self.sources = sources
        self.destinations = destinations
        self.weights = weights

    def slot(self, edge: int, *, sent: bool) -> int:
        return 0


def neighbors(name: str, ranks: Iterable[int], size: int) -> list[int]:
    """Neighbours as a list. Raises Exception for some that are no ranks."""
    found = as_ints(ranks, name)
    if not all(0 <= rank < size for rank in found):
        raise error("ERR_ARG", f"{name}={found}: must be ranks, 0 to {size - 1}")
    return found


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """The lengths of a grid's dimensions for so many ranks, as equal as possible. Lengths other than 0 are kept."""
    nnodes, lengths = as_int(nnodes, "nnodes"), [0] * dims if isinstance(dims, int) else as_ints(dims, "dims")
    if nnodes < 1 or any(n < 0 for n in lengths):
        raise error("ERR_DIMS", f"nnodes={nnodes}, dims={lengths}: must be 1 or more, and 0 or more")
    rest, odd = divmod(nnodes, math.prod(n for n in lengths if n))
    free = lengths.count(0)
    if odd or (not free and rest != 1):
        raise error("ERR_DIMS", f"nnodes={nnodes}: cannot be divided by the lengths {lengths}")
    found: Iterator[int] = iter(())
    if free:
        found = iter(min(_products(rest, free, _divisors(rest)), key=lambda factors: factors[0] - factors[-1]))
    return [n or next(found) for n in lengths]


def _products(number: int, count: int, divisors: Sequence[int]) -> Iterator[list[int]]:
    """All ways to write a number as a product of so many of the divisors, the largest first. Divisors: ascending."""
    if count > 1:
        for place, first in enumerate(divisors, 1):
            if first**count >= number and number % first == 0:
                yield from ([first, *rest] for rest in _products(number // first, count - 1, divisors[:place]))
    elif number in divisors:
        yield [number]


def _divisors(number: int) -> list[int]:
    """Ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
