"""Files of this user that later processes find again, and a lock that one process of this host holds while it makes
one.

A file is in the cache folder, which outlives the host's start, and in a folder of this host, by which processes share
it whose home cannot be written, or is new. What is in a file is run, so a folder that other users can write, or have
made, is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from collectives.folders import temporary_folder

log = logging.getLogger("ronde.compiled")

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_LOCK: Final = "lock"
_ROOM: Final = 1 << 18
"""Bytes that a folder must have room for before a file is made: the code takes a quarter of it."""
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HAS_USERS: Final = hasattr(os, "geteuid")


class UnusableFolder(Exception):
    """No folder can be written that is this user's alone."""


def cache_folder() -> Path:
    """The folder for files that can be made again: that of the platform, or what XDG_CACHE_HOME says. For a user
    without a home, as in some containers, a folder of this user's among the temporary files."""
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "ronde"
    try:
        home = Path.home()
    except RuntimeError:
        return host_folders()[0]
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "ronde"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ronde"


def host_folders() -> list[Path]:
    """Folders of this user on this host, the best first. Their names can be guessed, so their owners are checked."""
    if not _HAS_USERS:
        return [Path(tempfile.gettempdir()) / "ronde-user"]
    memory = [Path(f"/dev/shm/.ronde-{os.geteuid()}")] if sys.platform == "linux" else []
    return [temporary_folder(), *memory]


def find(name: str) -> bytes | None:
    """The content of the file `name` in the first folder that has a sound one; None if none has."""
    for folder in (cache_folder(), *host_folders()):
        with contextlib.suppress(OSError):
            _check_private(folder)
            content = _read(folder / name)
            if content is not None:
                return content
    return None


def keep(name: str, content: bytes) -> None:
    """Write the file `name` to the cache folder and to a folder of this host. Raises UnusableFolder if neither can be
    written."""
    shared = _writable(host_folders())
    folders, reasons = [folder for folder in (cache_folder(), shared) if folder is not None], []
    for folder in folders:
        try:
            _make_private(folder)
            _write(folder / name, content)
        except OSError as error:
            reasons.append(str(error))
    if len(reasons) == len(folders):
        raise UnusableFolder("; ".join(reasons))
    for reason in reasons:
        log.info("the compiled interpreter is not kept in one of the folders: %s", reason)


def keeping_folder() -> Path | None:
    """The folder in which the next process finds what `keep` writes, which is made; None if none can be written."""
    return _writable([cache_folder(), *host_folders()])


class Making:
    """The right to make a file, which one process of this user on this host has at a time.

    descriptor  of the locked file: the right lasts until all processes that hold it have closed it. -1 where the system
                or the file system has no such locks, so that several processes may make the file
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Give up this process's share of the right. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def folder_for_making() -> Path:
    """The folder of the lock. Raises UnusableFolder if none can be written, is this user's alone, and has room for a
    file."""
    folder = _writable([*host_folders(), cache_folder()])
    if folder is None:
        tried = ", ".join(map(str, (*host_folders(), cache_folder())))
        raise UnusableFolder(f"none of {tried} can be written, is this user's alone, and has room")
    return folder


def begin_making(folder: Path) -> Making | None:
    """The right to make a file; None if another process has it. Raises OSError if the lock cannot be opened."""
    try:
        import fcntl
    except ImportError:
        return Making(-1)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        return Making(-1)
    return Making(lock)


@contextlib.contextmanager
def note(name: str) -> Iterator[None]:
    """Keep the text of an exception for `noted`, and raise it."""
    try:
        yield
    except BaseException as error:
        folder = _writable([*host_folders(), cache_folder()])
        if folder is not None:
            with contextlib.suppress(OSError):
                _write(folder / f"{name}.failed", f"{type(error).__name__}: {error}".encode())
        raise


def noted(name: str) -> str:
    """The text that `note` has kept last for the file; empty if there is none."""
    content = find(f"{name}.failed")
    return "" if content is None else content.decode(errors="replace")


def forget_note(name: str) -> None:
    """Remove the text that was noted before."""
    for folder in (*host_folders(), cache_folder()):
        with contextlib.suppress(OSError):
            os.unlink(folder / f"{name}.failed")


def _writable(folders: list[Path]) -> Path | None:
    """The first folder that can be made or is there, is this user's alone, and has room; None if there is none."""
    for folder in folders:
        with contextlib.suppress(OSError):
            _make_private(folder)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                if file.write(bytes(_ROOM)) == _ROOM:
                    return folder
    return None


def _make_private(folder: Path) -> None:
    """Make the folder if there is none. Raises OSError if it cannot be made, or is not this user's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder)


def _check_private(path: Path) -> None:
    """Raise OSError if other users could put files into the folder."""
    found = os.lstat(path) if path in host_folders() else os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path}: must be a folder")
    _check_owner(path, found)


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raise OSError for what belongs to somebody else, or can be written by others."""
    if _HAS_USERS and (found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise OSError(f"{path}: must belong to this user, and must not be writable by others")


def _read(path: Path) -> bytes | None:
    """The content of a file; None if it is damaged, or another file. Raises OSError if it cannot be read, or was not
    written by this user."""
    descriptor = os.open(path, os.O_RDONLY | _NO_LINK)
    try:
        found = os.fstat(descriptor)
        _check_owner(path, found)
        if not stat.S_ISREG(found.st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
    finally:
        os.close(descriptor)
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if _digest(path.name, content) == digest else None


def _write(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_digest(path.name, content) + content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _digest(name: str, content: bytes) -> bytes:
    """A digest by which a file is known to be whole, and the one of this name."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()
