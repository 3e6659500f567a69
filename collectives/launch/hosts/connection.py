"""The way between the launcher and an agent: messages over two descriptors, and the command that has them at its other
end. `nodes` has another connection.

Messages are msgpack arrays in frames of 4 bytes length (big-endian) and body.

Texts that come from the system (arguments, variables, paths) travel as bytes, since they need not be UTF-8.

    launcher to agent                                     agent to launcher
    ["open", marker, seconds of silence allowed, grace,   marker, then ["hello", facts]
      whether the ranks outlast the launcher's silence]
    ["serve", secret, interface, hints]                   ["serving", url, host and port for torch]
    ["start", start]                                      ["started", rank, pid] for each rank
      each of these may also be answered by               ["failed", text, errno or 0]
    ["credit", stream, bytes]                             ["output", rank, stream, data], no data at its end
    ["input", data], no data at its end                   ["taken", bytes]
    ["signal", number, whole groups]                      ["ended", rank, status, last signal of the launcher]
    ["signal rank", rank, number]
    ["watch preemption", file or '', seconds to leave]    ["preempted", why], when the host is about to go
                                                          ["gone"] when no process is left
                                                          ["drained"] after the last output
    ["ask", question, ranks]                              ["answer", question, value]
    ["announce end", rank]
    ["give up"]                                           ["ending", why], when something else than the launcher
    ["finish", exit code]                                                             ends the ranks
    ["beat"]                                              ["beat"]
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collectives.launch.hosts.agent_commands import NO_FOLDER
from collectives.launch.processes import Guardian, LineSplitter, Tail, describe_status, signal_group, spawn
from transports.errors import RondeError
from transports.packed import pack, unpack

MAX_FRAME: Final = 1 << 25
"""Bytes. A command line with its environment takes a few MiB at most."""

WINDOW: Final = 1 << 18
"""Bytes of one stream that may be on their way without a credit for them."""

_LENGTH: Final = struct.Struct("!I")
_READ: Final = 1 << 16

Message = list[object]


def encode(message: Message) -> bytes:
    """The frame of a message."""
    body = pack(message)
    return _LENGTH.pack(len(body)) + body


def fields_of(kind: type, values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields in a message, which another version may have sent: without those that this one
    does not know. Raises RondeError if one is missing that has no default."""
    found, missing = {}, []
    for field in dataclasses.fields(kind):
        if field.name in values:
            found[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING:
            missing.append(field.name)
    if missing:
        raise RondeError(f"a message lacks {', '.join(missing)}: was it sent by another version of Ronde?")
    return found


class Decoder:
    """Takes messages out of a stream of bytes.

    marker  what comes before the first frame; everything before it is skipped. b"" for none
    """

    def __init__(self, marker: bytes = b"") -> None:
        self._skipped = b""
        self._marker = marker
        self._rest = bytearray()

    @property
    def skipped(self) -> bytes:
        """The end of what came before the marker, or instead of it so far."""
        return self._skipped + (bytes(self._rest) if self._marker else b"")

    def feed(self, data: bytes) -> list[Message]:
        """Add `data`; the messages that it completes. Raises ValueError for anything that is no message."""
        self._rest += data
        if self._marker and not self._skip():
            return []
        messages = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if not 0 < length <= MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            message = unpack(bytes(self._rest[_LENGTH.size : end]), max_bytes=MAX_FRAME)
            del self._rest[:end]
            if not isinstance(message, list) or not message:
                raise ValueError("a frame that holds no array")
            messages.append(message)
        return messages

    def _skip(self) -> bool:
        """Drop what comes before the marker, and the marker; False if it has not come yet."""
        noise, found, rest = bytes(self._rest).partition(self._marker)
        kept = len(noise) if found else max(0, len(noise) - len(self._marker) + 1)
        self._skipped = (self._skipped + noise[:kept])[-2000:]
        self._rest = bytearray(rest if found else noise[kept:])
        if found:
            self._marker = b""
        return bool(found)


def take_over_pipes() -> tuple[int, int]:
    """The descriptors for messages of a program that has them as stdin and stdout. Its other output goes to stderr."""
    descriptors = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return descriptors


BEATS: Final = 5
"""Number of signs of life in the time after which silence means that the other end is lost."""


class Link:
    """Sends and receives messages on the selector of its owner, who calls `tick` after every select.

    handle    called with each message but signs of life
    limit     seconds of silence after which the other end is lost
    marker    see Decoder
    closed    why no more messages come; None while the link is up. What was sent before it closed may be lost
    watched   False as long as silence of the other end means nothing
    silent    True if it was closed because the other end gave no sign of life
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        descriptors: tuple[int, int],
        handle: Callable[[Message], None],
        limit: float,
        marker: bytes = b"",
    ) -> None:
        self.closed: str | None = None
        self.silent = False
        self.watched = True
        self.limit = limit
        self._selector = selector
        self._read_fd, self._write_fd = descriptors
        self._handle = handle
        self._decoder = Decoder(marker)
        self._outgoing = bytearray()
        self._writing = False
        self._broken = False
        self._heard = self._sent = time.monotonic()
        for fd in descriptors:
            os.set_blocking(fd, False)
        selector.register(self._read_fd, selectors.EVENT_READ, self._read)

    @property
    def skipped(self) -> bytes:
        """The end of what came before the marker, or instead of it so far."""
        return self._decoder.skipped

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `tick` if no event comes first."""
        if self.closed is not None:
            return float("inf")
        return min(self._sent + self.limit / BEATS, self._silent_at)

    @property
    def _silent_at(self) -> float:
        return self._heard + self.limit if self.watched else float("inf")

    def send(self, *message: object) -> None:
        """Send a message, now or when the other end takes it. Nothing happens if the link is closed."""
        self.send_bytes(encode(list(message)))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.closed is None and not self._broken:
            self._sent = time.monotonic()
            self._outgoing += data
            if not self._writing:
                self._write()

    def watch(self, patience: float = 0.0) -> None:
        """From now on, silence of the other end closes the link. `patience`: seconds that it may be silent until its
        next message."""
        self.watched = True
        self._heard = time.monotonic() + patience

    def beat(self) -> None:
        """Send a sign of life if it is time."""
        now = time.monotonic()
        if self.closed is None and now >= self._sent + self.limit / BEATS:
            self._sent = now
            if not self._outgoing:  # the other end takes nothing: what it has not taken is a sign of life
                self.send("beat")

    def tick(self) -> None:
        """Send a sign of life if it is time; close the link if the other end has given none."""
        self.beat()
        now = time.monotonic()
        if self.closed is None and now >= self._silent_at:
            self._read()  # this process may have been stopped itself: what has come since then is no silence
        if self.closed is None and now >= self._silent_at:
            self.silent = True
            self.close(f"no sign of life for {self.limit:g} s")

    def close(self, reason: str) -> None:
        """Release the descriptors. Idempotent: the first reason is kept."""
        if self.closed is None:
            self.closed = reason
            self._selector.unregister(self._read_fd)
            if self._writing:
                self._selector.unregister(self._write_fd)
            os.close(self._read_fd)
            os.close(self._write_fd)

    def _read(self) -> None:
        if self.closed is not None:
            return
        try:
            data = os.read(self._read_fd, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"the connection failed: {error.strerror}")
            return
        if not data:
            self.close("the connection has ended")
            return
        now = time.monotonic()
        self._heard = max(self._heard, now)  # a sign of life from before `watch` does not end its patience
        try:
            messages = self._decoder.feed(data)
        except ValueError as error:
            self.close(f"the other end sent {error}")
            return
        for message in messages:
            if message[0] != "beat" and self.closed is None:
                self._heard = now
                self._handle(message)

    def _write(self) -> None:
        if self.closed is not None:  # by an event of the same select
            return
        try:
            with memoryview(self._outgoing) as view:
                count = os.write(self._write_fd, view)
            del self._outgoing[:count]
        except BlockingIOError:
            count = 0
        except OSError:  # the other end has closed: what it sent before is still to be read, and then the end
            self._broken = True
            self._outgoing.clear()
        if bool(self._outgoing) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._selector.register(self._write_fd, selectors.EVENT_WRITE, self._write)
            else:
                self._selector.unregister(self._write_fd)


class Connection(ABC):
    """A way to an agent, for `RemoteHost`: bytes in both directions, and their end.

    other_end_has_secret  True if the agent has the job's secret, so that it must not be sent
    preamble              the bytes to be written before the first message
    """

    other_end_has_secret = False
    preamble = b""

    @abstractmethod
    def open(self) -> tuple[int, int]:
        """Begin to connect; the descriptors to read from and to write to, which the caller closes. Raises OSError."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True once nothing more can come, and nothing is left of the connection but its descriptors."""

    @property
    @abstractmethod
    def end(self) -> str:
        """The way it ended, for a connection whose agent had answered; '' if there is nothing to report."""

    @property
    def errno(self) -> int:
        """The system's error if nothing could be started at the other end: the folder is missing, or is closed to
        the user. 0 if the connection does not tell."""
        return 0

    @property
    def words(self) -> str:
        """The last lines that the command wrote beside the messages, in short; '' if none."""
        return ""

    def listen(self, said: Callable[[bytes], None]) -> None:  # noqa: B027  not all have anything to say
        """Tell every later line about trouble to `said`."""

    def on_child_exit(self) -> None:  # noqa: B027  not all have a child
        """A child of this process may have ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """End it, and release everything. Idempotent."""


class CommandConnection(Connection):
    """A command whose stdin and stdout lead to an agent's. Its stderr has the words about trouble.

    command  see `agent_commands`
    header   what the bootstrap text reads; None for a command without it
    environment  of the command
    """

    def __init__(
        self,
        command: Sequence[str],
        header: Sequence[Any] | None,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self.preamble = b"" if header is None else json.dumps(header).encode() + b"\n"
        self._selector = selector
        self._guardian = guardian
        self._environment = environment
        self.pid = 0
        self._status: int | None = None
        self._pidfd = -1
        self._stderr = -1
        self._splitter = LineSplitter()
        self._tail = Tail()
        self._said: Callable[[bytes], None] | None = None

    def open(self) -> tuple[int, int]:
        with contextlib.ExitStack() as after, contextlib.ExitStack() as failed:
            ends: list[int] = []
            for _ in range(3):
                ends += os.pipe()
            stdin, to_agent, from_agent, stdout, stderr, their_stderr = ends
            for end in (stdin, stdout, their_stderr):
                after.callback(os.close, end)
            for end in (to_agent, from_agent, stderr):
                failed.callback(os.close, end)
            self.pid = spawn(self._command, self._environment, stdin, stdout, their_stderr)
            failed.pop_all()
        self._guardian.add(self.pid)
        self._stderr = stderr
        with contextlib.suppress(AttributeError, OSError):  # where there is none, the owner must get SIGCHLD
            self._pidfd = os.pidfd_open(self.pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ, self.on_child_exit)
        self._selector.register(stderr, selectors.EVENT_READ, self._read_words)
        return from_agent, to_agent

    @property
    def ended(self) -> bool:
        return self._status is not None

    @property
    def end(self) -> str:
        return "" if self._status is None else f"{self._command[0]} {describe_status(self._status)}"

    @property
    def errno(self) -> int:
        """By the exit codes of the bootstrap text."""
        return NO_FOLDER.get(self._status or 0, 0)

    @property
    def words(self) -> str:
        return "; ".join(self._tail.lines()[-5:])

    def listen(self, said: Callable[[bytes], None]) -> None:
        self._said = said

    def on_child_exit(self) -> None:
        if self.pid and self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._collected(status)

    def kill(self) -> None:
        if self.pid and self._status is None:
            signal_group(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._collected(status)

    def close(self) -> None:
        self.kill()
        if self._stderr >= 0:
            self._selector.unregister(self._stderr)
            os.close(self._stderr)
            self._stderr = -1

    def _collected(self, status: int) -> None:
        self._status = os.waitstatus_to_exitcode(status)
        if self._pidfd >= 0:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._guardian.remove(self.pid)

    def _read_words(self) -> None:
        data = os.read(self._stderr, _READ)
        if not data:
            self._selector.unregister(self._stderr)
            os.close(self._stderr)
            self._stderr = -1
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self._tail.add(line)
            if self._said is not None:
                self._said(line)
