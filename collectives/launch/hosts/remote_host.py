"""A host on which an agent runs the ranks, at the other end of a connection."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from collectives.launch.hosts.connection import WINDOW, Connection, Link, Message
from collectives.launch.hosts.host import Facts, Failure, Host, Listener, Start
from collectives.launch.hosts.standard_input import InputSender
from collectives.launch.processes import STDERR, STDOUT
from collectives.launch.store_keeper import REACH_SECONDS, Question

GONE_SECONDS: Final = 1.0
"""Time from the end of the messages to that of the connection, which tells why."""

FINISH_SECONDS: Final = 3.0
"""Time for an agent to end; later the connection is cut."""


class RemoteHost(Host):
    """An agent runs the ranks.

    serving   URL of the store and the address for torch, None until the agent serves it

    limit     seconds of silence after which the host counts as lost
    grace     seconds that the agent gives its ranks if it must end them on its own
    stdin     descriptor whose data rank 0 gets if it is there
    lasting   let the agent keep its ranks when it hears nothing more of this launcher
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        selector: selectors.BaseSelector,
        listener: Listener,
        *,
        limit: float,
        grace: float,
        stdin: int = 0,
        lasting: bool = False,
    ) -> None:
        super().__init__(name)
        self.serving: tuple[str, tuple[str, int]] | None = None
        self._connection = connection
        self._selector = selector
        self._listener = listener
        self._limit = limit
        self._grace = grace
        self._stdin = stdin
        self._lasting = lasting
        self._link: Link | None = None
        self._ends_at = float("inf")  # when messages and connection must have ended
        self._to_start: set[int] = set()
        self._started = False
        self._finished = False
        self._gone = True
        self._drained = True
        self._wanted = {STDOUT: True, STDERR: True}
        self._owed = {STDOUT: 0, STDERR: 0}
        self._input: InputSender | None = None
        self._tell: Callable[[str], None] = lambda _: None

    # Before the ranks run

    def open(self) -> None:
        marker = secrets.token_hex(16).encode()
        descriptors = self._connection.open()
        self._link = Link(self._selector, descriptors, self._receive, self._limit, marker)
        self._link.watched = False  # its start takes time: the caller has a deadline
        self._link.send_bytes(self._connection.preamble)
        self._link.send("open", marker, self._limit, self._grace, self._lasting)

    @property
    def words(self) -> str:
        if self.facts is not None or self._link is None:
            return ""
        return self._connection.words or _printable(self._link.skipped)

    def serve(self, secret: bytes, interface: str, hints: Sequence[str]) -> None:
        """Let the agent serve the store; see StoreKeeper.serve."""
        self._send("serve", self._shown(secret), interface, list(hints))

    def start(self, start: Start) -> None:
        self._started = True
        self._gone = self._drained = False
        self._to_start |= set(start.ranks)
        self.running = False
        if self._link is not None and not self._link.watched:
            self._link.watch(REACH_SECONDS)
        command = [os.fsencode(word) for word in start.command]
        secret = self._shown(start.secret)
        self._send("start", asdict(start) | {"command": command, "ranks": list(start.ranks), "secret": secret})
        if 0 in start.ranks:
            self._input = InputSender(self._selector, partial(self._send, "input"), self._stdin)

    # While they run

    def signal_groups(self, number: signal.Signals) -> None:
        self._send("signal", int(number), True)

    def signal_rank(self, rank: int, number: signal.Signals) -> None:
        self._send("signal rank", rank, int(number))

    def watch_preemption(self, notice: str, seconds: float, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._send("watch preemption", notice, seconds)

    def signal_ranks(self, number: signal.Signals) -> None:
        self._send("signal", int(number), False)

    def want_output(self, stream: int, wanted: bool) -> None:
        """Give the agent credit for more output, or let it wait."""
        self._wanted[stream] = wanted
        if wanted:
            self._give_credit(stream)

    def ask(self, question: Question, ranks: Sequence[int]) -> None:
        """Ask the store that the agent serves."""
        self._send("ask", question, list(ranks))

    def announce_end(self, rank: int) -> None:
        """Tell the ranks that wait in the agent's store for a rank that its process has ended."""
        self._send("announce end", rank)

    def give_up(self) -> None:
        self._send("give up")
        self._gone = self._drained = True

    def on_child_exit(self) -> None:
        self._connection.on_child_exit()

    def beat(self) -> None:
        if self._link is not None:
            self._link.beat()

    def tick(self) -> None:
        """Notice the end of the connection or silence; cut a connection that does not end."""
        if self._link is None:
            return
        self._link.tick()
        now = time.monotonic()
        ended, closed = self._connection.ended, self._link.closed is not None
        if (ended or closed) and self._ends_at == float("inf"):
            self._ends_at = now if self._link.silent else now + GONE_SECONDS
        if now >= self._ends_at:  # a child of a command may hold the pipes, or the command not notice their end
            self._link.close("the connection has ended")
            self._connection.kill()
        if self._connection.ended and self._link.closed is not None:
            self._fail(Failure(self._why(), 0 if self._started else self._connection.errno, lost=self._started))

    @property
    def wake_at(self) -> float:
        if self._link is None or (self._connection.ended and self._link.closed is not None):
            return float("inf")
        return min(self._link.wake_at, self._ends_at)

    @property
    def gone(self) -> bool:
        return self._gone or self.failure is not None

    @property
    def drained_at(self) -> float:
        """0 once all output has come or none will come any more, otherwise infinite."""
        return 0.0 if self._drained or self.failure is not None else float("inf")

    # The end

    def finish(self, code: int) -> None:
        """Let the agent end; cut the connection if it does not in time."""
        if self._link is not None:
            self._finished = True
            self._send("finish", code)
            patience = FINISH_SECONDS if self.facts is not None else 0.0  # who has not come needs no time to go
            self._ends_at = min(self._ends_at, time.monotonic() + patience)

    @property
    def closed(self) -> bool:
        """True once the connection has ended."""
        return self._link is None or self._connection.ended

    def close(self) -> None:
        if self._link is not None:
            self._link.close("closed")
            self._link = None
        if self._input is not None:
            self._input.close()
        self._connection.close()

    # What comes from the agent

    def _receive(self, message: Message) -> None:
        assert self._link is not None
        match message:
            case ["hello", dict(facts), *_]:
                self.facts = Facts.told(facts)
                self._connection.listen(partial(self._listener.stderr_line, self))
            case ["serving", str(url), [str(host), int(port)]]:
                self.serving = url, (host, port)
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
                self._to_start.discard(rank)
                self.running = not self._to_start
                if self.failure is None:  # otherwise its ranks are lost with it
                    self._listener.ended(rank, status, last_signal)
            case ["taken", int(count)] if self._input is not None:
                self._input.taken(count)
            case ["preempted", str(why)]:
                self._tell(why)
            case ["gone"]:
                self._gone = True
            case ["drained"]:
                self._drained = True
            case ["answer", "culprit" | "left out" as question, int(value)]:
                self._listener.answered(question, value)
            case ["failed", str(text), int(number)]:
                self._fail(Failure(text, number))
            case ["ending", str(why)]:
                self._fail(Failure(why, lost=self._started))
            case _:
                self._link.close(f"the agent sent an unknown message ({message[0]!r:.40}): another version of Ronde?")

    def _shown(self, secret: bytes) -> bytes:
        """The secret, if the agent needs to be told."""
        return b"" if self._connection.other_end_has_secret else secret

    def _send(self, *message: object) -> None:
        if self._link is not None:
            self._link.send(*message)

    def _give_credit(self, stream: int) -> None:
        if self._owed[stream]:
            self._send("credit", stream, self._owed[stream])
            self._owed[stream] = 0

    def _why(self) -> str:
        """The reason for which the connection ended."""
        assert self._link is not None
        end, words = self._connection.end, self._connection.words
        if self.facts is None:
            return self.words or f"{end or self._link.closed} and said nothing"
        reason = f"its agent has ended ({end})" if end and not self._link.silent else str(self._link.closed)
        return f"{reason}: {words}" if words else reason

    def _fail(self, failure: Failure) -> None:
        if self.failure is None and not self._finished:
            self.failure = failure
            if self._input is not None:
                self._input.close()


def _printable(data: bytes) -> str:
    """The last lines of what a login printed, for a message."""
    lines = data.decode(errors="replace").split("\n")
    texts = ["".join(character for character in line if character.isprintable()).strip() for line in lines]
    return "; ".join([text for text in texts if text][-3:])
