"""The one-sided ability: windows of memory that peers map, and epochs that publish their data.

A rank writes into its own part of a window, then *publishes* an epoch; a peer *awaits* that epoch and reads the
part directly. This is all that a shared-memory collective needs: no message, no copy into a match queue.
"""

from __future__ import annotations

import ctypes
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from transports.errors import PeerLost, RendezvousError

EPOCH: Final = 0
"""Word of a rank's epoch in its control words; see Controls."""
ASKED: Final = 8
"""Word that is not 0 if a rank sleeps until this one publishes an epoch."""
EXPOSED: Final = 2
"""Words of the addresses of the two arrays that a rank exposes."""
ARENA: Final = 4
"""Words of what a rank tells of its arena (transports.arenas)."""
CHECKS: Final = 16
"""Words of the last KEPT checks, each behind its epoch. The pairs are written in turn."""
KEPT: Final = 8
OPENED: Final = 1
"""The value of the word of a rank in Controls.ends that has neither closed nor ended."""

MASK_BYTES: Final = 128
"""Bytes of a mask of cores, as of the C library's cpu_set_t."""

Memory = memoryview | np.ndarray[Any, Any]
"""Bytes: a view of format 'B', or a flat, contiguous array."""
_PROBE_BYTES: Final = 32
_PROBED: Final = 2
"""The last epoch of `can_read_peers`."""


def address(memory: Memory) -> int:
    """The address of flat, contiguous memory in this process."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it is read-only, empty, or of a dtype that Python's buffers do not know
        found: int = np.asarray(memory).__array_interface__["data"][0]  # takes four to ten times as long
        return found


class NoRoom(RendezvousError):
    """There is no memory for a window, as all its ranks know."""


class Controls(NamedTuple):
    """The control words of a window, for compiled code that does in memory what `publish` and `wait` do.

    To publish: store the epoch in `published`; with a check, store both in the pair whose turn it is, and count the
    check in the word behind `published`; then store the epoch in word EPOCH; if word ASKED is not 0 then, call `wake`.
    To wait: load word EPOCH of the peer until it is large enough, then look for the pair with the epoch. All words have
    64 bits.

    addresses  of the control words, by position
    stopped    address of a word that is not 0 once the window is closed or its transport has failed
    published  address of this rank's own note of its epoch, which no other rank can write; behind it the number of
               checks that it has published
    spins      loads of an epoch that are worthwhile before a yield
    yields     yields of the core, each before a load, that are worthwhile after these
    sleeps     sleeps of a millisecond at most that are worthwhile after these, before `Window.wait`
    wake       wakes the ranks that sleep until this rank publishes
    memory     keeps the addresses valid
    arenas     addresses of the words that locate the arenas of the ranks (transports.arenas); () if ranks read no
               arrays of each other where they lie
    processes  numbers of the processes of the ranks, for process_vm_readv(2); likewise
    cores      two masks of MASK_BYTES for sched_setaffinity(2): see Cores.masks. Empty if threads that sleep are not to
               be bound
    ends       address of a word that is not 0 once a rank has failed, and addresses of the words of the ranks, OPENED
               unless they have closed: to be looked at after reads of a rank's arrays, before it can know of them
    check      raises the error that these words tell of
    bells      addresses of the doorbells of the ranks: a word of 32 bits, 1 while its rank sleeps by futex(2), and
               greater while it sleeps otherwise. Unless one is greater, to do what `wake` does: store 0 in word ASKED;
               store 0 in every doorbell that is 1, and wake its sleeper by futex(2); wake those that sleep at word
               EPOCH. Compiled code that waits may sleep there, by futex(2), after it has stored 1 in word ASKED of the
               peer. () if there is no futex(2)
    """

    addresses: tuple[int, ...]
    stopped: int
    published: int
    spins: int
    yields: int
    sleeps: int
    wake: Callable[[], None]
    memory: tuple[Any, ...]
    bells: tuple[int, ...] = ()
    arenas: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    check: Callable[[], NoReturn] | None = None
    processes: tuple[int, ...] = ()
    cores: bytes = b""


class Window(ABC):
    """A piece of memory per rank, mapped by every rank of `ranks`.

    Positions 0..len(ranks)-1 count within `ranks`, which are ranks of the transport's group; `index` is this rank's
    position. Every rank has one epoch counter in the window, 0 at first, that only it may raise.
    """

    ranks: tuple[int, ...]
    index: int
    nbytes: int
    epoch_in_words: Callable[[int], str] = "epoch {}".format
    """The text for an epoch in errors. The user of the window may set another one."""

    @abstractmethod
    def view(self, index: int) -> memoryview:
        """The writable bytes ('B', length `nbytes`) of the part of position `index`.

        The views stay valid until `close`. Parts begin on a 64-byte boundary.
        """

    @abstractmethod
    def publish(self, epoch: int, check: int | None = None) -> None:
        """Raise this rank's epoch to `epoch` (greater than before). All earlier writes of this rank are visible to a
        rank that has awaited the epoch. `check` (32 bits) is kept until 8 others have followed, so that a peer can
        compare. An epoch without one differs from all that a peer may expect."""

    @abstractmethod
    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        """Wait until the epoch of position `index` is at least `epoch`.

        check  if given, the value that the peer published with exactly `epoch` must equal it (compare only within
               8 checks of the peer's newest). Raises MismatchError if not, DeadlineExceeded, or the transport's
               first failure; the window is intact, except after the latter.
        """

    @abstractmethod
    def expose_arrays(self, *pieces: Memory) -> bool:
        """Let peers `read` these bytes from the next `publish` on: at most two pieces anywhere in this rank's memory.
        They must stay valid until all readers have confirmed the end of their reads. Replaces the pieces that were
        exposed before.

        False if peers cannot read them although the ranks `can_read_peers`: the kernel does not read all memory for
        other processes, such as that of some devices. Then expose a copy."""

    @abstractmethod
    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        """Fill `target` with the bytes that position `index` exposes, from byte `offset` of a piece on. Await an epoch
        first that the position has published since. Raises PeerLost if that memory cannot be read: the system does not
        allow it, or the peer has ended or closed. Raises the transport's first failure. After either error the content
        of `target` is undefined."""

    @abstractmethod
    def close(self) -> None:
        """Release the mapping. Views become invalid. Idempotent, not collective."""

    @property
    def controls(self) -> Controls | None:
        """The control words; None if only `publish` and `wait` may do what they do."""
        return None

    def tells_arena(self, index: int) -> bool:
        """True if the arrays that a position has exposed may lie in an arena of its process (transports.arenas)."""
        return False

    shares_arrays: bool = False
    """True if all ranks had arenas in `can_read_peers`; the same on all."""

    def can_read_peers(self, deadline: float, check: int = 0) -> bool:
        """True if every rank can `read` the exposed arrays of every other rank, as a trial shows; the same on all.
        Collective; it must be the first use of the window, of at least 33 bytes: it uses these and the first two
        epochs. Raises as `wait`; MismatchError on all ranks if `check` (32 bits) is not the same on all."""
        peers = [index for index in range(len(self.ranks)) if index != self.index]
        probe = memoryview(secrets.token_bytes(_PROBE_BYTES))
        own = self.view(self.index)
        own[:_PROBE_BYTES] = probe
        self.expose_arrays(probe)
        self.publish(_PROBED - 1, check)
        able = True
        for index in peers:
            self.wait(index, _PROBED - 1, deadline, check)
            able = able and self._reads_probe(index)
        self.shares_arrays = all(map(self.tells_arena, range(len(self.ranks))))
        own[_PROBE_BYTES] = able
        self.publish(_PROBED)
        for index in peers:
            self.wait(index, _PROBED, deadline)
        return all(self.view(index)[_PROBE_BYTES] for index in range(len(self.ranks)))

    def _reads_probe(self, index: int) -> bool:
        """True if the exposed bytes of a position can be read and are right: the pid may be another process here."""
        found = bytearray(_PROBE_BYTES)
        try:
            self.read(index, 0, 0, memoryview(found))
        except PeerLost:
            return False
        return found == self.view(index)[:_PROBE_BYTES]


class OneSided(ABC):
    """A transport whose ranks can map each other's memory."""

    @abstractmethod
    def reaches(self, ranks: tuple[int, ...]) -> bool:
        """True if all of `ranks` can map windows of each other. The same answer on all of them."""

    @abstractmethod
    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        """Make a window with `nbytes` bytes for each of `ranks`, which include this rank. Collective over `ranks`,
        with the same arguments; `key` names the window within the group and is used once.

        Raises NoRoom on all ranks alike if there is no memory, and nothing is lost then; RendezvousError on all ranks
        if the first one has no descriptor for it; TransportError if another rank cannot attach, for which the others
        wait then; DeadlineExceeded, naming the missing rank.
        """
