"""Passes the output of the ranks on to stdout and stderr, as fast as their reader takes it, and to files.

    rank 0 stdout --> LineSplitter --\\
    rank 1 stdout --> LineSplitter ----> Sink (buffer of bounded size) --> stdout of the launcher
    rank N stdout --> LineSplitter --/

While a sink is full, the hosts are told to keep back what the ranks write to it, so that the ranks wait.
"""

from __future__ import annotations

import contextlib
import io
import selectors
import signal
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from collectives.launch.connection import STDERR, STDOUT
from collectives.launch.output import LineSplitter, Sink, Tail, same_file
from collectives.launch.processes import exit_code

_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


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
        rest = data
        while rest and self._file is not None:
            rest = rest[self._file.write(rest) :]
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            if self._sink is not None:
                self._sink.put(self, _stamp() + self._prefix if self._stamped else self._prefix, line)
            if self._tail is not None:
                self._tail.add(line)


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
        self._sinks = {STDOUT: out, STDERR: out if same_file(1, 2) else Sink(2)}
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
        """Stop or resume the output of ranks where a sink became full or drained; register sinks that have something to
        write."""
        for sink, reading in self._reading.items():
            if reading == sink.full:
                self._reading[sink] = not reading
                for stream, other in self._sinks.items():
                    if other is sink:
                        self._want(stream, not reading)
            if sink.pending and sink not in self._writing:
                try:
                    self._selector.register(sink.fd, selectors.EVENT_WRITE, partial(self._write, sink))
                    self._writing.add(sink)
                except PermissionError:  # epoll refuses regular files, which are always writable
                    while sink.pending:
                        self._write(sink)

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
