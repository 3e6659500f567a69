"""Segments: memory that processes of one host share, as files that are mapped and unlinked.

`multiprocessing.shared_memory` would not do: its resource tracker unlinks segments behind the back of those who still
attach.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import stat
import sys
import tempfile
from typing import Final

SHARED_DIRECTORY: Final = "/dev/shm"
PREFIX: Final = "ronde-"
_NAME: Final = re.compile(f"{PREFIX}[0-9a-f]{{32}}")
_ZEROS: Final = bytes(1 << 20)


def default_directory() -> str:
    """The directory of segments: in memory if the system has such a one."""
    return SHARED_DIRECTORY if os.path.isdir(SHARED_DIRECTORY) else tempfile.gettempdir()


class Segment:
    """A mapped file. Whoever has one must `close` it, and `unlink` it once all have attached."""

    def __init__(self, path: str, mapping: mmap.mmap) -> None:
        self.path = path
        self.memory = memoryview(mapping)
        self._mapping = mapping

    @classmethod
    def create(cls, nbytes: int, directory: str = "") -> Segment:
        """A segment of `nbytes` zeros, with a random name, for this user only.

        Raises OSError, and leaves nothing, if it cannot be made. Its memory is reserved now: a full file system is an
        error here, not a SIGBUS on some later access.
        """
        directory = directory or default_directory()
        path = os.path.join(directory, PREFIX + secrets.token_hex(16))
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(descriptor, nbytes)
                _reserve(descriptor, nbytes)
                return cls(path, _map(descriptor, nbytes))
            finally:
                os.close(descriptor)
        except BaseException as error:
            unlink(path)
            if isinstance(error, OSError):
                text = f"no segment of {nbytes} bytes of shared memory can be made: {error.strerror}"
                raise OSError(error.errno, text, directory) from error
            raise

    @classmethod
    def attach(cls, path: str, nbytes: int) -> Segment:
        """The segment that another process of this user made. Raises OSError if there is no such segment."""
        if not is_segment(path):
            raise OSError(f"{path!r} is no name of a segment")
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == nbytes
            if not own:
                raise OSError(f"{path!r} is no segment of {nbytes} bytes of this user")
            return cls(path, _map(descriptor, nbytes))
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the name; the memory stays for those who have it. Idempotent, and all may do it."""
        unlink(self.path)

    def close(self) -> None:
        """Give the memory up. It goes at once, or where somebody still looks at it with the last view. Idempotent."""
        with contextlib.suppress(BufferError):
            self.memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()


def is_segment(path: str) -> bool:
    """True if a file of that name can only be a segment."""
    return os.path.isabs(path) and "\0" not in path and _NAME.fullmatch(os.path.basename(path)) is not None


def unlink(path: str) -> None:
    """Remove the name of a segment, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


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
