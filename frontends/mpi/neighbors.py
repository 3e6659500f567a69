"""The collectives between the neighbours of a topology: one message along each edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from frontends.mpi.blocks import Blocks
from frontends.mpi.constants import PROC_NULL
from frontends.mpi.peers import Peers
from frontends.mpi.plans import Exchange, Plan, Sent
from frontends.mpi.specs import divided, message, various, vector


class Topology(Protocol):
    """The edges of a rank: `slots` separates messages between the same two ranks, by the number of the edge at the
    receiver."""

    @property
    def sources(self) -> Sequence[int]:
        """The ranks that edges come from."""

    @property
    def destinations(self) -> Sequence[int]:
        """The ranks that edges go to."""

    def slot(self, edge: int, *, sent: bool) -> int:
        """The slot of the messages along an edge."""


def _exchange(peers: Peers, sent: Blocks, received: Blocks) -> Plan:
    topology: Topology = peers.topology
    sends = [
        Sent(rank, block, topology.slot(edge, sent=True))
        for edge, (rank, block) in enumerate(zip(topology.destinations, sent.blocks, strict=True))
        if rank != PROC_NULL
    ]
    receives = [
        Sent(rank, block, topology.slot(edge, sent=False))
        for edge, (rank, block) in enumerate(zip(topology.sources, received.blocks, strict=True))
        if rank != PROC_NULL
    ]
    return Exchange(peers, sends, receives)


def _same(peers: Peers, sendbuf: Any) -> Blocks:
    return Blocks([message(sendbuf, writable=False)] * len(peers.topology.destinations))


def neighbor_allgather(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    received = divided(recvbuf, len(peers.topology.sources), writable=True)
    return _exchange(peers, _same(peers, sendbuf), received)


def neighbor_allgatherv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    received = vector(recvbuf, len(peers.topology.sources), writable=True)
    return _exchange(peers, _same(peers, sendbuf), received)


def _each(peers: Peers, sendbuf: Any, recvbuf: Any, divide: Any) -> Plan:
    sent = divide(sendbuf, len(peers.topology.destinations), writable=False)
    return _exchange(peers, sent, divide(recvbuf, len(peers.topology.sources), writable=True))


def neighbor_alltoall(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _each(peers, sendbuf, recvbuf, divided)


def neighbor_alltoallv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _each(peers, sendbuf, recvbuf, vector)


def neighbor_alltoallw(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _each(peers, sendbuf, recvbuf, various)
