"""Segments: memory that the ranks of one host map, with locks on parts of it. Nothing here knows of MPI's objects."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from frontends.mpi.errors import missing
from frontends.mpi.memory import Bytes

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
    def make(cls, nbytes: int, share: Callable[[Any], Any], first: bool, meet: Callable[[], Any]) -> Segment:
        """A new segment of several ranks. Collective.

        share  gives all ranks the object of the first one
        first  True on that rank
        meet   a barrier
        """
        if fcntl is None:
            raise missing("memory that ranks share on this system", "use messages")
        made, remove = -1, ""
        try:
            path = ""
            if first:
                made, path, remove = _create(nbytes)
            path = share(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                meet()
                return cls(descriptor, nbytes)
            except BaseException:
                os.close(descriptor)
                raise
        finally:
            if made >= 0:
                os.close(made)
            if remove:
                os.unlink(remove)

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


def _create(nbytes: int) -> tuple[int, str, str]:
    """A file for a segment: its descriptor, the path by which others open it, and the path to be removed then."""
    descriptor = -1
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a sandbox refuses it
        if os.path.isdir("/proc/self/fd"):
            descriptor = os.memfd_create("ronde.mpi", os.MFD_CLOEXEC)
    if descriptor >= 0:
        path, remove = f"/proc/{os.getpid()}/fd/{descriptor}", ""
    else:
        descriptor, path = tempfile.mkstemp(prefix="ronde-mpi-")
        remove = path
    os.ftruncate(descriptor, nbytes)
    return descriptor, path, remove
