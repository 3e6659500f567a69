"""Connections between the launcher and an agent: bytes in both directions, and their end. A command such as ssh is
one; `store_pipes` is another."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from collectives.launch.agent_commands import NO_FOLDER
from collectives.launch.output import LineSplitter, Tail
from collectives.launch.processes import Guardian, describe_status, signal_group, spawn

_READ: Final = 1 << 16


class Connection(Protocol):
    """A way to an agent, for `RemoteHost`."""

    def open(self) -> tuple[int, int]:
        """Begin to connect; the descriptors to read from and to write to, which the caller closes. Raises OSError."""

    @property
    def preamble(self) -> bytes:
        """The bytes to be written before the first message."""

    @property
    def other_end_has_secret(self) -> bool:
        """True if the agent has the job's secret, so that it must not be sent."""

    @property
    def ended(self) -> bool:
        """True once nothing more can come, and nothing is left of the connection but its descriptors."""

    @property
    def end(self) -> str:
        """The way it ended, for a connection whose agent had answered; '' if there is nothing to report."""

    @property
    def errno(self) -> int:
        """The system's error if nothing could be started at the other end: the folder is missing, or is closed to
        the user. 0 if the connection does not tell."""

    @property
    def words(self) -> str:
        """The last lines that the command wrote beside the messages, in short; '' if none."""

    def listen(self, said: Callable[[bytes], None]) -> None:
        """Tell every later line about trouble to `said`."""

    def on_child_exit(self) -> None:
        """A child of this process may have ended."""

    def kill(self) -> None:
        """End it at once. Idempotent."""

    def close(self) -> None:
        """End it, and release everything. Idempotent."""


class CommandConnection:
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
        self._header = header
        self._selector = selector
        self._guardian = guardian
        self._environment = environment
        self._pid = 0
        self._status: int | None = None
        self._stderr = -1
        self._splitter = LineSplitter()
        self._tail = Tail()
        self._said: Callable[[bytes], None] | None = None

    def open(self) -> tuple[int, int]:
        """Start the command. Raises OSError."""
        with contextlib.ExitStack() as after, contextlib.ExitStack() as failed:
            ends: list[int] = []
            for _ in range(3):
                ends += os.pipe()
            stdin, to_agent, from_agent, stdout, stderr, their_stderr = ends
            for end in (stdin, stdout, their_stderr):
                after.callback(os.close, end)
            for end in (to_agent, from_agent, stderr):
                failed.callback(os.close, end)
            self._pid = spawn(self._command, self._environment, stdin, stdout, their_stderr)
            failed.pop_all()
        self._guardian.add(self._pid)
        self._stderr = stderr
        self._selector.register(stderr, selectors.EVENT_READ, self._read_words)
        return from_agent, to_agent

    @property
    def other_end_has_secret(self) -> bool:
        """False: the agent is new, and the connection private."""
        return False

    @property
    def preamble(self) -> bytes:
        """The line that the bootstrap text reads."""
        return b"" if self._header is None else json.dumps(self._header).encode() + b"\n"

    @property
    def ended(self) -> bool:
        """True once the command has ended."""
        return self._status is not None

    @property
    def end(self) -> str:
        """The way the command ended."""
        return "" if self._status is None else f"{self._command[0]} {describe_status(self._status)}"

    @property
    def errno(self) -> int:
        """By the exit codes of the bootstrap text."""
        return NO_FOLDER.get(self._status or 0, 0)

    @property
    def words(self) -> str:
        """The last lines of the command's stderr."""
        return "; ".join(self._tail.lines()[-5:])

    def listen(self, said: Callable[[bytes], None]) -> None:
        """Tell every later line of stderr to `said`."""
        self._said = said

    def on_child_exit(self) -> None:
        """Collect the command, if it has ended."""
        if self._pid and self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._collected(status)

    def kill(self) -> None:
        """Kill the command with everything that it started. Idempotent."""
        if self._pid and self._status is None:
            signal_group(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
            self._collected(status)

    def close(self) -> None:
        """Kill the command, and release everything. Idempotent."""
        self.kill()
        if self._stderr >= 0:
            self._selector.unregister(self._stderr)
            os.close(self._stderr)
            self._stderr = -1

    def _collected(self, status: int) -> None:
        self._status = os.waitstatus_to_exitcode(status)
        self._guardian.remove(self._pid)

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
