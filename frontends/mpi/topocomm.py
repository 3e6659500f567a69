"""Communicators with a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontends.mpi import objects
from frontends.mpi.comm import KINDS, Intracomm
from frontends.mpi.comm_collectives import forms
from frontends.mpi.constants import PROC_NULL
from frontends.mpi.handles import SURFACE
from frontends.mpi.peers import Peers
from frontends.mpi.topologies import DistributedGraph, Graph, Grid


class Topocomm(Intracomm):
    """A communicator whose ranks have neighbours."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Peers) and body.topology is not None

    Neighbor_allgather, Ineighbor_allgather, Neighbor_allgather_init = forms("neighbor_allgather")
    Neighbor_allgatherv, Ineighbor_allgatherv, Neighbor_allgatherv_init = forms("neighbor_allgatherv")
    Neighbor_alltoall, Ineighbor_alltoall, Neighbor_alltoall_init = forms("neighbor_alltoall")
    Neighbor_alltoallv, Ineighbor_alltoallv, Neighbor_alltoallv_init = forms("neighbor_alltoallv")
    Neighbor_alltoallw, Ineighbor_alltoallw, Neighbor_alltoallw_init = forms("neighbor_alltoallw")

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        return self.neighbor_alltoall([sendobj] * len(self.outedges))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        topology, objs = self.peers.topology, list(sendobj)
        if len(objs) != len(topology.destinations):
            raise ValueError(f"{len(objs)} objects; must be {len(topology.destinations)}, one for each edge")
        sends = [
            (rank, obj, 2 + topology.slot(edge, sent=True))
            for edge, (rank, obj) in enumerate(zip(topology.destinations, objs, strict=True))
            if rank != PROC_NULL
        ]
        edges = [edge for edge, rank in enumerate(topology.sources) if rank != PROC_NULL]
        receives = [(topology.sources[edge], 2 + topology.slot(edge, sent=False)) for edge in edges]
        found: list[Any] = [None] * len(topology.sources)
        for edge, obj in zip(edges, objects.along(self.peers, sends, receives), strict=True):
            found[edge] = obj
        return found

    @property
    def inedges(self) -> list[int]:
        return list(self.peers.topology.sources)

    @property
    def outedges(self) -> list[int]:
        return list(self.peers.topology.destinations)

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        return self.inedges, self.outedges

    @property
    def indegree(self) -> int:
        return len(self.inedges)

    @property
    def outdegree(self) -> int:
        return len(self.outedges)

    @property
    def degrees(self) -> tuple[int, int]:
        return self.indegree, self.outdegree


class Cartcomm(Topocomm):
    """A communicator whose ranks form a grid."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Peers) and isinstance(body.topology, Grid)

    @property
    def _grid(self) -> Grid:
        grid: Grid = self.peers.topology
        return grid

    def Get_dim(self) -> int:
        return len(self._grid.dims)

    @property
    def dim(self) -> int:
        return self.Get_dim()

    @property
    def ndim(self) -> int:
        return self.Get_dim()

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        return self.dims, self.periods, self.coords

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        return self.Get_topo()

    @property
    def dims(self) -> list[int]:
        return list(self._grid.dims)

    @property
    def periods(self) -> list[int]:
        return [int(periodic) for periodic in self._grid.periods]

    @property
    def coords(self) -> list[int]:
        return self._grid.coords(self.peers.rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        return self._grid.at(coords)

    def Get_coords(self, rank: int) -> list[int]:
        return self._grid.coords(rank)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        return self._grid.shift(direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        grid = self._grid
        if len(remain_dims) != len(grid.dims):
            raise ValueError(f"remain_dims={list(remain_dims)}: must be {len(grid.dims)}, one for each dimension")
        kept = [direction for direction, remains in enumerate(remain_dims) if remains]
        coords = self.coords
        members = []
        for rank in range(grid.size):
            place = grid.coords(rank)
            if all(place[d] == coords[d] for d in range(len(coords)) if d not in kept):
                members.append(rank)
        made = self.peers.among(members)
        made.topology = Grid([grid.dims[d] for d in kept], [grid.periods[d] for d in kept], made.rank)
        return Cartcomm.of(made)


class Graphcomm(Topocomm):
    """A communicator whose ranks form a graph that all of them know."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Peers) and isinstance(body.topology, Graph)

    @property
    def _graph(self) -> Graph:
        graph: Graph = self.peers.topology
        return graph

    def Get_dims(self) -> tuple[int, int]:
        return len(self._graph.index), len(self._graph.edges)

    @property
    def dims(self) -> tuple[int, int]:
        return self.Get_dims()

    def Get_topo(self) -> tuple[list[int], list[int]]:
        return self.index, self.edges

    @property
    def topo(self) -> tuple[list[int], list[int]]:
        return self.Get_topo()

    @property
    def nnodes(self) -> int:
        return len(self._graph.index)

    @property
    def nedges(self) -> int:
        return len(self._graph.edges)

    @property
    def index(self) -> list[int]:
        return list(self._graph.index)

    @property
    def edges(self) -> list[int]:
        return list(self._graph.edges)

    def Get_neighbors_count(self, rank: int) -> int:
        return len(self._graph.neighbors(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        return self._graph.neighbors(rank)

    @property
    def nneighbors(self) -> int:
        return len(self.inedges)

    @property
    def neighbors(self) -> list[int]:
        return self.inedges


class Distgraphcomm(Topocomm):
    """A communicator whose ranks form a graph of which each knows its own edges."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Peers) and isinstance(body.topology, DistributedGraph)

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        graph: DistributedGraph = self.peers.topology
        return len(graph.sources), len(graph.destinations), graph.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        graph: DistributedGraph = self.peers.topology
        return graph.sources, graph.destinations, graph.weights


KINDS.update({kind.__name__: kind for kind in (Cartcomm, Graphcomm, Distgraphcomm)})
