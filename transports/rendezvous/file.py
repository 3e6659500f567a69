"""A store in a directory that all ranks can reach: on one host, or on a file system that several hosts share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from transports.errors import DeadlineExceeded, RendezvousError
from transports.store import MAX_VALUE_BYTES, Place, Store, check_item, counted

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 30.0
FIRST_PAUSE = 0.0005
LOCK_PAUSE = 0.02
LONGEST_PAUSE = 0.1
_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class FileStore(Store):
    """One file per key. A file appears whole (written aside, then renamed), so a reader never sees half a value.

    The directory is made (mode 0700, files 0600) on first use. One that belongs to another user, or that group or
    others may write to, is refused, since a user with write access can control the job. A job needs a directory of
    its own: keys outlive the store, and the creator of the directory removes it.

    Changes hold a lock: flock(2) where the file system has it, which the kernel releases when its holder dies; else a
    file made with O_EXCL, which a holder that dies leaves behind (the error then names it).

    Waiting is polling here, with pauses growing to 0.1 s: no event for a changed directory works on every platform,
    and none at all works when another host makes the change. On NFS a new key may stay unseen for as long as the
    client caches that it was absent; the mount option lookupcache=positive (nfs(5)) avoids it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.path.abspath(directory)
        self._ready = False
        self._closed = threading.Event()

    def place(self) -> Place | None:
        return Place(Path(self._directory).as_uri())

    def set(self, key: str, value: bytes) -> None:
        check_item(key, value)
        with self._mapped(), self._locked():
            self._write(self._path(key), value)

    def set_default(self, key: str, value: bytes) -> bytes:
        check_item(key, value)
        path = self._path(key)
        with self._mapped(), self._locked():
            found = self._read(path)
            if found is None:
                self._write(path, value)
            return value if found is None else found

    def get(self, key: str, deadline: float) -> bytes:
        check_item(key)
        path = self._path(key)
        pause = FIRST_PAUSE
        with self._mapped():
            self._prepare()
            while (value := self._read(path)) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(f"key {key!r} was not set in time (store in {self._directory})")
                self._closed.wait(min(pause, left))
                self._check_open()
                pause = min(pause * 1.5, LONGEST_PAUSE)
        return value

    def add(self, key: str, amount: int) -> int:
        check_item(key)
        path = self._path(key)
        with self._mapped(), self._locked():
            total = counted(key, self._read(path), amount)
            self._write(path, b"%d" % total)
        return total

    def delete(self, key: str) -> bool:
        check_item(key)
        with self._mapped(), self._locked():
            try:
                os.unlink(self._path(key))
            except FileNotFoundError:
                return False
            return True

    def close(self) -> None:
        """Waits of this object raise RendezvousError. The files stay, for the other ranks."""
        self._closed.set()

    def _path(self, key: str) -> str:
        """A name that every file system accepts: the readable part of the key, and its digest."""
        readable = re.sub(r"[^a-z0-9_.-]", "_", key.lower())[:80]
        return os.path.join(self._directory, f"{readable}.{hashlib.sha256(key.encode()).hexdigest()}")

    def _read(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read(MAX_VALUE_BYTES)
        except FileNotFoundError:
            return None

    def _write(self, path: str, value: bytes) -> None:
        descriptor, aside = tempfile.mkstemp(prefix=".", suffix=".new", dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise RendezvousError(f"the store in {self._directory} was closed")

    def _prepare(self) -> None:
        self._check_open()
        if self._ready:
            return
        os.makedirs(os.path.dirname(self._directory), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        found = os.stat(self._directory)
        if not stat.S_ISDIR(found.st_mode):
            raise RendezvousError(f"the store's path {self._directory} is not a directory")
        if os.name == "posix":
            if found.st_uid != os.geteuid():
                raise RendezvousError(
                    f"the store's directory {self._directory} belongs to user {found.st_uid}: it must belong to the "
                    f"user who runs the job ({os.geteuid()})"
                )
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise RendezvousError(
                    f"the store's directory {self._directory} has mode {stat.S_IMODE(found.st_mode):04o}: only its "
                    f"owner may be allowed to write (0700)"
                )
        self._ready = True

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except DeadlineExceeded:
            raise
        except OSError as error:
            raise RendezvousError(f"the store in {self._directory} cannot be used: {error}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all users of the directory. Raises RendezvousError if the lock stays taken."""
        self._prepare()
        deadline = time.monotonic() + LOCK_SECONDS
        pause = FIRST_PAUSE
        with contextlib.ExitStack() as held:
            # Not a blocking flock: it could not be bounded, and a holder may be stopped.
            while not self._try_lock(held):
                if time.monotonic() >= deadline:
                    raise RendezvousError(
                        f"the store in {self._directory} stayed locked for {LOCK_SECONDS:g} s: a rank that holds the "
                        f"lock hangs, or died and left the file {self._taken} behind"
                    )
                self._closed.wait(pause)
                self._check_open()
                pause = min(pause * 2, LOCK_PAUSE)
            yield

    @property
    def _taken(self) -> str:
        return os.path.join(self._directory, ".taken")

    def _try_lock(self, held: contextlib.ExitStack) -> bool:
        """Take the lock, if it is free, until `held` ends."""
        if fcntl is not None:
            descriptor = os.open(os.path.join(self._directory, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            with contextlib.ExitStack() as opened:
                opened.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_FLOCK:
                        raise
                else:
                    held.push(opened.pop_all())
                    return True
        try:
            os.close(os.open(self._taken, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        held.callback(os.unlink, self._taken)
        return True
