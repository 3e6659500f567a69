"""The output of the ranks: split into lines, and passed on to stdout and stderr as fast as their reader takes it, and
to files. It is bytes: nothing is decoded, so text in any encoding passes unchanged.

    rank 0 stdout --> LineSplitter --\\
    rank 1 stdout --> LineSplitter ----> Sink (buffer of bounded size) --> stdout of the launcher
    rank N stdout --> LineSplitter --/

While a sink is full, the hosts are told to keep back what the ranks write to it, so that the ranks wait.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import selectors
import signal
import stat
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from collectives.launch.processes.processes import exit_code

STDOUT: Final = 0
STDERR: Final = 1

MAX_LINE = 1 << 20
"""Bytes. A longer line is passed on in parts, which bounds the memory for a rank that never ends its line."""

FULL = 1 << 18
"""Bytes. While a sink holds more, the pipes of the ranks that write to it are not read."""

_END: Final = re.compile(rb"\r\n|\n|\r(?=[^\n])")
_PIPE_CHUNK: Final = getattr(select, "PIPE_BUF", 512)
_FILE_CHUNK: Final = 1 << 16
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 2000
_NAMES: Final = {STDOUT: "stdout", STDERR: "stderr"}


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


def prefix_of(rank: int, size: int, host: str) -> bytes:
    """The prefix of each line of a rank: '[rank  3, h1] '. `host`: '' if there is only one."""
    where = f", {host}" if host else ""
    return f"[rank {rank:>{len(str(size - 1))}}{where}] ".encode()


def rank_folder(rank: int, size: int) -> str:
    """The name of the folder of a rank's output, as horovodrun has it: 'rank.03'."""
    return f"rank.{rank:0{len(str(size - 1))}}"


def _stamp() -> bytes:
    """The local time, as it comes before a line: '2026-11-23 09:05:07.123 '."""
    return f"{datetime.now().isoformat(' ', 'milliseconds')} ".encode()


class _Stream:
    """The stdout or stderr of a rank. `stamped`: the time comes before each line."""

    def __init__(
        self, sink: Sink | None, prefix: bytes, tail: Tail | None, file: io.FileIO | None, stamped: bool
    ) -> None:
        self._stamped = stamped
        self._sink = sink
        self._prefix = prefix
        self._tail = tail
        self._file = file
        self._splitter = LineSplitter()

    def feed(self, data: bytes) -> None:
        """Pass complete lines on; b"" ends the last line."""
        if self._file is not None:
            self._write(self._file, data)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            if self._sink is not None:
                self._sink.put(self, _stamp() + self._prefix if self._stamped else self._prefix, line)
            if self._tail is not None:
                self._tail.add(line)

    def _write(self, file: io.FileIO, data: bytes) -> None:
        try:
            while data:
                data = data[file.write(data) :]
        except OSError as error:  # the system does not name the file
            raise OSError(error.errno, error.strerror, str(file.name)) from error


class Relay:
    """Connects the ranks' output to the launcher's, on the selector of its owner.

    The owner calls `key.data()` for every key that the selector reports, and then `update`.

    want     called with STDOUT or STDERR and False when no more output of that kind should come, with True when it
             should again
    stamped  put the time in front of every line of the ranks
    """

    def __init__(
        self, selector: selectors.BaseSelector, want: Callable[[int, bool], None], *, stamped: bool = False
    ) -> None:
        self._stamped = stamped
        self.failure: OSError | None = None
        self._selector = selector
        self._want = want
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._sinks: dict[int, Sink] = {}
        self._reading: dict[Sink, bool] = {}
        self._writing: set[Sink] = set()
        self._files = contextlib.ExitStack()

    @property
    def ending(self) -> tuple[int, str] | None:
        """Exit code and reason of a job whose output cannot be written; None while it can."""
        if self.failure is None:
            return None
        if isinstance(self.failure, BrokenPipeError):
            return exit_code(-signal.SIGPIPE), "the reader closed the output"
        return 1, f"cannot write output: {self.failure}"

    def open(self) -> None:
        """Take over this process's stdout and stderr, which may be the same file."""
        out = Sink(1)
        self._sinks = {STDOUT: out, STDERR: out if os.path.samestat(os.fstat(1), os.fstat(2)) else Sink(2)}
        self._reading = dict.fromkeys(self._sinks.values(), True)

    def add(self, rank: int, prefix: bytes, tail: Tail, folder: Path | None, *, shown: bool = True) -> None:
        """Expect output of a rank. `tail` gets its stderr; `folder` the files stdout and stderr; this process's stdout
        and stderr get it if it is `shown`. Raises OSError."""
        for stream, sink in self._sinks.items():
            file = None
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                file = self._files.enter_context((folder / _NAMES[stream]).open("wb", buffering=0))
            kept = tail if stream == STDERR else None
            self._streams[rank, stream] = _Stream(sink if shown else None, prefix, kept, file, self._stamped)

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on output of a rank; b"" at the end of a stream."""
        try:
            self._streams[rank, stream].feed(data)
        except OSError as error:  # of a file; what goes to stdout and stderr is written later
            self.failure = self.failure or error

    def print(self, text: str) -> None:
        """Write lines of the launcher itself to stderr."""
        for line in text.splitlines():
            self._sinks[STDERR].put(self, b"", line.encode(errors="replace") + b"\n")
        self.update()

    def update(self) -> None:
        """Register sinks that have something to write; stop or resume the output of ranks where a sink became full or
        drained. A file is written before that: no event would resume the output."""
        for sink, reading in self._reading.items():
            if sink.pending and sink not in self._writing:
                try:
                    self._selector.register(sink.fd, selectors.EVENT_WRITE, partial(self._write, sink))
                    self._writing.add(sink)
                except PermissionError:  # epoll refuses regular files, which are always writable
                    while sink.pending:
                        self._write(sink)
            if reading == sink.full:
                self._reading[sink] = not reading
                for stream, other in self._sinks.items():
                    if other is sink:
                        self._want(stream, not reading)

    @property
    def pending(self) -> bool:
        """True while some output has not been written yet."""
        return any(sink.pending for sink in self._reading)

    def close(self) -> None:
        """Release the files, and stdout and stderr. Idempotent."""
        self._files.close()
        for sink in self._reading:
            sink.close()

    def _write(self, sink: Sink) -> None:
        sink.write_some()
        self.failure = self.failure or sink.broken  # further output to it is dropped
        if not sink.pending and sink in self._writing:
            self._writing.discard(sink)
            self._selector.unregister(sink.fd)
