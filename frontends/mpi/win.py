"""Windows: memory that the ranks of a host share, and one-sided access to it.

A window of `Allocate_shared` and `Allocate` is one segment that all its ranks map, so that access to another rank's
part is access to memory. Ranks of several hosts have no window.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from frontends.mpi import constants
from frontends.mpi.attributes import Attributed, AttributedBody
from frontends.mpi.blocks import Block, check_kinds
from frontends.mpi.comm import COMM_SELF, Intracomm, peers_of
from frontends.mpi.constants import LOCK_EXCLUSIVE, LOCK_SHARED, PROC_NULL
from frontends.mpi.datatypes import BY_CODE
from frontends.mpi.epochs import Epochs
from frontends.mpi.errhandlers import Handling
from frontends.mpi.errors import error, missing
from frontends.mpi.groups import Group
from frontends.mpi.handles import SURFACE
from frontends.mpi.info import INFO_NULL, Info, Informed
from frontends.mpi.ints import as_int
from frontends.mpi.memory import BOTTOM, as_memory, buffer
from frontends.mpi.objects import receive, send, together
from frontends.mpi.operations import SLICE, Ended, Receiving, completed
from frontends.mpi.ops import SUM, Op, combine_arrays, known
from frontends.mpi.peers import Peers
from frontends.mpi.requests import Request
from frontends.mpi.segments import Segment
from frontends.mpi.specs import message

_ACROSS: Final = "one-sided access reaches ranks of one host, in windows of Allocate and Allocate_shared"
_POSTED, _COMPLETED = 8, 9
"""Slots of the messages of Post and Complete."""


class WinBody(AttributedBody):
    """A window.

    peers     its ranks, with messages of their own
    parts     by rank: the memory, and the unit of displacements; of a window of `Create` only this rank has a part
    segment   the shared memory; None for a window of the program's memory
    flavor    as the attribute WIN_CREATE_FLAVOR has it
    epochs    the calls of synchronization that are in force
    ending    the receives of the news that ranks have ended their access, after Post
    """

    def __init__(
        self, peers: Peers, parts: list[tuple[Any, int] | None], segment: Segment | None, locks: Segment, flavor: int
    ) -> None:
        super().__init__()
        self.peers = peers
        self.parts = parts
        self.segment = segment
        self.locks = locks
        self.flavor = flavor
        self.errhandler: Any = None
        self.info: dict[str, str] = {}
        self.epochs = Epochs()
        self.ending: list[Receiving] = []
        self._look_at = 0.0
        """Time of the next look for lost ranks."""

    @contextlib.contextmanager
    def atomic(self, rank: int) -> Iterator[None]:
        """Access the part of a rank alone. Raises MPI's Exception if ranks are lost: a program may wait for one of them
        by repeating such calls."""
        look, now = self.peers.process.look, time.monotonic()
        if now >= self._look_at:
            self._look_at = now + SLICE
            look()
        with self.locks.locked(self.peers.size + rank, look):
            yield


class Win(Attributed, Informed, Handling):
    """Memory that other ranks can reach."""

    __module__ = SURFACE
    null = "WIN_NULL"
    error_class = "ERR_WIN"
    handling_error = "ERR_WIN"

    def _known(self) -> WinBody:
        body: WinBody | None = self._body
        if body is None:
            raise error("ERR_WIN", "it is WIN_NULL")
        return body

    # ---- how it is made and freed

    @classmethod
    def _made(cls, comm: Intracomm, size: int, disp_unit: int, info: Info, flavor: int) -> Win:
        size, disp_unit = as_int(size, "size"), as_int(disp_unit, "disp_unit")
        with contextlib.ExitStack() as made:
            peers = made.enter_context(contextlib.closing(peers_of(comm).twin()))
            host = peers.process.world.members[peers.ranks[peers.rank]].host
            everyone = together(peers, lambda: (host, _size(size), _unit(disp_unit)))
            if len({host for host, _, _ in everyone}) > 1:
                raise missing("windows of ranks on several hosts", _ACROSS)
            starts = [0, *np.cumsum([nbytes for _, nbytes, _ in everyone]).tolist()]
            segment = made.enter_context(contextlib.closing(Segment.make(starts[-1], peers)))
            locks = made.enter_context(contextlib.closing(Segment.make(2 * peers.size, peers)))
            made.pop_all()
        parts: list[tuple[Any, int] | None] = [
            (segment.memory[start : start + nbytes], unit)
            for start, (_, nbytes, unit) in zip(starts, everyone, strict=False)
        ]
        return cls._with(WinBody(peers, parts, segment, locks, flavor), info)

    @classmethod
    def _with(cls, body: WinBody, info: Info) -> Win:
        body.info = dict(info.items())
        return cls.of(body)

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Win:
        return cls._made(comm, size, disp_unit, info, constants.WIN_FLAVOR_SHARED)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Win:
        return cls._made(comm, size, disp_unit, info, constants.WIN_FLAVOR_ALLOCATE)

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Win:
        disp_unit = as_int(disp_unit, "disp_unit")
        mine = as_memory(None if memory is BOTTOM else memory).data, disp_unit
        with contextlib.ExitStack() as made:
            peers = made.enter_context(contextlib.closing(peers_of(comm).twin()))
            together(peers, lambda: _unit(disp_unit))
            locks = made.enter_context(contextlib.closing(Segment.make(2 * peers.size, peers)))
            made.pop_all()
        parts: list[tuple[Any, int] | None] = [None] * peers.size
        parts[peers.rank] = mine
        return cls._with(WinBody(peers, parts, None, locks, constants.WIN_FLAVOR_CREATE), info)

    @classmethod
    def Create_dynamic(cls, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Win:
        raise missing("Win.Create_dynamic", _ACROSS)

    def Attach(self, memory: Any) -> None:
        raise missing("Win.Attach", _ACROSS)

    def Detach(self, memory: Any) -> None:
        raise missing("Win.Detach", _ACROSS)

    def Free(self) -> None:
        self._release()

    def _release(self) -> None:
        """Free it, also if ranks are lost, which raises afterwards."""
        body = self._known()
        self.delete_attributes()
        self._body = None
        with contextlib.closing(body.peers):
            try:
                body.peers.call("barrier", timeout=constants.PATIENCE)
            finally:
                body.parts = [None] * len(body.parts)
                for segment in (body.segment, body.locks):
                    if segment is not None:
                        segment.close()

    # ---- what it is

    def _part(self, rank: int) -> tuple[Any, int]:
        body = self._known()
        if not 0 <= rank < body.peers.size:
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {body.peers.size - 1}")
        part = body.parts[rank]
        if part is None:
            raise missing("access to a window of Win.Create on another rank", _ACROSS)
        return part

    def _mine(self) -> tuple[Any, int]:
        return self._part(self._known().peers.rank)

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        body = self._known()
        if rank == PROC_NULL:
            parts = [part for part in body.parts if part is not None]
            memory, unit = next((part for part in parts if len(part[0])), parts[0])
        else:
            memory, unit = self._part(rank)
        return buffer.frombuffer(memory), unit

    def tomemory(self) -> buffer:
        return buffer.frombuffer(self._mine()[0])

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._mine()[0])

    def _predefined_attribute(self, keyval: int) -> Any:
        memory, unit = self._mine()
        values = {
            constants.WIN_BASE: memory.ctypes.data if len(memory) else 0,
            constants.WIN_SIZE: len(memory),
            constants.WIN_DISP_UNIT: unit,
            constants.WIN_CREATE_FLAVOR: self._known().flavor,
            constants.WIN_MODEL: constants.WIN_UNIFIED,
        }
        return values[keyval] if keyval in values else super()._predefined_attribute(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:
        return (
            self.Get_attr(constants.WIN_BASE),
            self.Get_attr(constants.WIN_SIZE),
            self.Get_attr(constants.WIN_DISP_UNIT),
        )

    @property
    def flavor(self) -> int:
        return self._known().flavor

    @property
    def model(self) -> int:
        self._known()
        return constants.WIN_UNIFIED

    def Get_group(self) -> Group:
        return Intracomm.of(self._known().peers).Get_group()

    @property
    def group(self) -> Group:
        return self.Get_group()

    @property
    def group_size(self) -> int:
        return self._known().peers.size

    @property
    def group_rank(self) -> int:
        return self._known().peers.rank

    def _hints(self) -> dict[str, str]:
        return self._known().info

    # ---- access

    def _target(self, rank: int, origin: Block, target: Any) -> Block:
        memory, unit = self._part(rank)
        disp, count, kind = 0, origin.count, origin.datatype
        if isinstance(target, (list, tuple)):
            if len(target) > 3:
                raise ValueError(f"target: {len(target)} items; must be displacement, count and datatype at most")
            disp = as_int(target[0], "disp") if target else 0
            count = as_int(target[1], "count") if len(target) > 1 else count
            kind = target[2] if len(target) > 2 else kind
        elif isinstance(target, (int, np.integer)):
            disp = int(target)
        elif target is not None:
            raise ValueError(f"target: {target!r}; must be a displacement, or a list with count and datatype too")
        datatype = BY_CODE[kind] if isinstance(kind, str) else kind
        if disp < 0 or count < 0:
            raise ValueError(f"target: displacement {disp}, count {count}: must be 0 or more")
        self._known().epochs.access(rank)
        return Block(memory, disp * unit, count, datatype)

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        if target_rank == PROC_NULL:
            return
        given = message(origin, writable=False)
        place = self._target(target_rank, given, target)
        _check_sizes(given, place)
        place.write(given.read())

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        if target_rank == PROC_NULL:
            return
        result = message(origin, writable=True)
        place = self._target(target_rank, result, target)
        _check_sizes(result, place)
        result.write(place.read())

    def _combine(self, block: Block, place: Block, op: Op, fetched: Block | None) -> None:
        """Combine the data of a block with those at a place, atomically, and fetch what was there."""
        body = self._known()
        ronde_op, dtype = known(op).on_arrays(place.datatype, moves=True)
        if ronde_op != "no_op":
            _check_sizes(block, place)
            if ronde_op != "replace":
                check_kinds(block, place)
        rank = next(n for n, part in enumerate(body.parts) if part is not None and part[0] is place.memory)
        with body.atomic(rank):
            before = place.array(dtype).copy()
            if fetched is not None:
                fetched.write(before.view(np.uint8))
            if ronde_op != "no_op":
                after = np.empty_like(before)
                combine_arrays(ronde_op, block.array(dtype), before, after)
                place.write(after.view(np.uint8))

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        if target_rank == PROC_NULL:
            return
        given = message(origin, writable=False)
        self._combine(given, self._target(target_rank, given, target), op, None)

    def Get_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        if target_rank == PROC_NULL:
            return
        given, fetched = message(origin, writable=False), message(result, writable=True)
        self._combine(given, self._target(target_rank, fetched, target), op, fetched)

    def Fetch_and_op(self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Op = SUM) -> None:
        if target_rank == PROC_NULL:
            return
        given, fetched = message(origin, writable=False), message(result, writable=True)
        _check_single(fetched, given)
        self._combine(given, self._target(target_rank, fetched, (target_disp, 1)), op, fetched)

    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        if target_rank == PROC_NULL:
            return
        body = self._known()
        given, expected = message(origin, writable=False), message(compare, writable=False)
        fetched = message(result, writable=True)
        _check_single(fetched, given, expected)
        place = self._target(target_rank, fetched, (target_disp, 1))
        with body.atomic(target_rank):
            before = place.read().copy()
            fetched.write(before)
            if np.array_equal(before, expected.read()[: len(before)]):
                place.write(given.read()[: len(before)])

    def _requested(self, call: Any, *arguments: Any) -> Request:
        call(*arguments)
        return Request.begun(Ended((-1, -1, 0, False)))

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        return self._requested(self.Put, origin, target_rank, target)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        return self._requested(self.Get, origin, target_rank, target)

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        return self._requested(self.Accumulate, origin, target_rank, target, op)

    def Rget_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        return self._requested(self.Get_accumulate, origin, result, target_rank, target, op)

    # ---- synchronization

    def Fence(self, assertion: int = 0) -> None:
        body = self._known()
        body.epochs.fence(as_int(assertion, "assertion"))
        Intracomm.of(body.peers).Barrier()

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        body = self._known()
        if lock_type not in (LOCK_EXCLUSIVE, LOCK_SHARED):
            raise error("ERR_LOCKTYPE", f"lock_type={lock_type}: must be LOCK_EXCLUSIVE or LOCK_SHARED")
        if rank == PROC_NULL:
            return
        self._place(rank)
        body.epochs.lock(rank)
        self._lock(body, rank, lock_type)

    def _lock(self, body: WinBody, rank: int, lock_type: int) -> None:
        body.locks.lock(rank, body.peers.process.look, shared=lock_type == LOCK_SHARED)
        body.epochs.held.add(rank)

    def _place(self, rank: int) -> None:
        if not 0 <= rank < self._known().peers.size:
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {self._known().peers.size - 1}")

    def Unlock(self, rank: int) -> None:
        body = self._known()
        if rank == PROC_NULL:
            return
        self._place(rank)
        body.epochs.unlock(rank)
        self._unlock(body, rank)

    def _unlock(self, body: WinBody, rank: int) -> None:
        body.epochs.held.remove(rank)
        body.locks.unlock(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        body = self._known()
        body.epochs.lock_all()
        for rank in range(body.peers.size):
            self._lock(body, rank, LOCK_SHARED)
        body.epochs.of_all = True

    def Unlock_all(self) -> None:
        body = self._known()
        body.epochs.unlock_all()
        body.epochs.of_all = False
        for rank in range(body.peers.size):
            self._unlock(body, rank)

    def Flush(self, rank: int) -> None:
        """Access is complete when its call returns."""
        epochs = self._known().epochs
        if rank != PROC_NULL:
            self._place(rank)
            epochs.flush(rank)

    def Flush_all(self) -> None:
        self._known().epochs.flush()

    Flush_local = Flush
    Flush_local_all = Flush_all

    def Sync(self) -> None:
        """Do nothing: all ranks see one memory."""
        self._known()

    def _numbers(self, group: Group) -> tuple[int, ...]:
        peers = self._known().peers
        strangers = [rank for rank in group.ranks if rank not in peers.ranks]
        if strangers:
            raise error("ERR_GROUP", f"ranks {strangers} of the world have no part of the window")
        return tuple(peers.ranks.index(rank) for rank in group.ranks)

    def Post(self, group: Group, assertion: int = 0) -> None:
        body = self._known()
        exposed = self._numbers(group)
        body.epochs.post()
        body.epochs.posted = True
        body.ending = [receive(body.peers, rank, _COMPLETED) for rank in exposed]
        for rank in exposed:
            send(body.peers, None, rank, _POSTED)

    def Start(self, group: Group, assertion: int = 0) -> None:
        body = self._known()
        accessed = self._numbers(group)
        body.epochs.start()
        body.epochs.started = accessed
        for rank in accessed:
            completed(body.peers, receive(body.peers, rank, _POSTED))

    def Complete(self) -> None:
        body = self._known()
        for rank in body.epochs.complete():
            send(body.peers, None, rank, _COMPLETED)

    def Wait(self) -> bool:
        body = self._known()
        body.epochs.wait()
        body.epochs.posted = False
        ending, body.ending = body.ending, []
        for news in ending:
            completed(body.peers, news)
        return True

    def Test(self) -> bool:
        body = self._known()
        body.epochs.wait()
        return all(news.test() for news in body.ending) and self.Wait()


Win.family = Win
WIN_NULL: Final = Win()


def _size(size: int) -> int:
    if size < 0:
        raise error("ERR_SIZE", f"size={size}: must be 0 or more")
    return size


def _unit(disp_unit: int) -> int:
    if disp_unit < 1:
        raise error("ERR_DISP", f"disp_unit={disp_unit}: must be 1 or more")
    return disp_unit


def _check_sizes(origin: Block, place: Block) -> None:
    """Raise ValueError if an access has other bytes at the origin than in the window."""
    if origin.nbytes != place.nbytes:
        raise ValueError(f"target: {place.nbytes} bytes; must be the {origin.nbytes} of the origin")


def _check_single(*blocks: Block) -> None:
    """Raise ValueError unless all blocks are one element of one kind."""
    if any(block.count != 1 or block.nbytes != blocks[0].nbytes for block in blocks):
        raise ValueError(
            f"message: {[block.count for block in blocks]} elements; must be one element of one datatype each"
        )
