"""Splitting the output of ranks into lines, and writing these without ever blocking on a slow reader.

All of it works on bytes: nothing is decoded, so text in any encoding passes unchanged.
"""

from __future__ import annotations

import os
import re
import select
import stat
from collections import deque
from typing import Final

MAX_LINE = 1 << 20
"""Bytes. A longer line is passed on in parts, which bounds the memory for a rank that never ends its line."""

FULL = 1 << 18
"""Bytes. While a sink holds more, the pipes of the ranks that write to it are not read."""

_END: Final = re.compile(rb"\r\n|\n|\r(?=[^\n])")
_PIPE_CHUNK: Final = getattr(select, "PIPE_BUF", 512)
_FILE_CHUNK: Final = 1 << 16
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 2000


class LineSplitter:
    """Splits a stream of bytes into lines, each with its ending: "\\n", "\\r\\n", or "\\r" as in progress bars."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`; the lines that it completes."""
        self._rest += data
        lines, start = [], 0
        for end in [match.end() for match in _END.finditer(self._rest, self._searched)]:
            lines.append(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        if len(self._rest) > MAX_LINE:
            return lines + self.finish()
        self._searched = max(0, len(self._rest) - 1)  # a "\r" at the end may still become "\r\n"
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if it has no ending."""
        rest = bytes(self._rest)
        self._rest.clear()
        self._searched = 0
        return [rest] if rest else []


class Sink:
    """A descriptor to which many ranks write lines. `put` queues a line, `write_some` writes without blocking.

    broken   the error that made the descriptor unusable, None while it is sound
    """

    def __init__(self, fd: int) -> None:
        self.broken: OSError | None = None
        self._buffer = bytearray()
        self._writer: object | None = None
        self._unfinished = b""
        self._chunk = _FILE_CHUNK if stat.S_ISREG(os.fstat(fd).st_mode) else _PIPE_CHUNK
        self._owned = os.isatty(fd)
        self.fd = self._reopen(fd) if self._owned else fd

    def _reopen(self, fd: int) -> int:
        # A pipe or socket that polls as writable takes PIPE_BUF bytes; a terminal may take fewer and then block. A
        # second open file can be non-blocking without affecting other processes that use the terminal.
        try:
            return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            self._owned = False
            return fd

    @property
    def pending(self) -> bool:
        """True while queued bytes have not been written."""
        return bool(self._buffer)

    @property
    def full(self) -> bool:
        """True while the reader is so far behind that ranks must wait."""
        return len(self._buffer) >= FULL

    def put(self, writer: object, prefix: bytes, line: bytes) -> None:
        """Queue a line of `writer`, with `prefix` in front.

        A line without an ending is continued by the next line of the same writer, and ended if another writer comes
        first. A line ended by "\\r" is overwritten or ended likewise.
        """
        if self.broken:
            return
        if self._unfinished and writer != self._writer:
            self._buffer += b"\n"
            self._unfinished = b""
        if not self._unfinished or self._unfinished.endswith(b"\r"):
            self._buffer += prefix
        self._buffer += line
        self._writer = writer
        self._unfinished = b"" if line.endswith(b"\n") else line[-1:]

    def write_some(self) -> None:
        """Write some bytes. Call it when the descriptor polls as writable. An error marks the sink as broken."""
        try:
            with memoryview(self._buffer) as view:
                count = os.write(self.fd, view[: self._chunk])
            del self._buffer[:count]
        except BlockingIOError:
            return
        except OSError as error:
            self.broken = error
            self._buffer.clear()

    def close(self) -> None:
        """Release the descriptor opened here, if any; the given one stays open."""
        if self._owned:
            self._owned = False
            os.close(self.fd)


class Tail:
    """The last lines of a stream, for the report."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes) -> None:
        """Add a line. It replaces one that ended with "\\r", as on a terminal."""
        if self._lines and self._lines[-1].endswith(b"\r"):
            self._lines.pop()
        self._lines.append(line if len(line) <= _TAIL_BYTES else line[:_TAIL_BYTES] + b"...\n")

    def lines(self) -> list[str]:
        """The lines as text, without blank ones."""
        texts = [line.decode(errors="replace").rstrip() for line in self._lines]
        return [text for text in texts if text]


def same_file(a: int, b: int) -> bool:
    """True if two descriptors refer to the same pipe, terminal or file, as after `2>&1`."""
    return os.path.samestat(os.fstat(a), os.fstat(b))
