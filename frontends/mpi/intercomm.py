"""Communicators of two groups."""

from __future__ import annotations

from typing import Any

from frontends.mpi.comm import KINDS, Comm, Intracomm, between
from frontends.mpi.comm_base import remote_group
from frontends.mpi.constants import UNDEFINED
from frontends.mpi.groups import Group
from frontends.mpi.handles import SURFACE
from frontends.mpi.info import INFO_NULL, Info
from frontends.mpi.objects import along
from frontends.mpi.peers import Peers


class Intercomm(Comm):
    """A communicator of two groups: every message goes to a rank of the other group."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Peers) and body.is_inter

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Any = None,
    ) -> Intercomm:
        local = Intracomm.Create_from_group(local_group, stringtag)
        return cls.of(between(local.peers, remote_group.ranks)).having(info, errhandler)

    def Get_remote_group(self) -> Group:
        return remote_group(self.peers)

    def Get_remote_size(self) -> int:
        return self.peers.peer_count

    @property
    def remote_group(self) -> Group:
        return self.Get_remote_group()

    @property
    def remote_size(self) -> int:
        return self.Get_remote_size()

    @property
    def _local(self) -> Peers:
        assert self.peers.local is not None
        return self.peers.local

    def _exchange(self, obj: Any) -> list[Any]:
        """Give an object to every rank of the other group; those of its ranks."""
        everyone = range(self.peers.peer_count)
        return along(self.peers, [(rank, obj, 1) for rank in everyone], [(rank, 1) for rank in everyone])

    def Merge(self, high: bool = False) -> Intracomm:
        peers = self.peers
        theirs = bool(self._exchange(bool(high))[0])
        local, remote = peers.ranks, peers.remote or ()
        first = not high if theirs != bool(high) else local[0] < remote[0]
        ranks = (*local, *remote) if first else (*remote, *local)
        numbers = [peers.channel.ranks.index(rank) for rank in ranks]
        return Intracomm.of(Peers(peers.process, peers.channel_among(numbers), ranks))

    def Create(self, group: Group) -> Intercomm:
        peers = self.peers
        ranks = group.ranks
        theirs = tuple(self._exchange(ranks)[0])
        if peers.ranks[peers.rank] not in ranks or not theirs:
            return Intercomm()
        return Intercomm.of(between(self._local.among([peers.ranks.index(rank) for rank in ranks]), theirs))

    def Split(self, color: int = 0, key: int = 0) -> Intercomm:
        peers = self.peers
        chosen = Intracomm.of(self._local)._split(color, key)
        ranks = tuple(peers.ranks[rank] for rank in chosen or ())
        others = {their: members for their, members in self._exchange((color, ranks)) if their != UNDEFINED}
        if chosen is None or color not in others:
            return Intercomm()
        return Intercomm.of(between(self._local.among(chosen), others[color]))


KINDS["Intercomm"] = Intercomm
