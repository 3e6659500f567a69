"""Segments: memory that the ranks of one host map, with locks on parts of it. Nothing here knows of MPI's objects."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from frontends.mpi.errors import error, missing
from frontends.mpi.memory import Bytes
from frontends.mpi.objects import together
from frontends.mpi.peers import Peers
from transports.errors import described

try:
    import fcntl
except ImportError:  # this system has no such locks
    fcntl = None  # type: ignore[assignment]

_FIRST_PAUSE: Final = 20e-6
_LAST_PAUSE: Final = 1e-3
_FLOCK: Final = "hhqqi4x"


class Segment:
    """Memory that several ranks map.

    memory  its bytes
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """`descriptor` belongs to the segment then."""
        self._descriptor = descriptor
        self._turn = threading.RLock()  # locks of a file do not exclude threads that have the same descriptor
        self._map: mmap.mmap | None = mmap.mmap(descriptor, nbytes) if nbytes else None
        self.memory: Bytes = np.frombuffer(self._map, np.uint8) if self._map is not None else np.empty(0, np.uint8)

    @classmethod
    def make(cls, nbytes: int, peers: Peers) -> Segment:
        """A new segment of several ranks. Collective: if it fails on a rank, all raise ERR_NO_MEM."""
        if fcntl is None:
            raise missing("memory that ranks share on this system", "use messages")
        opened: list[Segment] = []
        with contextlib.ExitStack() as file, contextlib.ExitStack() as mapped:

            def create() -> str:
                with _errors(peers, nbytes):
                    return file.enter_context(_created(nbytes)) if peers.rank == 0 else ""

            def open_it() -> None:
                with _errors(peers, nbytes):
                    opened.append(mapped.enter_context(contextlib.closing(cls._opened(path, nbytes))))

            path = together(peers, create)[0]
            together(peers, open_it)
            mapped.pop_all()
        return opened[0]

    @classmethod
    def _opened(cls, path: str, nbytes: int) -> Segment:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise

    @contextlib.contextmanager
    def locked(self, place: int, check: Callable[[], Any], *, shared: bool = False) -> Any:
        """Hold the lock with a number during a short `with` statement, which threads of this rank enter in turns."""
        with self._turn:
            self.lock(place, check, shared=shared)
            try:
                yield
            finally:
                self.unlock(place)

    def lock(self, place: int, check: Callable[[], Any], *, shared: bool = False) -> None:
        """Take the lock with a number. `check` is called between attempts, and raises if they are in vain."""
        kind, pause = fcntl.F_RDLCK if shared else fcntl.F_WRLCK, _FIRST_PAUSE
        while not self._try(kind, place):
            check()
            time.sleep(pause)  # a lock of several processes that tells of aborts too cannot be waited for
            pause = min(2 * pause, _LAST_PAUSE)

    def unlock(self, place: int) -> None:
        """Let go of a lock."""
        self._try(fcntl.F_UNLCK, place)

    def _try(self, kind: int, place: int) -> bool:
        try:
            # locks of the open file exclude ranks that are threads too; some systems have only those of processes
            setting = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
            fcntl.fcntl(self._descriptor, setting, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Let go of the memory. Arrays that show it keep it alive."""
        self.memory = np.empty(0, np.uint8)
        if self._map is not None:
            with contextlib.suppress(BufferError):  # an array of the program shows it; it goes with that
                self._map.close()
            self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def _errors(peers: Peers, nbytes: int) -> Iterator[None]:
    """Turn what prevents a segment into an error of MPI."""
    try:
        yield
    except (OSError, OverflowError, MemoryError) as cause:
        raise error("ERR_NO_MEM", f"rank {peers.rank} cannot share {nbytes} bytes: {described(cause)}") from cause


@contextlib.contextmanager
def _created(nbytes: int) -> Iterator[str]:
    """Make a file for a segment; the path by which others open it, meanwhile."""
    descriptor = -1
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a sandbox refuses it
        if os.path.isdir("/proc/self/fd"):
            descriptor = os.memfd_create("ronde.mpi", os.MFD_CLOEXEC)
    if descriptor >= 0:
        path, remove = f"/proc/{os.getpid()}/fd/{descriptor}", ""
    else:
        descriptor, path = tempfile.mkstemp(prefix="ronde-mpi-")
        remove = path
    try:
        os.ftruncate(descriptor, nbytes)
        yield path
    finally:
        os.close(descriptor)
        if remove:
            os.unlink(remove)
