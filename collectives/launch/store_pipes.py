"""A connection between two processes that both reach a store: bytes travel as its values. It serves nodes that were
started by hand, where nobody opens a connection for the launcher. Secrets and TLS are those of the store.

Two threads copy between pipes and the store, so that both ends use descriptors, as with any other connection.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from transports.errors import RondeError
from transports.store import Store

_PIECE: Final = 1 << 16
_WAIT_SECONDS: Final = 3600.0
_CLOSE_SECONDS: Final = 2.0


class StorePipes:
    """Implements `Connection`.

    store     this end's client, which `close` closes. Both ends must reach the store
    outgoing  name of what this end sends; the other end has the names the other way round
    """

    def __init__(self, store: Store, outgoing: str, incoming: str) -> None:
        self._store = store
        self._outgoing = outgoing
        self._incoming = incoming
        self._threads: list[threading.Thread] = []
        self._failure = ""

    def open(self) -> tuple[int, int]:
        """Begin to copy; the descriptors to read from and to write to."""
        (read, their_write), (their_read, write) = os.pipe(), os.pipe()
        for name, copy, fd in (("send", self._send, their_read), ("receive", self._receive, their_write)):
            thread = threading.Thread(target=copy, args=(fd,), name=f"ronde-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return read, write

    @property
    def other_end_has_secret(self) -> bool:
        """True: without it nobody reaches the store. Without TLS others may read what is sent."""
        return True

    @property
    def preamble(self) -> bytes:
        """Nothing comes before the messages."""
        return b""

    @property
    def ended(self) -> bool:
        """True once the other end has closed, or the store is gone."""
        return bool(self._threads) and not self._threads[1].is_alive()

    @property
    def end(self) -> str:
        """The error of the store, if that ended the connection."""
        return self._failure

    @property
    def errno(self) -> int:
        """Nothing is started here."""
        return 0

    @property
    def words(self) -> str:
        """Nothing is said beside the messages."""
        return ""

    def listen(self, said: Callable[[bytes], None]) -> None:
        """Nothing is said beside the messages."""

    def on_child_exit(self) -> None:
        """There is no child."""

    def kill(self) -> None:
        """End it at once: the other end is not told. Idempotent."""
        self._store.close()
        if self._threads:
            self._threads[1].join()

    def close(self) -> None:
        """Tell the other end, once the descriptors of `open` are closed, and release everything. Idempotent."""
        if self._threads:
            self._threads[0].join(_CLOSE_SECONDS)  # it ends with the pipe that it reads
        self.kill()
        for thread in self._threads:
            thread.join()

    def _send(self, fd: int) -> None:
        number = 0
        with os.fdopen(fd, "rb", buffering=0) as pipe, contextlib.suppress(RondeError):
            data = b"more"
            while data:
                data = pipe.read(_PIECE)
                self._store.set(f"{self._outgoing}/{number}", data)
                number += 1

    def _receive(self, fd: int) -> None:
        number = 0
        with os.fdopen(fd, "wb", buffering=0) as pipe:
            try:
                while data := self._store.get(f"{self._incoming}/{number}", time.monotonic() + _WAIT_SECONDS):
                    self._store.delete(f"{self._incoming}/{number}")
                    number += 1
                    while data:
                        data = data[pipe.write(data) :]
            except (RondeError, BrokenPipeError) as error:
                self._failure = str(error)
