"""The agent: runs the ranks of one host for a launcher on another. A program of its own, started by `agent_commands`.

It obeys the messages on its stdin and tells on its stdout what happens. When the launcher is gone (its stdin ends, or
nothing comes for too long), or a signal asks it to end, it ends its ranks by SIGTERM, and after the grace time by
SIGKILL. When the agent itself is killed, its guardian kills the ranks.

In a job whose store has standbys, the ranks may go on without the launcher's host. So when nothing comes from the
launcher, the agent keeps its ranks until they end by themselves, and writes their output to files.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from collectives.launch.hosts import (
    FINISH_SECONDS,
    LOST,
    WINDOW,
    Connection,
    Escalation,
    Facts,
    Here,
    Host,
    InputReceiver,
    Link,
    LocalHost,
    Message,
    RankListener,
    Start,
    address_of_launcher,
    cannot_start,
    end_sshd,
    fields_of,
    free_address_here,
    take_over_pipes,
)
from collectives.launch.processes import (
    STDERR,
    STDOUT,
    Guardian,
    Relay,
    Tail,
    adopt_orphans,
    exit_code,
    fill_standard_descriptors,
    prefix_of,
    rank_folder,
    signals_as_bytes,
)
from collectives.launch.store_keeper import StoreKeeper
from transports.errors import RondeError
from transports.moments import seconds_until

OPEN_SECONDS: Final = 30.0
"""Time for the launcher to send its first message."""

FLUSH_SECONDS: Final = 2.0
"""Time for a slow reader to take the remaining output."""

_NEVER: Final = float("inf")


def main() -> int:
    """Run the agent; its exit code."""
    fill_standard_descriptors()
    adopt_orphans()
    with _agent(take_over_pipes()) as agent:
        agent.run()
    if agent.link.silent:
        end_sshd()
    return 0


def run_for_node_0(job: OwnJob, connection: Connection) -> int:
    """Run the ranks of a node that was started by hand, for the launcher on node 0; the exit code of the job.

    Call it in the main thread of a process of its own: it takes over signals, stdout and stderr. Raises OSError.
    """
    fill_standard_descriptors()
    adopt_orphans()
    with contextlib.closing(connection), _agent(connection.open(), job) as agent:
        agent.run()
    if agent.ended_by is not None:
        sys.stderr.write(f"ronde: ended by {agent.ended_by.name}\n")
        return exit_code(-agent.ended_by)
    if agent.code is None:
        sys.stderr.write(f"ronde: node 0 was lost: {agent.trouble or agent.alone}\n")
        return LOST
    if agent.code:
        sys.stderr.write(f"ronde: the job ended with exit code {agent.code}; node 0 tells why\n")
    return agent.code


@contextlib.contextmanager
def _agent(descriptors: tuple[int, int], job: OwnJob | None = None) -> Iterator[Agent]:
    """An agent with everything that it needs, released at the end."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        agent = Agent(selector, guardian, descriptors, job)
        stack.callback(agent.close)
        stack.enter_context(signals_as_bytes(selector, agent.on_signals))
        if agent.relay is not None:
            stack.enter_context(contextlib.closing(agent.relay)).open()
        guardian.start()
        yield agent


@dataclass(frozen=True)
class OwnJob:
    """The job of a node that was started by hand: it has its own command and prints the output of its ranks itself.

    url     address of the store, as this node reaches it
    prefix  put the rank in front of every line of output; `stamped`: the time in front of that
    """

    command: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    url: str
    secret: bytes = field(repr=False)
    name: str
    prefix: bool
    stamped: bool
    output_folder: Path | None


class Agent(RankListener):
    """Obeys a launcher, and sends it the output of the ranks for which there is credit. A node that was started by hand
    prints the output, and sends the end of each rank's stderr.

    descriptors  messages from the launcher, and those to it
    job          for a node that was started by hand; None: the launcher tells the job, and gets the output
    code         the job's exit code, once the launcher has told it
    trouble      why the agent has ended the ranks on its own; '' if it has not
    alone        why the launcher is taken for lost; '' if it is not, or if the ranks are to end with it
    ended_by     the signal that asked it to
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        descriptors: tuple[int, int],
        job: OwnJob | None = None,
    ) -> None:
        self.code: int | None = None
        self.trouble = ""
        self.alone = ""
        self.ended_by: signal.Signals | None = None
        self._selector = selector
        self._job = job
        self._escalation = Escalation(0.0)
        self.link = Link(selector, descriptors, self._obey, OPEN_SECONDS)
        self._input: InputReceiver | None = None
        self.relay = None if job is None else Relay(selector, self._want_output, stamped=job.stamped)
        self._tails: dict[int, Tail] = {}
        variables = os.environ if job is None else job.variables
        self._keeper = StoreKeeper(variables)
        self._here = Here(selector, guardian, self, variables)
        self._host: Host = LocalHost("", self._here)
        self._credit = {STDOUT: WINDOW, STDERR: WINDOW}
        self._lasting = False
        self._folders: dict[int, Path] = {}  # of the ranks, for their output when the launcher is lost
        self._kept: Relay | None = None
        self._leave_seconds = 0.0  # time for ranks to leave when a signal asks the agent to end; 0: none
        self._started = False
        self._told_gone = False
        self._told_failure = False
        self._told_drained = False

    def run(self) -> None:
        """Obey until the launcher says that the job is over, or, without it, until the ranks have ended."""
        while self.code is None and not ((self.trouble or self.alone) and self._host.gone):
            self._turn()
        self._host.finish(0)
        until = time.monotonic() + FINISH_SECONDS
        while not self._host.closed and time.monotonic() < until:
            self._turn(until)
        until = time.monotonic() + FLUSH_SECONDS
        while self.relay is not None and self.relay.pending and time.monotonic() < until:
            self._turn(until)

    def _turn(self, until: float = _NEVER) -> None:
        """Handle the next events."""
        drained_at = self._host.drained_at if self._told_gone and not self._told_drained else _NEVER
        until = min(until, self.link.wake_at, self._host.wake_at, self._escalation.wake_at, drained_at)
        for key, _ in self._selector.select(seconds_until(until)):
            key.data()
        self.link.tick()
        self._host.tick()
        if self.link.closed is not None and not self.alone:
            if self.link.silent and self._lasting and self._started:
                self._go_on_alone(self.link.closed)
            else:
                self._end_alone(self.link.closed)
        if self.relay is not None:
            self.relay.update()
            if self.relay.failure is not None:
                self._end_alone(f"cannot write output: {self.relay.failure}")
        self._escalation.apply(self._host)
        self._tell_progress()

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if number == signal.SIGCHLD:
                self._host.on_child_exit()
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                self._host.signal_ranks(number)
            elif self._leave_seconds and number == signal.SIGTERM and not self.alone:
                self.link.send("preempted", "its agent got SIGTERM")
                self._escalation.begin(time.monotonic() + self._leave_seconds, signal.SIGTERM)
                self._leave_seconds = 0.0  # a second one ends the ranks at once
            elif not self.trouble:
                self.ended_by = number
                self._end_alone(f"its agent was ended by {number.name}")
            else:
                self._escalation.begin(time.monotonic(), signal.SIGKILL)

    def started(self, rank: int, pid: int) -> None:
        self.link.send("started", rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        relay = self.relay or self._kept
        if relay is not None:
            relay.feed(rank, stream, data)
        elif not self.alone:
            self.link.send("output", rank, stream, data)
            self._credit[stream] -= len(data)
            if self._credit[stream] <= 0:
                self._host.want_output(stream, False)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        self.link.send("ended", rank, status, last_signal)

    def close(self) -> None:
        """Kill what is left, and release everything. Idempotent."""
        self._host.close()
        self._keeper.close()
        if self._kept is not None:
            self._kept.close()
        if self._input is not None:
            self._input.close()
        self.link.close("closed")

    def _want_output(self, stream: int, wanted: bool) -> None:
        self._host.want_output(stream, wanted)

    def _end_alone(self, trouble: str) -> None:
        if not self.trouble:
            self.trouble = trouble
            self.link.send("ending", trouble)
            if self.link.silent and self._job is None:  # the launcher may have been stopped, and go on
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"the launcher: {trouble}\n")
            self._escalation.begin(time.monotonic(), signal.SIGTERM)

    def _go_on_alone(self, reason: str) -> None:
        """Keep the ranks. Their output goes to files in the working directory, as with --output-filename; where there
        can be no files it is lost."""
        self.alone = reason
        if self.relay is None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as made:
                kept = made.enter_context(contextlib.closing(Relay(self._selector, self._want_output)))
                kept.open()
                for rank, folder in self._folders.items():
                    kept.add(rank, b"", Tail(), folder, shown=False)
                made.pop_all()
                self._kept = kept
            self._want_output(STDOUT, True)
            self._want_output(STDERR, True)

    def _tell_progress(self) -> None:
        failure = self._host.failure
        if failure is not None and not self._told_failure:
            self._told_failure = True
            self.link.send("failed", failure.text, failure.errno)
        if self._started and not self._told_gone and self._host.gone:
            self._told_gone = True
            self.link.send("gone")
        if self._told_gone and not self._told_drained and time.monotonic() >= self._host.drained_at:
            self._told_drained = True
            for rank, tail in self._tails.items():
                self.link.send("output", rank, STDERR, "\n".join([*tail.lines(), ""]).encode())
            self.link.send("drained")

    # Messages of the launcher

    def _obey(self, message: Message) -> None:
        try:
            self._do(message)
        except (RondeError, OSError) as error:
            number = error.errno or 0 if isinstance(error, OSError) else 0
            self.link.send("failed", str(error), number)

    def _do(self, message: Message) -> None:
        match message:
            case ["open", bytes(marker), float(limit), float(grace), bool(lasting), *_]:
                self.link.limit = limit
                self._lasting = lasting
                self._escalation = Escalation(grace)
                self._here.grace = grace
                self.link.send_bytes(marker)
                self.link.send("hello", asdict(Facts.own(*free_address_here())))
            case ["serve", bytes(secret), str(interface), [*hints]]:
                others = [str(hint) for hint in hints] + address_of_launcher()
                url, torch = self._keeper.serve(secret, interface, others)
                self._here.has_store = True
                self.link.send("serving", url, list(torch))
            case ["start", dict(values)]:
                self._start(values)
            case ["credit", int(stream), int(count)] if stream in self._credit:
                if self._job is None:  # otherwise the reader of this node's output sets the pace
                    self._credit[stream] += count
                    self._host.want_output(stream, self._credit[stream] > 0)
            case ["input", bytes(data)] if self._input is not None:
                self._input.put(data)
            case ["signal", int(number), bool(groups)]:
                send = self._host.signal_groups if groups else self._host.signal_ranks
                send(signal.Signals(number))
            case ["signal rank", int(rank), int(number)]:
                self._host.signal_rank(rank, signal.Signals(number))
            case ["watch preemption", str(notice), float(seconds)]:
                self._leave_seconds = seconds
                self._host.watch_preemption(notice, seconds, partial(self.link.send, "preempted"))
            case ["ask", "culprit" | "left out" as question, [*ranks]]:
                self.link.send("answer", question, self._keeper.ask(question, [int(str(rank)) for rank in ranks]))
            case ["announce end", int(rank)]:
                self._keeper.announce_end(rank)
            case ["give up"]:
                self._host.give_up()
            case ["finish", int(code)]:
                self.code = code
            case _:
                raise RondeError(f"the agent got an unknown message ({message[0]!r:.40}): another version of Ronde?")

    def _start(self, values: dict[str, Any]) -> None:
        start = Start(**fields_of(Start, values))
        command = [os.fsdecode(word) for word in start.command]
        host, port = start.torch
        start = replace(start, command=command, torch=(host, port))
        if self._job is not None:
            start = replace(start, command=self._job.command, store=self._job.url, secret=self._job.secret)
            self._expect_output(start, self._job)
        self._started = True
        for rank in start.ranks:
            self._folders[rank] = Path(f"ronde-{start.name}") / rank_folder(rank, max(start.size, rank + 1))
        self._told_gone = self._told_drained = False
        if 0 in start.ranks:
            self._input = InputReceiver(self._selector, lambda count: self.link.send("taken", count))
            self._here.stdin = self._input.read_end
        self._host = self._host.with_room(max(start.room, len(start.ranks)))
        try:
            self._host.start(start)
        except OSError as error:
            failure = cannot_start(start.command, error)
            self.link.send("failed", failure.text, failure.errno)
        if self._input is not None:
            self._input.release_read_end()

    def _expect_output(self, start: Start, job: OwnJob) -> None:
        """Expect output to print here. Raises OSError."""
        for rank in start.ranks:
            tail = self._tails[rank] = Tail()
            prefix = prefix_of(rank, start.size, job.name) if job.prefix else b""
            folder = None if job.output_folder is None else job.output_folder / rank_folder(rank, start.size)
            if self.relay is not None:
                self.relay.add(rank, prefix, tail, folder)


if __name__ == "__main__":
    sys.exit(main())
