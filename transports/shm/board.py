"""The board: the segment that the ranks of a host map, made by the first of them.

    header     magic number, size of a ring, whether any rank has aborted
    controls   per rank: its state, the identity of its process, its doorbell
    causes     per rank: the cause of its abort, in msgpack
    rings      per ordered pair of ranks, see `ring`

Every word has one writer, or several writers of one value. Words of different writers lie on different cache lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from transports.base import Group
from transports.descriptors import explained
from transports.errors import AbortedError, ConnectError, DeadlineExceeded, RondeError, from_wire, to_wire
from transports.liveness import Identity
from transports.packed import pack, unpack
from transports.shm.doorbell import Doorbell, WakeupSockets
from transports.shm.fence import barrier
from transports.shm.ring import CONTROL_BYTES, RingMemory
from transports.shm.segments import Segment, remove_abandoned

ABSENT: Final = 0
OPEN: Final = 1
CLOSED: Final = 2

_MAX_RINGS_BYTES: Final = 64 << 20
_MIN_RING_BYTES: Final = 1 << 10
_STORE_KEY: Final = "shm/board"
_MAGIC: Final = int.from_bytes(b"RONDEshm", "little")
_VERSION: Final = 1
_HEADER_BYTES: Final = 128
_RANK_BYTES: Final = 128
CAUSE_BYTES: Final = 8 << 10
_PAGE: Final = 4 << 10

# Indices of 64-bit words in the header and in a rank's control.
_RING_BYTES: Final = 3
_ABORTED: Final = 8
_STATE: Final = 0
_IDENTITY: Final = slice(1, 4)
_CAUSE_LENGTH: Final = 4
_BELL_OFFSET: Final = 64


class Board:
    """One rank's mapping of the board. The rank owns it and must `release` it.

    ranks  of the group that the board joins, ascending. Their places on it are their positions among these
    """

    def __init__(self, segment: Segment, group: Group, ranks: Sequence[int]) -> None:
        self.segment = segment
        self._place = ranks.index(group.rank)
        self._ranks = tuple(ranks)
        self._size = len(ranks)
        memory = segment.memory
        controls = [_HEADER_BYTES + place * _RANK_BYTES for place in range(self._size)]
        self._header = memory[:_HEADER_BYTES].cast("Q")
        self._ring_bytes = 0
        self._controls = [memory[at : at + _RANK_BYTES].cast("Q") for at in controls]
        self._sockets = WakeupSockets(os.path.basename(segment.path), self._place)
        self.bells = [Doorbell(memory, at + _BELL_OFFSET, self._sockets, place) for place, at in enumerate(controls)]

    @classmethod
    def shortage(cls, size: int, ring_bytes: int, directory: str) -> str | None:
        """The reason for which there is no room for the board of `size` ranks; None if there is room."""
        try:
            segment = Segment.create(_board_bytes(size, _limited_ring_bytes(ring_bytes, size)), directory)
        except OSError as error:
            return str(error)
        segment.unlink()
        segment.close()
        return None

    @classmethod
    def create_or_attach(
        cls, group: Group, ranks: Sequence[int], ring_bytes: int, directory: str, deadline: float
    ) -> Board:
        """The board of `ranks`: the first one makes it, the others learn its name from the group's store and attach.

        Raises ConnectError if it cannot be made or attached, DeadlineExceeded if that rank is late, RendezvousError.
        """
        first, size = ranks[0], len(ranks)
        if group.rank == first:
            return cls._make(group, ranks, ring_bytes, directory)
        maker = group.describe(first)
        try:
            note = group.store.get(_STORE_KEY, deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"{maker} did not open the transport in time", rank=group.rank, peer=first
            ) from error
        match _decoded(note):
            case {"path": str(path), "nbytes": int(nbytes)} if nbytes > _rings_offset(size):
                return cls._attach(group, ranks, path, nbytes)
            case {"error": str(reason)}:
                raise ConnectError(f"{maker} could not open the transport: {reason}", rank=group.rank, peer=first)
        text = f"{maker} left an invalid description of the board in the store"
        raise ConnectError(text, rank=group.rank, peer=first)

    @classmethod
    def _attach(cls, group: Group, ranks: Sequence[int], path: str, nbytes: int) -> Board:
        first, size = ranks[0], len(ranks)
        maker = group.describe(first)
        try:
            segment = Segment.attach(path, nbytes)
        except FileNotFoundError as error:
            raise ConnectError(f"{maker} gave up opening the transport", rank=group.rank, peer=first) from error
        except OSError as error:
            text = f"cannot attach to the board of {maker}: {explained(error)}"
            raise ConnectError(text, rank=group.rank, peer=first) from error
        board = cls(segment, group, ranks)
        *kind, ring_bytes = board._header[: _RING_BYTES + 1]
        fits = ring_bytes.bit_count() == 1 and _board_bytes(size, ring_bytes) == nbytes
        if kind != [_MAGIC, _VERSION, size] or not fits:
            board.release()
            raise ConnectError(f"the board of {maker} belongs to another group or version", rank=group.rank, peer=first)
        board._ring_bytes = ring_bytes
        return board

    @classmethod
    def _make(cls, group: Group, ranks: Sequence[int], ring_bytes: int, directory: str) -> Board:
        rank, size = group.rank, len(ranks)
        ring_bytes = _limited_ring_bytes(ring_bytes, size)
        nbytes = _board_bytes(size, ring_bytes)
        remove_abandoned(directory)
        try:
            segment = Segment.create(nbytes, directory)
        except OSError as error:
            group.store.set(_STORE_KEY, pack({"error": explained(error)}))
            raise ConnectError(f"rank {rank} could not open the transport: {explained(error)}", rank=rank) from error
        try:
            board = cls(segment, group, ranks)
            board._ring_bytes = ring_bytes
            for index, word in enumerate((_MAGIC, _VERSION, size, ring_bytes)):
                board._header[index] = word
            barrier()
            group.store.set(_STORE_KEY, pack({"path": segment.path, "nbytes": nbytes}))
        except BaseException:
            segment.unlink()
            segment.close()
            raise
        return board

    def interrupted(self) -> None:
        """An interrupt has left a call of this thread: release the lock that it may still hold."""
        self._sockets.interrupted()

    def release(self) -> None:
        """Unmap the memory. Idempotent."""
        self._controls.clear()
        self.bells.clear()
        self._sockets.close()
        self._header = memoryview(b"")
        self.segment.close()

    def ring_memory(self, sender: int, receiver: int) -> RingMemory:
        """The ring that carries frames from the place `sender` to the place `receiver`."""
        ring_bytes = self._ring_bytes
        number = sender * (self._size - 1) + receiver - (receiver > sender)
        offset = _rings_offset(self._size) + number * (CONTROL_BYTES + ring_bytes)
        data = offset + CONTROL_BYTES
        memory = self.segment.memory
        return RingMemory(memory[offset:data].cast("Q"), memory[data : data + ring_bytes])

    def enter(self, process: Identity) -> None:
        """Publish that this rank has attached, and the identity of its process."""
        control = self._controls[self._place]
        for index, word in enumerate((process.pid, process.start, process.space), _IDENTITY.start):
            control[index] = word
        self._set_state(OPEN)

    def leave(self) -> None:
        """Publish that this rank has closed: it sends and publishes nothing more."""
        self._set_state(CLOSED)

    def state(self, place: int) -> int:
        """ABSENT, OPEN or CLOSED: the state of the rank at a place."""
        return self._controls[place][_STATE]

    def process_of(self, place: int) -> Identity:
        """The process of the rank at a place, which is not ABSENT. Raises ConnectError if it wrote an impossible
        identity."""
        barrier()  # the state was read before
        process, rank = Identity(*self._controls[place][_IDENTITY]), self._ranks[place]
        if not 0 < process.pid < 1 << 31:
            raise ConnectError(f"rank {rank} published process id {process.pid}, which is impossible", peer=rank)
        return process

    def missing(self) -> list[int]:
        """The ranks that have not attached yet."""
        states = (control[_STATE] for control in self._controls)
        return [rank for rank, state in zip(self._ranks, states, strict=True) if state == ABSENT]

    @property
    def aborted(self) -> bool:
        """True once any rank has published a cause."""
        return bool(self._header[_ABORTED])

    def ends(self, places: Sequence[int]) -> list[memoryview]:
        """The word that is not 0 once a rank has aborted, and the words of the states of the ranks at some places."""
        return [self._header[_ABORTED : _ABORTED + 1]] + [
            self._controls[place][_STATE : _STATE + 1] for place in places
        ]

    def publish_cause(self, cause: RondeError) -> None:
        """Publish the cause of this rank's abort to all ranks, once. A copy of another rank's cause is ignored."""
        text = _packed(cause)
        at = self._cause_offset(self._place)
        self.segment.memory[at : at + len(text)] = text
        self._controls[self._place][_CAUSE_LENGTH] = len(text)
        barrier()
        self._header[_ABORTED] = 1
        barrier()
        self.ring_all()

    def cause(self) -> RondeError | None:
        """The cause of the abort, None if no rank has aborted. If several ranks have, the cause of the lowest one; an
        AbortedError if the cause cannot be read."""
        if not self.aborted:
            return None
        barrier()
        for place, (rank, control) in enumerate(zip(self._ranks, self._controls, strict=True)):
            if length := control[_CAUSE_LENGTH]:
                at = self._cause_offset(place)
                fields = _decoded(bytes(self.segment.memory[at : at + min(length, CAUSE_BYTES)]))
                if isinstance(fields, dict):
                    return from_wire(fields)
                return AbortedError(f"rank {rank} has aborted; its cause cannot be read", peer=rank)
        return AbortedError("a rank has aborted without a cause")

    def ring_all(self) -> None:
        """Wake all ranks that sleep."""
        for bell in self.bells:
            bell.ring()

    def _set_state(self, state: int) -> None:
        barrier()
        self._controls[self._place][_STATE] = state
        barrier()
        self.ring_all()

    def _cause_offset(self, place: int) -> int:
        return _HEADER_BYTES + self._size * _RANK_BYTES + place * CAUSE_BYTES


def _rings_offset(size: int) -> int:
    used = _HEADER_BYTES + size * (_RANK_BYTES + CAUSE_BYTES)
    return -(-used // _PAGE) * _PAGE


def _board_bytes(size: int, ring_bytes: int) -> int:
    return _rings_offset(size) + size * (size - 1) * (CONTROL_BYTES + ring_bytes)


def _limited_ring_bytes(ring_bytes: int, size: int) -> int:
    """`ring_bytes` as a power of two, reduced until all rings together respect the limit."""
    ring_bytes = 1 << (ring_bytes - 1).bit_length()
    while ring_bytes > _MIN_RING_BYTES and ring_bytes * size * (size - 1) > _MAX_RINGS_BYTES:
        ring_bytes //= 2
    return ring_bytes


def _packed(cause: RondeError) -> bytes:
    """The wire form, with its message cut to the space for a cause."""
    fields = to_wire(cause)
    limit = CAUSE_BYTES - 256
    message = str(fields["message"]).encode(errors="replace")
    if len(message) > limit:
        message = message[: limit - 3] + b"..."
    return pack({**fields, "message": message.decode(errors="ignore")})


def _decoded(data: bytes) -> object:
    """The value that another rank has packed; None if it cannot be decoded."""
    try:
        return unpack(data)
    except ValueError:
        return None
