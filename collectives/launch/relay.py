"""Passes the output of the ranks on to stdout and stderr, as fast as their reader takes it.

    rank 0 stdout --> LineSplitter --\\
    rank 1 stdout --> LineSplitter ----> Sink (buffer of bounded size) --> stdout of the launcher
    rank N stdout --> LineSplitter --/

While a sink is full, the pipes of the ranks that write to it are not read, so that the ranks wait.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from functools import partial
from typing import Final

from collectives.launch.output import LineSplitter, Sink, same_file

DRAIN_SECONDS: Final = 0.5
"""Silence after which output counts as complete, though some process still holds a rank's pipe open."""

_READ: Final = 1 << 16
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 2000


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


class _Stream:
    """The reading end of a rank's stdout or stderr."""

    def __init__(self, fd: int, sink: Sink, prefix: bytes, tail: Tail | None) -> None:
        self.fd = fd
        self.sink = sink
        self._prefix = prefix
        self._tail = tail
        self._splitter = LineSplitter()

    def forward(self) -> bool:
        """Read once, and pass complete lines on; False at the end of the stream."""
        data = os.read(self.fd, _READ)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self.sink.put(self, self._prefix, line)
            if self._tail is not None:
                self._tail.add(line)
        return bool(data)


class Relay:
    """Connects the ranks' output streams to the launcher's, on the selector of its owner.

    The owner calls `key.data()` for every key that the selector reports, and then `update`.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._streams: set[_Stream] = set()
        self._reading: dict[Sink, bool] = {}
        self._writing: set[Sink] = set()
        self._last_activity = 0.0

    def open(self) -> None:
        """Take over this process's stdout and stderr, which may be the same file."""
        self._out = Sink(1)
        self._err = self._out if same_file(1, 2) else Sink(2)
        self._reading = {self._out: True, self._err: True}

    def add(self, stdout: int, stderr: int, prefix: bytes, tail: Tail) -> None:
        """Read a rank's output from these pipes. They are closed at the end of their output, or by `close`."""
        for fd, sink, kept in ((stdout, self._out, None), (stderr, self._err, tail)):
            stream = _Stream(fd, sink, prefix, kept)
            self._streams.add(stream)
            if self._reading[sink]:
                self._register(stream)

    def print(self, text: str) -> None:
        """Write lines of the launcher itself to stderr."""
        for line in text.splitlines():
            self._err.put(self, b"", line.encode(errors="replace") + b"\n")
        self.update()

    def update(self) -> None:
        """Stop or resume reading where a sink became full or drained; register sinks that have something to write."""
        for sink, reading in self._reading.items():
            if reading == sink.full:
                self._reading[sink] = not reading
                self._last_activity = time.monotonic()
                for stream in self._streams:
                    if stream.sink is sink and reading:
                        self._selector.unregister(stream.fd)
                    elif stream.sink is sink:
                        self._register(stream)
            if sink.pending and sink not in self._writing:
                try:
                    self._selector.register(sink.fd, selectors.EVENT_WRITE, partial(self._write, sink))
                    self._writing.add(sink)
                except PermissionError:  # epoll refuses regular files, which are always writable
                    while sink.pending:
                        self._write(sink)

    @property
    def failure(self) -> OSError | None:
        """The error of a sink that cannot be written any more; further output to it is dropped."""
        return self._out.broken or self._err.broken

    @property
    def drained_at(self) -> float:
        """Moment at which the output counts as complete once all ranks have ended; infinite while a sink is full."""
        if not self._streams:
            return 0.0
        return float("inf") if any(sink.full for sink in self._reading) else self._last_activity + DRAIN_SECONDS

    @property
    def pending(self) -> bool:
        """True while some output has not been written yet."""
        return any(sink.pending for sink in self._reading)

    def close(self) -> None:
        """Release the pipes. Idempotent."""
        for stream in list(self._streams):
            self._remove(stream)
        for sink in self._reading:
            sink.close()

    def _register(self, stream: _Stream) -> None:
        self._selector.register(stream.fd, selectors.EVENT_READ, partial(self._read, stream))

    def _read(self, stream: _Stream) -> None:
        if not stream.sink.full:
            self._last_activity = time.monotonic()
            if not stream.forward():
                self._remove(stream)

    def _remove(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if self._reading[stream.sink]:
            self._selector.unregister(stream.fd)
        os.close(stream.fd)

    def _write(self, sink: Sink) -> None:
        sink.write_some()
        if not sink.pending and sink in self._writing:
            self._writing.discard(sink)
            self._selector.unregister(sink.fd)
