"""Files of this user that later processes find again, made by one process while the others wait."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_LOCK: Final = "lock"
_LOCK_SECONDS: Final = 0.02
"""Pause between two trials to take the lock: systems offer no wait for a lock of a file that ends at a deadline."""


def cache_folder() -> Path:
    """The folder for files that can be made again: that of the platform, or what XDG_CACHE_HOME says. For a user
    without a home, as in some containers, a folder of this user's among the temporary files."""
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "ronde"
    try:
        home = Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"ronde-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "ronde"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ronde"


class UnusableFolder(Exception):
    """The cache folder cannot be written, or is not this user's alone."""


def find_or_make(name: str, make: Callable[[], bytes], deadline: float) -> bytes:
    """The bytes of the file `name` in the cache folder, made by `make` if there is no sound one.

    Other processes that ask for it meanwhile wait until it is made. Raises UnusableFolder; TimeoutError if another
    process still makes it at the deadline; what `make` raises.
    """
    folder = cache_folder()
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        data = _read(path)
        lock = None if data is not None else os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnusableFolder(str(error)) from error
    if lock is None:
        assert data is not None
        return data
    try:
        _take(lock, path, deadline)
        data = _read(path)  # another process may have made it
        if data is None:
            data = make()
            with contextlib.suppress(OSError):  # the disk is full: later processes make it again
                _write(path, data)
        return data
    finally:
        os.close(lock)


def _check_private(folder: Path) -> None:
    """Raise OSError if other users could put files into the folder: what it holds is run."""
    if sys.platform == "win32":
        return
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder}: must belong to this user, and must not be writable by others")


def _read(path: Path) -> bytes | None:
    """The content of a file; None if there is none, or if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _take(lock: int, path: Path, deadline: float) -> None:
    """Take the lock of an open file, held until that is closed; none where the system or the file system has no such
    locks. Raises TimeoutError at the deadline."""
    try:
        import fcntl
    except ImportError:
        return
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has not made {path} in time") from None
            time.sleep(_LOCK_SECONDS)
        except OSError:
            return
        else:
            return
