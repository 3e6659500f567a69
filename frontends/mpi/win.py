"""Windows: memory of several ranks, and one-sided access to it.

A window of `Allocate_shared`, or of `Allocate` on one host, is a segment that all its ranks map, so that access to
another rank's part is access to memory. The parts of other windows have keepers: see places.py.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
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
from frontends.mpi.memory import BOTTOM, Bytes, as_memory, buffer
from frontends.mpi.objects import check_authenticated, receive, send, together
from frontends.mpi.operations import SLICE, Ended, Receiving, completed
from frontends.mpi.ops import SUM, Op, known
from frontends.mpi.peers import Peers
from frontends.mpi.places import Asked, Keeper, Mapped, Place
from frontends.mpi.requests import Request
from frontends.mpi.segments import Segment
from frontends.mpi.specs import message

_NOTHING: Final = np.empty(0, np.uint8)
_POSTED, _COMPLETED = 8, 9
"""Slots of the messages of Post and Complete."""


class WinBody(AttributedBody):
    """A window.

    peers     its ranks, with messages of their own
    parts     by rank: the memory, None unless this rank maps it; and the unit of displacements
    segments  the shared memory, if there is any, and last the locks; empty if the window has keepers
    keeper    what accesses this rank's part for the others; None if all ranks map all parts
    flavor    as the attribute WIN_CREATE_FLAVOR has it
    attached  of a dynamic window, the memory of the program by its address
    epochs    the calls of synchronization that are in force
    ending    the receives of the news that ranks have ended their access, after Post
    """

    def __init__(
        self, peers: Peers, parts: Sequence[tuple[Bytes | None, int]], flavor: int, segments: Sequence[Segment] = ()
    ) -> None:
        super().__init__()
        self.peers = peers
        self.parts = list(parts)
        self.segments = list(segments)
        self.flavor = flavor
        self.attached: dict[int, Bytes] = {}
        self.errhandler: Any = None
        self.info: dict[str, str] = {}
        self.epochs = Epochs()
        self.ending: list[Receiving] = []
        self._look_at = 0.0
        """Time of the next look for lost ranks."""
        # last, since its thread asks this object
        self.keeper = None if segments else Keeper(peers, partial(self.memory_at, peers.rank))

    def memory_at(self, rank: int, displacement: int) -> tuple[Bytes, int]:
        """The memory at a displacement in bytes in a part that this rank maps, and where the displacement lies in it.
        Raises Exception with the class ERR_RMA_RANGE for memory that is not attached."""
        if self.flavor != constants.WIN_FLAVOR_DYNAMIC:
            memory = self.parts[rank][0]
            assert memory is not None
            return memory, displacement
        for address, memory in list(self.attached.items()):
            if 0 <= displacement - address < max(1, len(memory)):
                return memory, displacement - address
        raise error("ERR_RMA_RANGE", f"rank {rank} has attached no memory at {displacement:#x}")

    @contextlib.contextmanager
    def atomic(self, rank: int) -> Iterator[None]:
        """Access the part of a rank alone. Raises MPI's Exception if ranks are lost: a program may wait for one of them
        by repeating such calls."""
        if self.keeper is not None:
            with self.keeper.alone:
                yield
            return
        look, now = self.peers.process.look, time.monotonic()
        if now >= self._look_at:
            self._look_at = now + SLICE
            look()
        with self.segments[-1].locked(self.peers.size + rank, look):
            yield

    def lock(self, rank: int, *, shared: bool) -> None:
        """Take the lock of a rank's part, for access of this rank."""
        if self.keeper is not None:
            self.keeper.ask(rank, "lock", shared)
        else:
            self.segments[-1].lock(rank, self.peers.process.look, shared=shared)
        self.epochs.held.add(rank)

    def unlock(self, rank: int) -> None:
        """Let go of it."""
        self.epochs.held.remove(rank)
        if self.keeper is not None:
            self.keeper.ask(rank, "unlock")
        else:
            self.segments[-1].unlock(rank)

    def release(self) -> None:
        """Give everything back. Collective; raises MPI's Exception if ranks are lost, with everything given back."""
        with contextlib.closing(self.peers), contextlib.ExitStack() as memory:
            for segment in self.segments:
                memory.callback(segment.close)
            memory.callback(self.parts.clear)
            self.peers.call("barrier", timeout=constants.PATIENCE)  # until then other ranks may ask the keeper
            if self.keeper is not None:
                self.keeper.close()
                self.peers.call("barrier", timeout=constants.PATIENCE)  # its receive fails once the others have ended


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
            units = [unit for _, _, unit in everyone]
            if len({host for host, _, _ in everyone}) > 1:
                if flavor == constants.WIN_FLAVOR_SHARED:
                    raise missing("memory that ranks of several hosts share", "use Win.Allocate, or Split_type")
                return cls._with_keepers(made, peers, np.zeros(size, np.uint8), units, flavor, info)
            starts = [0, *np.cumsum([nbytes for _, nbytes, _ in everyone]).tolist()]
            segment = made.enter_context(contextlib.closing(Segment.make(starts[-1], peers)))
            parts = [segment.memory[start:end] for start, end in itertools.pairwise(starts)]
            locks = made.enter_context(contextlib.closing(Segment.make(2 * peers.size, peers)))
            body = WinBody(peers, list(zip(parts, units, strict=True)), flavor, (segment, locks))
            made.pop_all()
            return cls._with(body, info)

    @classmethod
    def _with_keepers(
        cls, made: contextlib.ExitStack, peers: Peers, mine: Bytes, units: Sequence[int], flavor: int, info: Info
    ) -> Win:
        """A window of which each rank has its own part alone. `made` closes `peers`, unless it is made."""
        check_authenticated(peers)
        parts = [(mine if rank == peers.rank else None, unit) for rank, unit in enumerate(units)]
        body = WinBody(peers, parts, flavor)
        made.pop_all()
        return cls._with(body, info)

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
        mine = as_memory(None if memory is BOTTOM else memory).data
        return cls._of_program(mine, as_int(disp_unit, "disp_unit"), constants.WIN_FLAVOR_CREATE, info, comm)

    @classmethod
    def Create_dynamic(cls, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Win:
        return cls._of_program(_NOTHING, 1, constants.WIN_FLAVOR_DYNAMIC, info, comm)

    @classmethod
    def _of_program(cls, mine: Bytes, disp_unit: int, flavor: int, info: Info, comm: Intracomm) -> Win:
        """A window of memory of the program."""
        with contextlib.ExitStack() as made:
            peers = made.enter_context(contextlib.closing(peers_of(comm).twin()))
            units = together(peers, lambda: _unit(disp_unit))
            return cls._with_keepers(made, peers, mine, units, flavor, info)

    def _dynamic(self) -> dict[int, Bytes]:
        body = self._known()
        if body.flavor != constants.WIN_FLAVOR_DYNAMIC:
            raise error("ERR_RMA_FLAVOR", "memory can be attached to windows of Win.Create_dynamic")
        return body.attached

    def Attach(self, memory: Any) -> None:
        given = as_memory(memory).data
        self._dynamic()[given.ctypes.data] = given

    def Detach(self, memory: Any) -> None:
        if self._dynamic().pop(as_memory(memory).data.ctypes.data, None) is None:
            raise error("ERR_RMA_ATTACH", "this memory is not attached")

    def Free(self) -> None:
        self._release()

    def _release(self) -> None:
        """Free it, also if ranks are lost, which raises afterwards."""
        body = self._known()
        self.delete_attributes()
        self._body = None
        body.release()

    # ---- what it is

    def _mine(self) -> tuple[Bytes, int]:
        body = self._known()
        memory, unit = body.parts[body.peers.rank]
        assert memory is not None
        return memory, unit

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        """Memory of a rank, empty if this rank does not map it, and its unit."""
        body = self._known()
        if rank == PROC_NULL:
            memory, unit = next((part for part in body.parts if part[0] is None or len(part[0])), body.parts[0])
        else:
            self._place(rank)
            memory, unit = body.parts[rank]
        return buffer.frombuffer(_NOTHING if memory is None else memory), unit

    def tomemory(self) -> buffer:
        return buffer.frombuffer(self._mine()[0])

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._mine()[0].data)

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

    def _target(self, rank: int, origin: Block, target: Any) -> Place:
        self._place(rank)
        body = self._known()
        unit = body.parts[rank][1]
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
        body.epochs.access(rank)
        if body.keeper is not None and rank != body.peers.rank:
            return Asked(Block(_NOTHING, disp * unit, count, datatype), partial(body.keeper.ask, rank))
        return Mapped(Block(*body.memory_at(rank, disp * unit), count, datatype), partial(body.atomic, rank))

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        if target_rank == PROC_NULL:
            return
        given = message(origin, writable=False)
        place = self._target(target_rank, given, target)
        _check_sizes(given, place.block)
        place.write(given.read())

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        if target_rank == PROC_NULL:
            return
        result = message(origin, writable=True)
        place = self._target(target_rank, result, target)
        _check_sizes(result, place.block)
        result.write(place.read())

    def _combine(self, block: Block, place: Place, op: Op, fetched: Block | None) -> None:
        """Combine the data of a block with those at a place, atomically, and fetch what was there."""
        ronde_op, _ = known(op).on_arrays(place.block.datatype, moves=True)
        if ronde_op != "no_op":
            _check_sizes(block, place.block)
            if ronde_op != "replace":
                check_kinds(block, place.block)
        before = place.combine(op, block.read(), fetch=fetched is not None)
        if fetched is not None and before is not None:
            fetched.write(before)

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
        given, expected = message(origin, writable=False), message(compare, writable=False)
        fetched = message(result, writable=True)
        _check_single(fetched, given, expected)
        place = self._target(target_rank, fetched, (target_disp, 1))
        fetched.write(place.swap(given.read(), expected.read()))

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
        body.lock(rank, shared=lock_type == LOCK_SHARED)

    def _place(self, rank: int) -> None:
        if not 0 <= rank < self._known().peers.size:
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {self._known().peers.size - 1}")

    def Unlock(self, rank: int) -> None:
        body = self._known()
        if rank == PROC_NULL:
            return
        self._place(rank)
        body.epochs.unlock(rank)
        body.unlock(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        body = self._known()
        body.epochs.lock_all()
        for rank in range(body.peers.size):
            body.lock(rank, shared=True)
        body.epochs.of_all = True

    def Unlock_all(self) -> None:
        body = self._known()
        body.epochs.unlock_all()
        body.epochs.of_all = False
        for rank in range(body.peers.size):
            body.unlock(rank)

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
