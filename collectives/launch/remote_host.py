"""A host on which an agent runs the ranks, on the other end of a command such as ssh."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from collectives.launch.host import Facts, Failure, Listener, Start
from collectives.launch.link import Link
from collectives.launch.messages import STDERR, STDOUT, WINDOW, Message
from collectives.launch.output import LineSplitter, Tail
from collectives.launch.processes import Guardian, describe_status, signal_group, spawn
from collectives.launch.standard_input import InputSender
from collectives.launch.store_keeper import Question

GONE_SECONDS: Final = 1.0
"""Time from the end of the connection to the end of the command, whose words tell why."""

FINISH_SECONDS: Final = 3.0
"""Time for an agent to end; later the command is killed."""

_READ: Final = 1 << 16


class RemoteHost:
    """Implements `Host`. Failures show in `failure`, or reach `Listener.lost` once ranks run.

    command   starts the agent's bootstrap text, with stdin and stdout connected to this process
    header    folder and variables of the agent
    limit     seconds of silence after which the host counts as lost
    grace     seconds that the agent gives its ranks if it must end them on its own
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        guardian: Guardian,
        listener: Listener,
        *,
        header: Sequence[Any],
        limit: float,
        grace: float,
    ) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.serving: tuple[str, tuple[str, int]] | None = None
        self.reached = False
        self.running = False
        self.failure: Failure | None = None
        self._command = command
        self._selector = selector
        self._guardian = guardian
        self._listener = listener
        self._header = header
        self._limit = limit
        self._grace = grace
        self._link: Link | None = None
        self._pid = 0
        self._status: int | None = None
        self._words = -1
        self._splitter = LineSplitter()
        self._tail = Tail()
        self._ends_at = float("inf")  # when the connection and the command must have ended
        self._to_start: set[int] = set()
        self._started = False
        self._finished = False
        self._gone = True
        self._drained = True
        self._wanted = {STDOUT: True, STDERR: True}
        self._owed = {STDOUT: 0, STDERR: 0}
        self._input: InputSender | None = None

    # Before the ranks run

    def open(self) -> None:
        """Start the command. Raises OSError."""
        with contextlib.ExitStack() as theirs:
            ends: list[int] = []
            for _ in range(3):
                ends += os.pipe()
            stdin, to_agent, from_agent, stdout, self._words, stderr = ends
            for end in (stdin, stdout, stderr):
                theirs.callback(os.close, end)
            marker = secrets.token_hex(16).encode()
            self._link = Link(self._selector, (from_agent, to_agent), self._receive, float("inf"), marker)
            self._selector.register(self._words, selectors.EVENT_READ, self._read_words)
            self._pid = spawn(self._command, os.environ, stdin, stdout, stderr)
            self._guardian.add(self._pid)
        self._link.send_bytes(json.dumps(self._header).encode() + b"\n")
        self._link.send("open", marker, self._limit, self._grace)

    def serve(self, secret: bytes, interface: str, hints: Sequence[str]) -> None:
        """Let the agent serve the store."""
        self._send("serve", secret, interface, list(hints))

    def reach(self, url: str, secret: bytes) -> None:
        """Let the agent try whether it can reach the store."""
        self._send("reach", url, secret)

    def start(self, start: Start) -> None:
        """Let the agent start ranks."""
        self._started = True
        self._gone = self._drained = False
        self._to_start = set(start.ranks)
        values = asdict(start) | {"command": [os.fsencode(word) for word in start.command], "ranks": list(start.ranks)}
        self._send("start", values)
        if 0 in start.ranks:
            self._input = InputSender(self._selector, partial(self._send, "input"))

    # While they run

    def signal_groups(self, number: signal.Signals) -> None:
        """Send a signal to all ranks and everything that they started."""
        self._send("signal", int(number), True)

    def signal_ranks(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the ranks alone."""
        self._send("signal", int(number), False)

    def want_output(self, stream: int, wanted: bool) -> None:
        """Give the agent credit for more output, or let it wait."""
        self._wanted[stream] = wanted
        if wanted:
            self._give_credit(stream)

    def ask(self, question: Question, ranks: Sequence[int]) -> None:
        """Ask the store that the agent serves."""
        self._send("ask", question, list(ranks))

    def give_up(self) -> None:
        """Wait for no process any more."""
        self._send("give up")
        self._gone = True

    def on_child_exit(self) -> None:
        """Collect the command, if it has ended."""
        if self._pid and self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                self._guardian.remove(self._pid)

    def tick(self) -> None:
        """Notice the end of the connection or silence; kill a command that does not end."""
        if self._link is None:
            return
        self._link.tick()
        now = time.monotonic()
        ended, closed = self._status is not None, self._link.closed is not None
        if (ended or closed) and self._ends_at == float("inf"):
            self._ends_at = now if self._link.silent else now + GONE_SECONDS
        if now >= self._ends_at:  # a child of the command may hold the connection, or the command not notice its end
            self._kill()
            self._link.close("the connection has ended")
        if self._status is not None and self._link.closed is not None:
            self._fail(self._why())

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `tick` if no event comes first."""
        if self._link is None or (self._status is not None and self._link.closed is not None):
            return float("inf")
        return min(self._link.wake_at, self._ends_at)

    @property
    def gone(self) -> bool:
        """True once no process of its ranks is left, or nothing can be known of them."""
        return self._gone or self.failure is not None

    @property
    def drained_at(self) -> float:
        """0 once all output has come or none will come any more, otherwise infinite."""
        return 0.0 if self._drained or self.failure is not None else float("inf")

    # The end

    def finish(self) -> None:
        """Let the agent end; kill the command if it does not in time."""
        if self._link is not None:
            self._finished = True
            self._send("finish")
            self._ends_at = min(self._ends_at, time.monotonic() + FINISH_SECONDS)

    @property
    def closed(self) -> bool:
        """True once the command has ended."""
        return self._link is None or self._status is not None

    def close(self) -> None:
        """Kill the command, and release everything. Idempotent."""
        if self._link is not None:
            self._kill()
            self._link.close("closed")
            self._link = None
        if self._input is not None:
            self._input.close()
        if self._words >= 0:
            self._selector.unregister(self._words)
            os.close(self._words)
            self._words = -1

    # What comes from the agent

    def _receive(self, message: Message) -> None:
        match message:
            case ["hello", dict(facts)]:
                self.facts = Facts(**{str(name): str(value) for name, value in facts.items()})
                assert self._link is not None
                self._link.limit = self._limit
            case ["serving", str(url), [str(host), int(port)]]:
                self.serving = url, (host, port)
            case ["reached"]:
                self.reached = True
            case ["started", int(rank), int(pid)]:
                self._to_start.discard(rank)
                self.running = not self._to_start
                self._listener.started(rank, pid)
            case ["output", int(rank), int(stream), bytes(data)] if stream in self._owed:
                self._owed[stream] += len(data)
                self._listener.output(rank, stream, data)
                if self._wanted[stream] and self._owed[stream] >= WINDOW // 4:
                    self._give_credit(stream)
            case ["ended", int(rank), int(status), int(last_signal)]:
                self._listener.ended(rank, status, last_signal)
            case ["taken", int(count)] if self._input is not None:
                self._input.taken(count)
            case ["gone"]:
                self._gone = True
            case ["drained"]:
                self._drained = True
            case ["answer", "culprit" | "left out" as question, int(value)]:
                self._listener.answered(question, value)
            case ["failed", str(text), int(number)]:
                self._fail(text, number)
            case ["ending", str(why)]:
                self._fail(why)
            case _:
                assert self._link is not None
                self._link.close(f"the agent sent an unknown message ({message[0]!r:.40}): another version of Ronde?")

    def _send(self, *message: object) -> None:
        if self._link is not None:
            self._link.send(*message)

    def _give_credit(self, stream: int) -> None:
        if self._owed[stream]:
            self._send("credit", stream, self._owed[stream])
            self._owed[stream] = 0

    def _read_words(self) -> None:
        data = os.read(self._words, _READ)
        if not data:
            self._selector.unregister(self._words)
            os.close(self._words)
            self._words = -1
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self._tail.add(line)
            if self.facts is not None:
                self._listener.said(self, line)

    def _why(self) -> str:
        """The reason for the end of the connection, by the command's own output if it had any."""
        assert self._link is not None
        words = "; ".join(self._tail.lines()[-5:])
        if self.facts is None and self._status is not None:
            return words or f"{self._command[0]} {describe_status(self._status)} and said nothing"
        reason = str(self._link.closed)
        if self._status is not None and not self._link.silent:
            reason = f"its agent has ended ({self._command[0]} {describe_status(self._status)})"
        return f"{reason}: {words}" if words else reason

    def _fail(self, text: str, number: int = 0) -> None:
        if self.failure is None and not self._finished:
            self.failure = Failure(text, number)
            if self._input is not None:
                self._input.close()
            if self._started:
                self._listener.lost(self, text)

    def _kill(self) -> None:
        if self._pid and self._status is None:
            signal_group(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
            self._guardian.remove(self._pid)
