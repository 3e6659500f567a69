"""Communicators of one group and of two."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from collectives import RondeError
from frontends.mpi.comm_base import Predefined, make_self, make_world
from frontends.mpi.comm_collectives import Collectives, PrefixCollectives
from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, PATIENCE, TAG_LIMIT, UNDEFINED
from frontends.mpi.errors import error, failure, missing
from frontends.mpi.groups import Group
from frontends.mpi.handles import SURFACE
from frontends.mpi.info import INFO_NULL, Info
from frontends.mpi.ints import as_int, as_ints
from frontends.mpi.matched import Message
from frontends.mpi.objects import bcast
from frontends.mpi.operations import Ended
from frontends.mpi.peers import FOR_CREATE_GROUP, Peers
from frontends.mpi.recovery import shrink
from frontends.mpi.requests import Request
from frontends.mpi.status import Status
from frontends.mpi.topologies import DistributedGraph, Graph, Grid, neighbors


class Comm(Collectives):
    """A communicator: ranks, and messages and collectives between them that no others can take."""

    __module__ = SURFACE

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        made = super().fromhandle(handle)
        if made._body is None or cls is not Comm:
            return made
        return kind_of(made.peers).of(made._body)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        return Message.Probe(self, source, tag, status)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        return Message.Iprobe(self, source, tag, status)

    mprobe = Mprobe
    improbe = Improbe

    @classmethod
    def Get_parent(cls) -> Comm:
        return KINDS["Intercomm"]()  # type: ignore[no-any-return]

    def Create(self, group: Group) -> Any:
        ranks = group.ranks
        numbers = [self.peers.ranks.index(rank) for rank in ranks if rank in self.peers.ranks]
        if len(numbers) != len(ranks):
            raise error("ERR_GROUP", "the group has ranks that the communicator does not have")
        if self.peers.rank not in numbers:
            return Intracomm()
        return Intracomm.of(self.peers.among(numbers))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        chosen = self._split(color, key)
        return Intracomm() if chosen is None else Intracomm.of(self.peers.among(chosen))

    def Shrink(self) -> Any:
        made = shrink(self.peers)
        return kind_of(made).of(made)

    def Ishrink(self) -> tuple[Any, Request]:
        return self.Shrink(), Request.begun(Ended((-1, -1, 0, False)))

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> Any:
        return self.Split(self._host_color(split_type, info), key)


Comm.family = Comm


class Intracomm(PrefixCollectives, Comm):
    """A communicator of one group."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: Any) -> bool:
        return isinstance(body, Predefined) or not body.is_inter

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        peers = self.peers
        if not 0 <= as_int(tag, "tag") <= TAG_LIMIT:
            raise error("ERR_TAG", f"tag={tag}: must be 0 to {TAG_LIMIT}")
        if any(rank not in peers.ranks for rank in group.ranks):
            raise error("ERR_GROUP", "the group has ranks that the communicator does not have")
        numbers = [peers.ranks.index(rank) for rank in group.ranks]
        if peers.rank not in numbers:
            return Intracomm()
        return Intracomm.of(peers.among(numbers, FOR_CREATE_GROUP | tag))

    @classmethod
    def Create_from_group(
        cls, group: Group, stringtag: str = "org.mpi4py", info: Info = INFO_NULL, errhandler: Any = None
    ) -> Intracomm:
        world = COMM_WORLD.peers
        if world.rank not in group.ranks:
            return cls()
        try:
            tag = zlib.crc32(stringtag.encode()) & 0xFFFFFFF
            channel = world.process.world.channel(group.ranks, tag=tag, timeout=PATIENCE)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error
        return cls.of(Peers(world.process, channel, group.ranks)).having(info, errhandler)

    def Create_intercomm(self, local_leader: int, peer_comm: Intracomm, remote_leader: int, tag: int = 0) -> Any:
        peers, theirs = self.peers, None
        if peers.rank == local_leader:
            mine = tuple(peers.ranks)
            theirs = peer_comm.sendrecv(mine, remote_leader, tag, None, remote_leader, tag)
        remote = tuple(bcast(peers, theirs, local_leader))
        return KINDS["Intercomm"].of(between(peers.twin(), remote))

    # ---- topologies

    def _with_topology(self, name: str, size: int, make: Callable[[int], Any]) -> Any:
        """A communicator of the first ranks, whose topology `make` makes for a rank."""
        peers, kind = self.peers, KINDS[name]
        if size > peers.size:
            raise error("ERR_DIMS" if name == "Cartcomm" else "ERR_ARG", f"{size} ranks: there are {peers.size}")
        if peers.rank >= size:
            return kind()
        made = peers.among(range(size))
        made.topology = make(made.rank)
        return kind.of(made)

    def Create_cart(self, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        lengths = as_ints(dims, "dims")
        if periods is None or isinstance(periods, bool):
            periods = [bool(periods)] * len(lengths)
        if len(periods) != len(lengths):
            raise ValueError(f"periods={list(periods)}: must be {len(lengths)}, one for each dimension")
        if any(n < 1 for n in lengths):
            raise error("ERR_DIMS", f"dims={lengths}: must be 1 or more each")
        grid = Grid(lengths, periods, 0)
        return self._with_topology("Cartcomm", grid.size, grid.moved_to)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        ends = as_ints(index, "index")
        if ends and ends[0] == 0 and len(ends) > 1:
            ends = ends[1:]
        graph = Graph(ends, as_ints(edges, "edges"), 0)
        return self._with_topology("Graphcomm", len(ends), graph.moved_to)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Any = None,
        destweights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        lists = [
            neighbors(name, () if given is None else given, self.peers.size)
            for name, given in (("sources", sources), ("destinations", destinations))
        ]
        weights = [
            _weights(given, len(edges)) for given, edges in zip((sourceweights, destweights), lists, strict=True)
        ]
        made = self.peers.twin()
        pair = None if weights[0] is None or weights[1] is None else (weights[0], weights[1])
        made.topology = DistributedGraph(lists[0], lists[1], pair)
        return KINDS["Distgraphcomm"].of(made)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int] | int,
        destinations: Sequence[int],
        weights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        numbers = [degrees] * len(sources) if isinstance(degrees, int) else list(degrees)
        firsts, ends = (
            neighbors(name, ranks, self.peers.size)
            for name, ranks in (("sources", sources), ("destinations", destinations))
        )
        starts = [source for source, number in zip(firsts, numbers, strict=True) for _ in range(number)]
        given = _weights(weights, len(ends))
        mine = list(zip(starts, ends, given or [0] * len(starts), strict=True))
        everything = self.allgather((mine, given is not None))
        edges = [edge for part, _ in everything for edge in part]
        rank = self.peers.rank
        incoming = [(source, weight) for source, target, weight in edges if target == rank]
        outgoing = [(target, weight) for source, target, weight in edges if source == rank]
        weighted = all(flag for _, flag in everything)
        pair = ([weight for _, weight in incoming], [weight for _, weight in outgoing]) if weighted else None
        made = self.peers.twin()
        made.topology = DistributedGraph([r for r, _ in incoming], [r for r, _ in outgoing], pair)
        return KINDS["Distgraphcomm"].of(made)

    def Cart_map(self, dims: Sequence[int], periods: Any = None) -> int:
        grid = Grid(dims, [False] * len(dims), 0)
        return self.peers.rank if self.peers.rank < grid.size else UNDEFINED

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        nodes = len(index) - 1 if len(index) > 1 and index[0] == 0 else len(index)
        return self.peers.rank if self.peers.rank < nodes else UNDEFINED

    # ---- left out

    def Spawn(self, *arguments: Any, **options: Any) -> NoReturn:
        raise missing("Intracomm.Spawn", "start all ranks together, with ronde run -np N")

    def Spawn_multiple(self, *arguments: Any, **options: Any) -> NoReturn:
        raise missing("Intracomm.Spawn_multiple", "start all ranks together, with ronde run -np N")

    def Accept(self, *arguments: Any, **options: Any) -> NoReturn:
        raise missing("Intracomm.Accept", "start all ranks together, with ronde run -np N")

    def Connect(self, *arguments: Any, **options: Any) -> NoReturn:
        raise missing("Intracomm.Connect", "start all ranks together, with ronde run -np N")


def _weights(given: Any, count: int) -> list[int] | None:
    """Weights as a list; None for edges without weights. Raises ValueError."""
    if given is None or isinstance(given, _Weights):
        if given is WEIGHTS_EMPTY and count:
            raise ValueError(f"WEIGHTS_EMPTY for {count} edges")
        return [] if given is WEIGHTS_EMPTY else None
    found = as_ints(given, "weights")
    if len(found) != count:
        raise ValueError(f"{len(found)} weights for {count} edges")
    return found


class _Weights(int):
    """A constant in the place of weights."""


UNWEIGHTED: Final = _Weights(1)
WEIGHTS_EMPTY: Final = _Weights(2)


def peers_of(comm: Any) -> Peers:
    """The ranks of a communicator of one group. Raises TypeError for anything else."""
    if not isinstance(comm, Intracomm):
        raise TypeError(f"comm={comm!r}: must be an Intracomm")
    return comm.peers


def between(local: Peers, remote: tuple[int, ...]) -> Peers:
    """The ranks of an intercommunicator. Collective among both groups; that of the lower first rank comes first."""
    everyone = (*local.ranks, *remote) if local.ranks[0] < remote[0] else (*remote, *local.ranks)
    process = local.process
    try:
        channel = process.world.channel(everyone, timeout=PATIENCE)
    except ValueError as cause:
        raise error("ERR_COMM", f"the groups {local.ranks} and {remote} have ranks in common") from cause
    except RondeError as cause:
        raise failure(cause)  # noqa: B904 - its cause is the error
    return Peers(process, channel, local.ranks, remote=remote, local=local)


KINDS: Final[dict[str, type[Any]]] = {}
"""The classes of other communicators, which are subclasses of those here, by their names."""
_TOPOLOGIES: Final = {Grid: "Cartcomm", Graph: "Graphcomm", DistributedGraph: "Distgraphcomm"}


def kind_of(peers: Peers) -> type[Any]:
    """The class of handles of a communicator."""
    if peers.is_inter:
        return KINDS["Intercomm"]
    name = _TOPOLOGIES.get(type(peers.topology))
    return Intracomm if name is None else KINDS[name]


COMM_NULL: Final = Comm()
COMM_WORLD: Final = Intracomm.of(Predefined("COMM_WORLD", make_world))
COMM_SELF: Final = Intracomm.of(Predefined("COMM_SELF", make_self))
