"""Passes the launcher's standard input on to rank 0 on another host, as fast as it reads."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable
from typing import Final

from collectives.launch.hosts.connection import WINDOW

_READ: Final = 1 << 16


class InputSender:
    """Reads a descriptor, on the selector of its owner. `send` gets the data, and b"" at the end.

    A launcher in the background of a shell must not read the terminal; the system then says that the input has ended.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[bytes], None], fd: int = 0) -> None:
        self._selector = selector
        self._fd = fd
        self._send = send
        self._credit = WINDOW
        self._open = True
        self._watched = False
        self._before = signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        self._resume()

    def taken(self, count: int) -> None:
        """Rank 0 has taken some bytes; a negative count: it takes no more."""
        if count < 0:
            self.close()
        elif self._open:
            self._credit += count
            self._resume()

    def close(self) -> None:
        """Read no more. Idempotent."""
        if self._open:
            self._open = False
            self._pause()
            signal.signal(signal.SIGTTIN, self._before)

    def _resume(self) -> None:
        if self._credit > 0 and not self._watched:
            try:
                self._selector.register(self._fd, selectors.EVENT_READ, self._read)
                self._watched = True
            except PermissionError:  # epoll refuses regular files, which are always readable
                while self._open and self._credit > 0:
                    self._read()

    def _pause(self) -> None:
        if self._watched:
            self._watched = False
            self._selector.unregister(self._fd)

    def _read(self) -> None:
        if not self._open:
            return
        try:
            data = os.read(self._fd, min(_READ, self._credit))
        except OSError:  # a terminal that is gone, or that belongs to another job of the shell
            data = b""
        self._send(data)
        self._credit -= len(data)
        if not data:
            self.close()
        elif self._credit <= 0:
            self._pause()


class InputReceiver:
    """Writes what InputSender reads to a pipe that rank 0 reads. `taken` is told what the pipe took."""

    def __init__(self, selector: selectors.BaseSelector, taken: Callable[[int], None]) -> None:
        self._selector = selector
        self._taken = taken
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._data = bytearray()
        self._ended = False
        self._watched = False
        self._open = True

    def put(self, data: bytes) -> None:
        """Pass on data; b"" ends the input."""
        if self._open:
            self._data += data
            self._ended = self._ended or not data
            self._write()

    def release_read_end(self) -> None:
        """Close the end of the pipe that rank 0 has. Idempotent."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close(self) -> None:
        """Release the pipe. Idempotent."""
        self.release_read_end()
        if self._open:
            self._open = False
            self._watch(False)
            os.close(self._write_end)

    def _write(self) -> None:
        try:
            with contextlib.suppress(BlockingIOError), memoryview(self._data) as view:
                count = os.write(self._write_end, view) if view else 0
                self._taken(count)
                view.release()
                del self._data[:count]
        except OSError:  # rank 0 reads no more
            self._taken(-1)
            self.close()
            return
        if self._ended and not self._data:
            self.close()
        else:
            self._watch(bool(self._data))

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watched:
            self._selector.register(self._write_end, selectors.EVENT_WRITE, self._write)
        elif self._watched and not wanted:
            self._selector.unregister(self._write_end)
        self._watched = wanted
