"""Passes on what the ranks print, as fast as the reader takes it and no faster."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from functools import partial
from typing import Final

from collectives.launch.output import LineSplitter, Sink, same_file

DRAIN: Final = 0.5
"""Seconds of silence after which output that somebody else still holds open is no longer waited for."""

_READ: Final = 1 << 16
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 2000


class Tail:
    """The last lines of a stream, for the report."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes) -> None:
        if self._lines and self._lines[-1].endswith(b"\r"):
            self._lines.pop()
        self._lines.append(line if len(line) <= _TAIL_BYTES else line[:_TAIL_BYTES] + b"...\n")

    def lines(self) -> list[str]:
        """Decoded for people; blank lines left out."""
        texts = [line.decode(errors="replace").rstrip() for line in self._lines]
        return [text for text in texts if text]


class _Stream:
    """The reading end of one rank's stdout or stderr."""

    def __init__(self, fd: int, sink: Sink, prefix: bytes, tail: Tail | None) -> None:
        self.fd = fd
        self.sink = sink
        self._prefix = prefix
        self._tail = tail
        self._splitter = LineSplitter()

    def take(self) -> bool:
        """Pass on what has come; False at the end."""
        data = os.read(self.fd, _READ)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self.sink.put(self, self._prefix, line)
            if self._tail is not None:
                self._tail.add(line)
        return bool(data)


class Relay:
    """Streams of ranks in, the own stdout and stderr out, on the selector of its owner.

    The owner calls `key.data()` for what the selector reports, and `steer` after that.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._streams: set[_Stream] = set()
        self._reading: dict[Sink, bool] = {}
        self._writing: set[Sink] = set()
        self._last = 0.0

    def open(self) -> None:
        """Take the own stdout and stderr, which may be one and the same file."""
        self._out = Sink(1)
        self._err = self._out if same_file(1, 2) else Sink(2)
        self._reading = {self._out: True, self._err: True}

    def add(self, stdout: int, stderr: int, prefix: bytes, tail: Tail) -> None:
        """Read a rank's output from these pipes, which are closed at their end or with `close`."""
        for fd, sink, kept in ((stdout, self._out, None), (stderr, self._err, tail)):
            stream = _Stream(fd, sink, prefix, kept)
            self._streams.add(stream)
            if self._reading[sink]:
                self._watch(stream)

    def say(self, text: str) -> None:
        """Write lines of our own to stderr."""
        for line in text.splitlines():
            self._err.put(self, b"", line.encode(errors="replace") + b"\n")
        self.steer()

    def steer(self) -> None:
        """Read from ranks while their reader keeps up; write while there is something to write."""
        for sink, reading in self._reading.items():
            if reading == sink.full:
                self._reading[sink] = not reading
                self._last = time.monotonic()
                for stream in self._streams:
                    if stream.sink is sink and reading:
                        self._selector.unregister(stream.fd)
                    elif stream.sink is sink:
                        self._watch(stream)
            if sink.pending and sink not in self._writing:
                try:
                    self._selector.register(sink.fd, selectors.EVENT_WRITE, partial(self._write, sink))
                    self._writing.add(sink)
                except PermissionError:  # epoll takes no regular file: it can always be written
                    while sink.pending:
                        self._write(sink)

    @property
    def failure(self) -> OSError | None:
        """Why a sink cannot be written any more; what goes there is dropped from then on."""
        return self._out.broken or self._err.broken

    @property
    def drain_at(self) -> float:
        """When to stop waiting for more output, once all ranks are gone; infinite while the reader is behind."""
        if not self._streams:
            return 0.0
        return float("inf") if any(sink.full for sink in self._reading) else self._last + DRAIN

    @property
    def pending(self) -> bool:
        """Some output has not been written yet."""
        return any(sink.pending for sink in self._reading)

    def close(self) -> None:
        """Release the pipes. Idempotent."""
        for stream in list(self._streams):
            self._drop(stream)
        for sink in self._reading:
            sink.close()

    def _watch(self, stream: _Stream) -> None:
        self._selector.register(stream.fd, selectors.EVENT_READ, partial(self._read, stream))

    def _read(self, stream: _Stream) -> None:
        if not stream.sink.full:
            self._last = time.monotonic()
            if not stream.take():
                self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if self._reading[stream.sink]:
            self._selector.unregister(stream.fd)
        os.close(stream.fd)

    def _write(self, sink: Sink) -> None:
        sink.write_some()
        if not sink.pending and sink in self._writing:
            self._writing.discard(sink)
            self._selector.unregister(sink.fd)
