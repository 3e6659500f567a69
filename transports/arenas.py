"""Arenas: memory of one process in which arrays are born, and that the other ranks of its host map to read it.

    rank 0   arena  |--a--|      |----b----|    `a` and `b` are plain memory of rank 1, by another address
                       |              |         a private array is read by process_vm_readv(2)
    rank 1   maps   |--a--|      |----b----|

An arena is a file without a name (memfd_create(2)), so /dev/shm does not bound it. Its last page has a key, and a word
that is not 0 as long as the arena is shared. Peers find the file by the descriptor of its process, and map it for
reading only. All map it at multiples of a huge page, so that huge pages of the file are huge pages of all.

A fork ends the sharing. A child must see the memory as it was, and must not write into the parent's. So before a fork
the process maps its arena anew, at the same place and privately: both processes have copies on write from then on, as
of all memory. Peers read these arrays as they read private ones. The head tells them before that happens: what a
process writes after that, it publishes after that.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import sys
import weakref
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from transports import forking

HANDLER: Final = "ronde_arena"
"""The name of NumPy's memory handler for arrays that are born in an arena."""
PAGE: Final = 4096
_HUGE_PAGE: Final = 1 << 21

# Words of what a rank tells its peers of its arena.
BEGIN: Final = 0
"""Address of the arena in its process; 0: there is none."""
KEY: Final = 1
DESCRIPTOR: Final = 2
END: Final = 3
"""For this process alone: the address behind the arena."""
TOLD: Final = 3
"""The number of words that peers get."""

# Words of the last page of an arena.
_FILE_KEY: Final = 0
_FILE_SHARED: Final = 1

# Words that locate the arena of a peer.
PEER_BEGIN: Final = 0
PEER_END: Final = 1
SHIFT: Final = 2
"""To be added to an address of the peer."""
SHARED: Final = 3
"""Address of a word that is 0 once the arena is not shared any more."""
PEER_WORDS: Final = 4

OWN: Final[NDArray[np.int64]] = np.zeros(4, np.int64)
"""BEGIN, KEY, DESCRIPTOR and END of the arena of this process."""

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_NO_EXECUTION: Final = 8
"""MFD_NOEXEC_SEAL of Linux."""
_NO_FORK: Final = 10
_HUGE_PAGES: Final = 14
"""MADV_DONTFORK and MADV_HUGEPAGE of Linux."""


def supported() -> bool:
    """True if processes can have arenas here."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class Arena:
    """The arena of this process: `nbytes`, a multiple of a page, from `begin` on. It takes no memory before it is
    written."""

    def __init__(self, nbytes: int) -> None:
        """Raises OSError."""
        self.nbytes = nbytes
        self._descriptor = _memory_file("ronde-arrays")
        try:
            os.ftruncate(self._descriptor, nbytes + PAGE)
            self.begin = _map_aligned(nbytes + PAGE, self._descriptor, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.key = secrets.randbits(62) | 1
        self._last = words_at(self.begin + nbytes, 2)
        self._last[_FILE_KEY] = self.key
        # A fork that Python does not know of then ends in an error of the child, not in wrong numbers of the parent
        advise(self.begin, nbytes + PAGE, _NO_FORK)
        advise(self.begin, nbytes, _HUGE_PAGES)
        self._last[_FILE_SHARED] = 1
        OWN[KEY], OWN[DESCRIPTOR], OWN[END] = self.key, self._descriptor, self.begin + nbytes
        OWN[BEGIN] = self.begin

    def hide(self) -> None:
        """Have the peers read the memory as they read private memory."""
        OWN[BEGIN] = OWN[END] = 0
        self._last[_FILE_SHARED] = 0

    def make_private(self, used: int) -> None:
        """Make the first `used` bytes private memory of this process, with the same content, which a forked child
        inherits; release the others, and the descriptor. To be called once, after `hide`. Raises OSError where a limit
        of private memory forbids that: this process goes on using the bytes, a child inherits none of them."""
        try:
            if used:
                map_memory(used, self._descriptor, mmap.PROT_READ | mmap.PROT_WRITE, at=self.begin, private=True)
        finally:
            self._release(used)

    def close(self) -> None:
        """Release all of it. To be called once, after `hide`."""
        self._release(0)

    def _release(self, start: int) -> None:
        del self._last
        unmap(self.begin + start, self.nbytes + PAGE - start)
        os.close(self._descriptor)


class PeerArena:
    """The arena of another process, mapped here for reading. Unmapped together with this object."""

    def __init__(self, pid: int, begin: int, key: int, descriptor: int) -> None:
        """Raises OSError if it cannot be found."""
        file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            nbytes = os.fstat(file).st_size - PAGE
            if nbytes <= 0:
                raise OSError("it is no arena")
            start = _map_aligned(nbytes + PAGE, file, mmap.PROT_READ)
        finally:
            os.close(file)
        self._unmap = weakref.finalize(self, _unmap_in, forking.process, start, nbytes + PAGE)
        self._unmap.atexit = False
        if words_at(start + nbytes, 1)[_FILE_KEY] != key:  # another process has the id, or another file the descriptor
            raise OSError("it is another arena")
        self.words = (begin, begin + nbytes, start - begin, start + nbytes + 8 * _FILE_SHARED)
        """PEER_BEGIN, PEER_END, SHIFT, SHARED."""


_mapped: Final[weakref.WeakValueDictionary[tuple[int, int], PeerArena]] = weakref.WeakValueDictionary()
"""Process id and key -> its arena: all windows of this process use one mapping."""


class PeerArenas:
    """The arenas of the ranks of one window.

    words   a row of PEER_WORDS for each rank, zeros where no arena is known
    """

    def __init__(self, pids: list[int]) -> None:
        self.words = np.zeros((len(pids), PEER_WORDS), np.int64)
        self._pids = pids
        self._keys = [0] * len(pids)
        self._held: list[PeerArena | None] = [None] * len(pids)

    def find(self, index: int, address: int, told: Any) -> int:
        """The address here of an address of a rank; 0 if it is not in an arena that can be mapped. `told` is what the
        rank tells of its arena: TOLD words."""
        begin = int(told[BEGIN])
        key = int(told[KEY]) if begin else 0
        if key != self._keys[index]:
            self._map(index, begin, key, int(told[DESCRIPTOR]))
        first, end, shift, shared = self.words[index].tolist()
        return int(address + shift) if first <= address < end and words_at(shared, 1)[0] else 0

    def address(self, index: int) -> int:
        """The address of the words of a rank."""
        start: int = self.words.__array_interface__["data"][0]
        return start + 8 * PEER_WORDS * index

    def _map(self, index: int, begin: int, key: int, descriptor: int) -> None:
        """Map the arena of a rank, in place of an earlier one, or none for key 0. It is tried once."""
        self.words[index] = 0
        self._held[index] = None
        self._keys[index] = key
        if not key:
            return
        place = self._pids[index], key
        try:
            found = _mapped.get(place) or PeerArena(self._pids[index], begin, key, descriptor)
        except OSError:  # the system does not show other processes' files, or the arena has gone: see Window.read
            return
        _mapped[place] = self._held[index] = found
        self.words[index] = found.words


def words_at(address: int, count: int) -> Any:
    """Words of 64 bits of memory that stays mapped."""
    return (ctypes.c_int64 * count).from_address(address)


def map_memory(nbytes: int, descriptor: int, protection: int, *, at: int = 0, private: bool = False) -> int:
    """Map a file from its beginning, or memory of its own for `descriptor` -1; returns the address. `at`: in place of
    what is mapped there. Raises OSError."""
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | (_MAP_FIXED if at else 0)
    flags |= _MAP_NORESERVE | (mmap.MAP_ANONYMOUS if descriptor < 0 else 0)
    found = _libc().mmap(at or None, nbytes, protection, flags, descriptor, 0)
    if found in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes: {os.strerror(code)}")
    return int(found)


def _memory_file(name: str) -> int:
    """A file in memory that cannot be executed, which some systems ask for. Raises OSError."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _NO_EXECUTION)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 6.3 does not know the flag
            raise
        return os.memfd_create(name)


def _map_aligned(nbytes: int, descriptor: int, protection: int) -> int:
    """Map a file at a multiple of a huge page. Raises OSError."""
    room = map_memory(nbytes + _HUGE_PAGE, -1, 0, private=True)
    start = -(-room // _HUGE_PAGE) * _HUGE_PAGE
    try:
        map_memory(nbytes, descriptor, protection, at=start)
    except BaseException:
        unmap(room, nbytes + _HUGE_PAGE)
        raise
    unmap(room, start - room)
    end = start + -(-nbytes // PAGE) * PAGE
    unmap(end, room + nbytes + _HUGE_PAGE - end)
    return start


def unmap(address: int, nbytes: int) -> None:
    """Unmap memory; nothing for 0 bytes."""
    if nbytes:
        _libc().munmap(address, nbytes)


def advise(address: int, nbytes: int, advice: int) -> None:
    """madvise(2). A system may not know an advice."""
    _libc().madvise(address, nbytes, advice)


_FAILED: Final = (1 << 64) - 1


def _unmap_in(process: int, address: int, nbytes: int) -> None:
    if process == forking.process:
        unmap(address, nbytes)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_long),
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
