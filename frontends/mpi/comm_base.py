"""Communicators: what they are, how they are made and freed. Their messages and collectives are in other modules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Self

import numpy as np

from frontends.mpi import constants, recovery
from frontends.mpi.attributes import Attributed
from frontends.mpi.constants import (
    COMM_TYPE_HW_GUIDED,
    COMM_TYPE_HW_UNGUIDED,
    COMM_TYPE_RESOURCE_GUIDED,
    COMM_TYPE_SHARED,
    CONGRUENT,
    IDENT,
    SIMILAR,
    TAG_LIMIT,
    UNDEFINED,
    UNEQUAL,
)
from frontends.mpi.errhandlers import Errhandler, ErrhandlerBody, Handling
from frontends.mpi.errors import error, last_used_code, missing
from frontends.mpi.groups import Group, GroupBody
from frontends.mpi.handles import Body
from frontends.mpi.info import INFO_NULL, Info, Informed
from frontends.mpi.ints import as_int
from frontends.mpi.memory import BUFFER_AUTOMATIC, as_memory
from frontends.mpi.operations import Ended
from frontends.mpi.peers import Peers
from frontends.mpi.processes import Process, current, world_of_rank
from frontends.mpi.requests import Request


class Predefined(Body):
    """A communicator that every rank has: the handle is shared by ranks that are threads, the communicator is not."""

    def __init__(self, name: str, make: Callable[[Process], Peers]) -> None:
        self.predefined = name
        self._make = make
        self._latest: tuple[Any, Any] = (None, None)
        """A world, and the communicator in it: those of the last call."""

    def resolve(self) -> Peers:
        """The communicator of this rank."""
        world, latest = self._latest
        if world is not None and world is world_of_rank():
            return latest  # type: ignore[no-any-return]
        process = current()
        found: Peers | None = process.bodies.get(self.predefined)
        if found is None:
            found = process.bodies.setdefault(self.predefined, self._make(process))
            found.name = found.name or f"MPI_{self.predefined}"
        self._latest = process.world, found
        return found

    @property
    def attributes(self) -> Any:
        return self.resolve().attributes

    @property
    def name(self) -> str:
        return self.resolve().name

    @name.setter
    def name(self, name: str) -> None:
        self.resolve().name = name

    @property
    def errhandler(self) -> ErrhandlerBody | None:
        handler: ErrhandlerBody | None = self.resolve().errhandler
        return handler

    @errhandler.setter
    def errhandler(self, handler: ErrhandlerBody | None) -> None:
        self.resolve().errhandler = handler


def make_world(process: Process) -> Peers:
    """The communicator of all ranks."""
    world = process.world
    return Peers(process, world.channel(), range(world.size), collectives=world)


def make_self(process: Process) -> Peers:
    """The communicator of this rank alone."""
    rank = process.world.rank
    return Peers(process, process.world.channel([rank]), [rank])


class CommBase(Attributed, Informed, Handling):
    """The identity of a communicator."""

    null = "COMM_NULL"
    error_class = "ERR_COMM"
    handling_error = "ERR_COMM"

    @property
    def peers(self) -> Peers:
        """The ranks. Raises Exception for COMM_NULL."""
        body = self._body
        if body.__class__ is Predefined:
            return body.resolve()
        if body is None:
            raise error("ERR_COMM", "it is COMM_NULL")
        return body  # type: ignore[no-any-return]

    # ---- ranks

    def Get_group(self) -> Group:
        return _group(self.peers, self.peers.ranks)

    def Get_size(self) -> int:
        return self.peers.size

    def Get_rank(self) -> int:
        return self.peers.rank

    @property
    def group(self) -> Group:
        return self.Get_group()

    @property
    def size(self) -> int:
        return self.peers.size

    @property
    def rank(self) -> int:
        return self.peers.rank

    def Is_inter(self) -> bool:
        return self.peers.is_inter

    def Is_intra(self) -> bool:
        return not self.peers.is_inter

    @property
    def is_inter(self) -> bool:
        return self.Is_inter()

    @property
    def is_intra(self) -> bool:
        return self.Is_intra()

    def Get_topology(self) -> int:
        topology = self.peers.topology
        return UNDEFINED if topology is None else int(topology.kind)

    @property
    def topology(self) -> int:
        return self.Get_topology()

    @property
    def is_topo(self) -> bool:
        return self._body is not None and self.Get_topology() != UNDEFINED

    def Compare(self, comm: CommBase) -> int:
        mine, other = self.peers, comm.peers
        if mine is other:
            return IDENT
        if mine.is_inter != other.is_inter:
            return UNEQUAL
        groups = (mine.ranks, mine.remote), (other.ranks, other.remote)
        if groups[0] == groups[1]:
            return CONGRUENT
        sets = [tuple(None if ranks is None else frozenset(ranks) for ranks in pair) for pair in groups]
        return SIMILAR if sets[0] == sets[1] else UNEQUAL

    # ---- duplicates

    def Clone(self) -> Self:
        return self.Dup()

    def Dup(self, info: Info | None = None) -> Self:
        self.peers.check()
        twin = self.peers.twin()
        twin.topology = self.peers.topology
        twin.errhandler = self.peers.errhandler
        twin.info = dict(self.peers.info if info is None else info.items())
        made = type(self).of(twin)
        try:
            self.copy_attributes(made)
        except BaseException:
            twin.close()
            raise
        return made

    def Dup_with_info(self, info: Info) -> Self:
        return self.Dup(info)

    def Idup(self, info: Info | None = None) -> tuple[Self, Request]:
        return self.Dup(info), Request.begun(Ended((-1, -1, 0, False)))

    def Idup_with_info(self, info: Info) -> tuple[Self, Request]:
        return self.Idup(info)

    # ---- the end

    def Free(self) -> None:
        body = self._body
        if body is None:
            raise error("ERR_COMM", "it is COMM_NULL")
        if body.predefined:
            raise error("ERR_COMM", f"{body.predefined} cannot be freed")
        self._release()
        self._body = None

    Disconnect = Free

    def _release(self) -> None:
        self.delete_attributes()
        self.peers.close()

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the job: the pending calls of all other ranks raise an error that names this rank, and this process exits
        with the code, wherever it is called. Ranks that are threads of one process raise SystemExit."""
        self.peers.process.world.abort(f"MPI.Comm.Abort({errorcode})")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if self.peers.process.is_local:
            raise SystemExit(errorcode)
        os._exit(errorcode)  # SystemExit may be caught, waits for threads, and does nothing in functions of atexit

    # ---- info, buffers of sends, attributes

    def _hints(self) -> dict[str, str]:
        return self.peers.info

    def having(self, info: Info, errhandler: Errhandler | None) -> Self:
        """The communicator itself, with an info and an error handler."""
        if info:
            self.Set_info(info)
        if errhandler is not None:
            self.Set_errhandler(errhandler)
        return self

    def Attach_buffer(self, buf: Any) -> None:
        self.peers.buffer = checked_buffer(buf)

    def Detach_buffer(self) -> Any:
        self.Flush_buffer()
        found, self.peers.buffer = self.peers.buffer, None
        return found

    def Flush_buffer(self) -> None:
        self.peers.process.flush()

    def Iflush_buffer(self) -> Request:
        self.Flush_buffer()
        return Request.begun(Ended((-1, -1, 0, False)))

    def _predefined_attribute(self, keyval: int) -> Any:
        values = {
            constants.TAG_UB: TAG_LIMIT,
            constants.IO: constants.ANY_SOURCE,
            constants.WTIME_IS_GLOBAL: 0,
            constants.UNIVERSE_SIZE: self.peers.process.world.size,
            constants.APPNUM: 0,
            constants.LASTUSEDCODE: last_used_code(),
        }
        if keyval not in values:
            return super()._predefined_attribute(keyval)
        return values[keyval]

    # ---- failures

    def Revoke(self) -> None:
        self.peers.revoke()

    def Is_revoked(self) -> bool:
        return self.peers.revoked

    def Get_failed(self) -> Group:
        return _group(self.peers, recovery.failed(self.peers))

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        peers = self.peers
        lost = recovery.failed(peers)
        peers.acknowledged |= set(lost[:num_to_ack])
        return len(peers.acknowledged)

    def Agree(self, flag: int) -> int:
        return recovery.agree(self.peers, int(flag))

    def Iagree(self, flag: Any) -> Request:
        place = recovery.flag_of(flag)
        return Request.begun(recovery.begin_agreement(self.peers, int(place[0]), place))

    # ---- left out

    def _missing(name: str, instead: str) -> Any:  # type: ignore[misc]
        def call(self: Any, *arguments: Any, **options: Any) -> NoReturn:
            raise missing(f"Comm.{name}", instead)

        call.__name__ = name
        return call

    Join: Any = classmethod(_missing("Join", "start all ranks together"))

    # ---- smaller ones

    def _split(self, color: int, key: int) -> list[int] | None:
        """The numbers of the ranks of this communicator with the same color, ordered; None for no color. Collective."""
        color, key = as_int(color, "color"), as_int(key, "key")
        if color != UNDEFINED and color < 0:
            raise error("ERR_ARG", f"color={color}: must be 0 or more, or UNDEFINED")
        peers = self.peers
        table = np.array(gather_ints(peers, [color, key])).reshape(-1, 2)
        if color == UNDEFINED:
            return None
        chosen = [(int(k), rank) for rank, (c, k) in enumerate(table.tolist()) if c == color]
        return [rank for _, rank in sorted(chosen)]

    def _host_color(self, split_type: int, info: Info = INFO_NULL) -> int:
        """The color of `Split_type`: equal for ranks of one host."""
        members = self.peers.process.world.members
        hosts = [member.host for member in members]
        color = hosts.index(hosts[self.peers.process.world.rank])
        if split_type == COMM_TYPE_SHARED:
            return color
        if split_type in (COMM_TYPE_HW_GUIDED, COMM_TYPE_RESOURCE_GUIDED):
            return color if info.get("mpi_hw_resource_type") == "mpi_shared_memory" else UNDEFINED
        if split_type == COMM_TYPE_HW_UNGUIDED:
            mine = {hosts[rank] for rank in self.peers.ranks}
            return color if len(mine) > 1 else UNDEFINED
        if split_type == UNDEFINED:
            return UNDEFINED
        raise error("ERR_ARG", f"split_type={split_type}: must be COMM_TYPE_SHARED or another type")


def _group(peers: Peers, ranks: tuple[int, ...]) -> Group:
    return Group.of(GroupBody(ranks, peers.process.world.rank))


def remote_group(peers: Peers) -> Group:
    """The other group of an intercommunicator."""
    return _group(peers, peers.remote or ())


def checked_buffer(buf: Any) -> Any:
    """A buffer for buffered sends. Raises BufferError for a read-only one."""
    if buf is not None and buf is not BUFFER_AUTOMATIC and not as_memory(buf).data.flags.writeable:
        raise BufferError("the buffer is read-only")
    return buf


def gather_ints(peers: Peers, values: list[int]) -> list[int]:
    """The ints of all ranks of an intracommunicator, one rank after the other. Collective."""
    found = peers.call("allgather", np.array(values, np.int64), timeout=constants.PATIENCE)
    return [int(value) for value in found]
