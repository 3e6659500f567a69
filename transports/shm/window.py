"""Windows in shared memory.

    controls   per rank 256 bytes: its epoch, whether it has attached, the addresses of its exposed arrays, its arena;
               on another line whether a waiting rank sleeps; on two more the last 8 checks, each with its epoch
    parts      per rank, each on pages of its own

Publishing takes three stores and one load; a wait for a published epoch takes one load. Neither takes a lock.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np

from transports import arenas
from transports.base import MAX_CHECK
from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import ClosedError, PeerLost, RondeError, TransportError
from transports.exposing import EngineWindow
from transports.onesided import ARENA, ASKED, CHECKS, EPOCH, EXPOSED, KEPT, Controls, Memory, address
from transports.shm import remote
from transports.shm.doorbell import CAN_SLEEP, Doorbell, wake_all
from transports.shm.fence import WEAKLY_ORDERED, barrier
from transports.shm.segments import Segment

_CONTROL_BYTES: Final = 256
_PAGE: Final = 4096
_BEHIND: Final = 17 * 64
"""Bytes from the start of a page to a part. NumPy's large arrays begin 16 bytes after the start of a page. A copy is a
fifth slower when source and target have nearly the same offset in their pages (4K aliasing)."""
_GLANCES: Final = 200
"""Number of reads of an epoch, some 30 ns each, before a wait does anything else."""
_SPINS: Final = 1000
"""The same for compiled code, some 20 to 40 ns each."""
_YIELDS: Final = 10
"""Number of yields after these reads, before a wait drives the transport, which takes several times as long. The
awaited rank may need the core."""
_YIELDED: Final = 10e-3
"""Seconds of them at most, one that takes long aside: where other programs use the core, each takes milliseconds."""
_COMPILED_YIELDS: Final = {True: 600, False: 50}
"""The same for compiled code, where each rank has a core, some 150 us, and where they share cores. To wake a sleeper
takes 20 to 30 us. On a busy machine a yield takes milliseconds, and they end after ten."""
_COMPILED_SLEEPS: Final = 2
"""Milliseconds at most in which this rank serves no other peer."""
_ATTACHED: Final = 1

# Indices of 64-bit words in a rank's notes, which no other rank can write.
_STOPPED: Final = 0
_PUBLISHED: Final = 1
_CHECKS_PUBLISHED: Final = 2

_LAST: Final = (1 << 64) - 1
"""No epoch is greater."""


class ShmWindow(EngineWindow):
    """One rank's mapping of a window. See the module."""

    def __init__(
        self,
        engine: Engine,
        segment: Segment,
        ranks: tuple[int, ...],
        nbytes: int,
        bells: list[Doorbell],
        ends: list[memoryview],
        *,
        spins: bool,
        forget: Callable[[ShmWindow], None],
    ) -> None:
        """`bells` are the doorbells of the ranks; `ends`: see Board.ends; `spins`: a wait polls before it sleeps;
        `forget` is called once, by `close`."""
        super().__init__(engine, ranks, nbytes)
        self.closed = False
        self.segment = segment
        self._bells = bells
        self._ends = ends
        self._spins = spins
        self._forget = forget
        self._pids = [engine.group.members[rank].pid for rank in ranks]
        self._arenas = arenas.PeerArenas(self._pids)
        self._glances = range(_GLANCES if spins else 0)
        self._yields = range(0 if engine.cores.shares_process else _YIELDS)
        self._leave_core = engine.cores.leave
        memory = segment.memory
        starts = [_parts_offset(len(ranks)) + _BEHIND + index * _stride(nbytes) for index in range(len(ranks))]
        self._views = [memory[start : start + nbytes] for start in starts]
        controls = [index * _CONTROL_BYTES for index in range(len(ranks))]
        self._controls = [memory[at : at + _CONTROL_BYTES].cast("Q") for at in controls]
        self._own = self._controls[self.index]
        self._notes = memoryview(bytearray(24)).cast("Q")
        self._epoch_address = address(self._own)

    @staticmethod
    def segment_bytes(count: int, nbytes: int) -> int:
        """The size of the segment for a window of `count` ranks."""
        return _parts_offset(count) + count * _stride(nbytes)

    def view(self, index: int) -> memoryview:
        if self.closed:
            raise self._closed_error()
        if not 0 <= index < len(self.ranks):
            raise ValueError(f"index={index!r}: must be a position in the window's ranks, 0 to {len(self.ranks) - 1}")
        return self._views[index]

    def publish(self, epoch: int, check: int | None = None) -> None:
        own, notes = self._own, self._notes
        if epoch <= notes[_PUBLISHED] or not (check is None or 0 <= check <= MAX_CHECK):
            self._refuse(epoch, check)
        if check is not None:
            count = notes[_CHECKS_PUBLISHED]
            slot = CHECKS + 2 * (count % KEPT)
            own[slot] = epoch
            if WEAKLY_ORDERED:
                barrier()
            own[slot + 1] = check
            notes[_CHECKS_PUBLISHED] = count + 1
        if WEAKLY_ORDERED:
            barrier()
        own[EPOCH] = notes[_PUBLISHED] = epoch
        if own[ASKED]:
            self._wake()

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        if self._controls[index][EPOCH] < epoch and not self._poll(index, epoch):
            self.await_epoch(index, epoch, deadline)
        if WEAKLY_ORDERED:
            barrier()
        if check is not None:
            # In most calls it is the check that has the place of this rank's own newest one. The publisher writes a
            # slot's epoch first: a check that was read before the epoch belongs to that epoch.
            control, slot = self._controls[index], CHECKS + 2 * ((self._notes[_CHECKS_PUBLISHED] - 1) % KEPT)
            if control[slot + 1] != check or WEAKLY_ORDERED or control[slot] != epoch:
                self.compare(index, epoch, check, self._kept(index))

    def expose_arrays(self, *pieces: Memory) -> bool:
        word, known = EXPOSED, True
        for piece in pieces:
            self._own[word] = address(piece)
            known = known and remote.on_heap(piece)
            word += 1
        for index in range(arenas.TOLD):
            self._own[ARENA + index] = int(arenas.OWN[index])
        return known or remote.readable(pieces)

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        control = self._controls[index]
        problem, start = "", control[EXPOSED + piece]
        here = self._arenas.find(index, start, control[ARENA : ARENA + arenas.TOLD])
        try:
            if here:
                remote.copy_here(here + offset, target)
            else:
                remote.copy_from(self._pids[index], start + offset, target)
        except OSError as error:
            problem = f"its memory cannot be read: {error}"
        self._check_read(index, problem)

    def _check_read(self, index: int, problem: str = "") -> None:
        """Raise unless what was read of a position is what it had exposed."""
        if WEAKLY_ORDERED:
            barrier()
        rank, peer = self._engine.rank, self.ranks[index]
        with self._engine.lock:
            self._engine.check_sound()  # a peer that has failed need not keep its exposed arrays
            if self.closed:
                raise self._closed_error()
            if self._engine.departed(peer):  # nor one that has closed
                problem = "it closed its transport while its memory was read"
        if problem:
            raise PeerLost(f"rank {rank} lost {self._engine.group.describe(peer)}: {problem}", rank=rank, peer=peer)

    def _fail_reads(self) -> NoReturn:
        """Raise the failure of which the board has told compiled code."""
        for index in range(len(self.ranks)):
            if index != self.index:
                self._check_read(index)
        raise TransportError("a rank failed while its memory was read", rank=self._engine.rank)

    def tells_arena(self, index: int) -> bool:
        return self._controls[index][ARENA] != 0

    def close(self) -> None:
        with self._engine.lock:
            if self.closed:
                return
            self.closed = True
            self._forget(self)
            self.stop()
            self._notes[_PUBLISHED] = _LAST
            nothing = memoryview(bytearray(_CONTROL_BYTES)).cast("Q")
            self._own, self._controls = nothing, [nothing] * len(self.ranks)
            self._bells.clear()
            self._ends.clear()
            for view in self._views:
                with contextlib.suppress(BufferError):  # an array is still a view of the memory, and keeps it
                    view.release()
            self._views.clear()
            self.segment.close()
            self._engine.driver.interrupt()

    @property
    def controls(self) -> Controls | None:
        if self.closed:
            raise self._closed_error()
        memory = np.frombuffer(self.segment.memory, np.uint8)
        start, notes = address(memory), address(self._notes)
        return Controls(
            tuple(start + index * _CONTROL_BYTES for index in range(len(self.ranks))),
            notes + 8 * _STOPPED,
            notes + 8 * _PUBLISHED,
            _SPINS if self._spins else 0,
            0 if self._engine.cores.shares_process else _COMPILED_YIELDS[self._spins],
            _COMPILED_SLEEPS if CAN_SLEEP else 0,
            self._wake,
            (memory, self._notes, *self._bells, self._arenas, *map(np.asarray, self._ends)),
            tuple(bell.address for bell in self._bells) if CAN_SLEEP else (),
            tuple(map(self._arenas.address, range(len(self.ranks)))),
            tuple(map(address, self._ends)),
            self._fail_reads,
            tuple(self._pids),
            self._engine.cores.masks(),
        )

    # For the transport and for waits.

    def stop(self) -> None:
        """Tell compiled code that no epoch is to be published any more."""
        self._notes[_STOPPED] = 1

    def attach(self) -> None:
        """Publish that this rank has mapped the memory. The last one wakes the others: many ranks that woke each other
        each time would keep the cores from those that are still to come."""
        self._own[_ATTACHED] = 1
        barrier()  # of two ranks that attach at once, one sees both
        if not self.missing():
            self._ring()

    def missing(self) -> list[int]:
        """The ranks that have not attached yet."""
        return [rank for rank, control in zip(self.ranks, self._controls, strict=True) if not control[_ATTACHED]]

    def epoch_of(self, index: int) -> int:
        return self._controls[index][EPOCH]

    def ask(self, index: int) -> None:
        if not self.closed:
            self._controls[index][ASKED] = 1
            barrier()

    def raise_if_lost(self, index: int, awaited: Awaited) -> None:
        if self.closed:
            self._engine.check_sound()  # the transport's own failure is the more useful error
            raise self._closed_error()
        self._engine.check_peer(self.ranks[index], awaited, receiving=True)

    def _poll(self, index: int, epoch: int) -> bool:
        control = self._controls[index]
        for _ in self._glances:
            if control[EPOCH] >= epoch:
                return True
        left = _YIELDED
        for _ in self._yields:
            left -= self._leave_core()
            if control[EPOCH] >= epoch:
                return True
            if left <= 0:
                break
        return False

    def _kept(self, index: int) -> dict[int, int]:
        """The checks that a position has published last, by epoch."""
        control, kept = self._controls[index], {}
        for slot in range(CHECKS, CHECKS + 2 * KEPT, 2):
            check = control[slot + 1]
            if WEAKLY_ORDERED:
                barrier()
            kept[control[slot]] = check
        return kept

    def _wake(self) -> None:
        self._own[ASKED] = 0
        self._ring()
        wake_all(self._epoch_address)  # compiled code sleeps there

    def _ring(self) -> None:
        barrier()  # a rank that is about to sleep either sees the new epoch, or is seen here
        for bell in self._bells:
            bell.ring()

    def _refuse(self, epoch: int, check: int | None) -> None:
        if self.closed:
            raise self._closed_error()
        if check is not None and not 0 <= check <= MAX_CHECK:
            raise ValueError(f"check={check!r}: must be 0 to 2**32 - 1")
        raise ValueError(f"epoch={epoch!r}: must be greater than {self._notes[_PUBLISHED]}, the epoch published before")

    def _closed_error(self) -> RondeError:
        return copy.copy(self._engine.failure) or ClosedError("the window was closed", rank=self._engine.rank)


def _parts_offset(count: int) -> int:
    return -(-count * _CONTROL_BYTES // _PAGE) * _PAGE


def _stride(nbytes: int) -> int:
    return -(-(_BEHIND + nbytes) // _PAGE) * _PAGE
