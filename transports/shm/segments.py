"""Segments: memory that processes of one host share, as files that are mapped and unlinked.

    maker    creates and locks the file, tells its name ........ all have attached: unlinks it
    others                                     attach

A segment that has its name yet is locked by its maker, so that `remove_abandoned` finds those of makers that were
killed. `multiprocessing.shared_memory` is not suitable: its resource tracker unlinks segments that other processes
still need.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import re
import secrets
import stat
import sys
import tempfile
from typing import Final

try:
    import fcntl
except ImportError:  # Windows, where there are no segments
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("ronde.shm")

SHARED_DIRECTORY: Final = "/dev/shm"
PREFIX: Final = "ronde-"
_NAME: Final = re.compile(f"{PREFIX}[0-9a-f]{{32}}")
_ZEROS: Final = bytes(1 << 20)


def default_directory() -> str:
    """The directory of segments: one in memory if the system has it."""
    return SHARED_DIRECTORY if os.path.isdir(SHARED_DIRECTORY) else tempfile.gettempdir()


class Segment:
    """A mapped file. Its owner must `close` it, and `unlink` it once all processes have attached."""

    def __init__(self, path: str, mapping: mmap.mmap, locked: int = -1) -> None:
        """`locked`: the maker's descriptor of the file, kept as long as it has its name."""
        self.path = path
        self.memory = memoryview(mapping)
        self._mapping = mapping
        self._locked = locked

    @classmethod
    def create(cls, nbytes: int, directory: str = "") -> Segment:
        """A segment of `nbytes` zeros, with a random name, for this user only.

        Raises OSError if it cannot be made, and leaves no file. Its memory is reserved now: a full file system raises
        here instead of sending SIGBUS on a later access.
        """
        directory = directory or default_directory()
        path, descriptor = "", -1
        try:
            path, descriptor = _locked_file(directory)
            os.ftruncate(descriptor, nbytes)
            _reserve(descriptor, nbytes)
            return cls(path, _map(descriptor, nbytes), descriptor)
        except BaseException as error:
            if descriptor >= 0:
                unlink(path)
                os.close(descriptor)
            if isinstance(error, OSError):
                text = f"cannot make a segment of {nbytes} bytes of shared memory: {error.strerror}"
                if error.errno == errno.ENOSPC:
                    text += " (in a container it may have to be made larger; docker: --shm-size)"
                raise OSError(error.errno, text, directory) from error
            raise

    @classmethod
    def attach(cls, path: str, nbytes: int) -> Segment:
        """The segment that another process of this user made. Raises OSError if there is no such segment."""
        if not is_segment(path):
            raise OSError(f"{path!r} is not the name of a segment")
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == nbytes
            if not own:
                raise OSError(f"{path!r} is not a segment of {nbytes} bytes of this user")
            return cls(path, _map(descriptor, nbytes))
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the name; the memory stays where it is mapped. Idempotent; any process may call it."""
        unlink(self.path)
        self._unlock()

    def close(self) -> None:
        """Unmap the memory: now, or together with the last view of it. Idempotent."""
        self._unlock()
        with contextlib.suppress(BufferError):
            self.memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _unlock(self) -> None:
        locked, self._locked = self._locked, -1
        if locked >= 0:
            os.close(locked)


def remove_abandoned(directory: str = "") -> None:
    """Remove the segments of this user whose makers have ended before all had attached, as by SIGKILL."""
    with contextlib.suppress(OSError), os.scandir(directory or default_directory()) as entries:
        for path in [entry.path for entry in entries if is_segment(entry.path)]:
            with contextlib.suppress(OSError):  # it is another user's, has gone, or is locked
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(descriptor).st_uid == os.geteuid():  # root may open those of others, too
                        unlink(path)
                finally:
                    os.close(descriptor)


def is_segment(path: str) -> bool:
    """True if a file of that name can only be a segment."""
    return os.path.isabs(path) and "\0" not in path and _NAME.fullmatch(os.path.basename(path)) is not None


def unlink(path: str) -> None:
    """Remove the name of a segment, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _locked_file(directory: str) -> tuple[str, int]:
    """The path and the descriptor of a new file, which is locked, where the file system has locks."""
    while True:
        path = os.path.join(directory, PREFIX + secrets.token_hex(16))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            if _lock(descriptor) and os.fstat(descriptor).st_nlink:
                return path, descriptor
        except BaseException:
            unlink(path)
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process took it for abandoned before it was locked, and removes it


def _lock(descriptor: int) -> bool:
    """Lock a file, where the file system has locks. False, without a wait, if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("segments are not locked: %s", error)
    return True


def _map(descriptor: int, nbytes: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, nbytes, trackfd=False)  # else it keeps a duplicate of the descriptor
    return mmap.mmap(descriptor, nbytes)


def _reserve(descriptor: int, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    for offset in range(0, nbytes, len(_ZEROS)):  # macOS
        os.pwrite(descriptor, _ZEROS[: nbytes - offset], offset)
