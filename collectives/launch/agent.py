"""The agent: runs the ranks of one host for a launcher on another. A program of its own, started by `agent_commands`.

It obeys the messages on its stdin and tells on its stdout what happens. When the launcher is gone (its stdin ends, or
nothing comes for too long), or a signal asks it to end, it ends its ranks by SIGTERM, and after the grace time by
SIGKILL. When the agent itself is killed, its guardian kills the ranks.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from dataclasses import asdict
from typing import Any, Final

from collectives.launch.escalation import Escalation
from collectives.launch.host import Facts, RankListener, Start
from collectives.launch.link import Link
from collectives.launch.local_host import LocalHost
from collectives.launch.messages import STDERR, STDOUT, WINDOW, Message
from collectives.launch.processes import Guardian, adopt_orphans, fill_standard_descriptors, signals_as_bytes
from collectives.launch.reaper import Reaper
from collectives.launch.standard_input import InputReceiver
from collectives.launch.store_keeper import Question
from transports.errors import RondeError

OPEN_SECONDS: Final = 30.0
"""Time for the launcher to send its first message."""

_NEVER: Final = float("inf")


def main() -> int:
    """Run the agent; its exit code."""
    fill_standard_descriptors()
    adopt_orphans()
    commands, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # other output must not get into the messages
    os.close(null)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        reaper = stack.enter_context(contextlib.closing(Reaper()))
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        agent = Agent(selector, reaper, guardian, (commands, replies))
        stack.callback(agent.close)
        stack.enter_context(signals_as_bytes(selector, agent.on_signals))
        guardian.start()
        agent.run()
    return 0


class _Sender(RankListener):
    """Tells the launcher what happens, and keeps back output for which there is no credit."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def started(self, rank: int, pid: int) -> None:
        self._agent.link.send("started", rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._agent.link.send("output", rank, stream, data)
        self._agent.spend(stream, len(data))

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        self._agent.link.send("ended", rank, status, last_signal)

    def answered(self, question: Question, value: int | bool) -> None:
        self._agent.link.send("answer", question, value)


class Agent:
    """Obeys a launcher.

    descriptors  messages from the launcher, and those to it
    """

    def __init__(
        self, selector: selectors.BaseSelector, reaper: Reaper, guardian: Guardian, descriptors: tuple[int, int]
    ) -> None:
        self._selector = selector
        self._escalation = Escalation(0.0)
        self.link = Link(selector, descriptors, self._obey, OPEN_SECONDS)
        self._input: InputReceiver | None = None
        self._host = LocalHost("", selector, reaper, guardian, _Sender(self), variables=os.environ, stdin=0)
        self._credit = {STDOUT: WINDOW, STDERR: WINDOW}
        self._started = False
        self._told_gone = False
        self._told_drained = False
        self._finished = False
        self._alone = False

    def run(self) -> None:
        """Obey until the launcher says that the job is over, or until the ranks have ended that the agent ends."""
        while not self._finished and not (self._alone and self._host.gone):
            drained_at = self._host.drained_at if self._told_gone and not self._told_drained else _NEVER
            until = min(self.link.wake_at, self._escalation.wake_at, drained_at)
            for key, _ in self._selector.select(None if until == _NEVER else max(0.0, until - time.monotonic())):
                key.data()
            self.link.tick()
            if self.link.closed is not None:
                self._end_alone()
            self._escalation.apply(self._host)
            self._tell_progress()

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if number == signal.SIGCHLD:
                self._host.on_child_exit()
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                self._host.signal_ranks(number)
            elif not self._alone:
                self.link.send("ending", f"its agent was ended by {number.name}")
                self._end_alone()

    def spend(self, stream: int, count: int) -> None:
        """Count output that was sent."""
        self._credit[stream] -= count
        if self._credit[stream] <= 0:
            self._host.want_output(stream, False)

    def close(self) -> None:
        """Kill what is left, and release everything. Idempotent."""
        self._host.close()
        if self._input is not None:
            self._input.close()
        self.link.close("closed")

    def _end_alone(self) -> None:
        if not self._alone:
            self._alone = True
            self._escalation.begin(time.monotonic(), signal.SIGTERM)

    def _tell_progress(self) -> None:
        if self._started and not self._told_gone and self._host.gone:
            self._told_gone = True
            self.link.send("gone")
        if self._told_gone and not self._told_drained and time.monotonic() >= self._host.drained_at:
            self._told_drained = True
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
            case ["open", bytes(marker), float(limit), float(grace)]:
                self.link.limit = limit
                self._escalation = Escalation(grace)
                self.link.send_bytes(marker)
                self._host.open()
                self.link.send("hello", asdict(Facts.own(_address_here())))
            case ["serve", bytes(secret), str(interface), [*hints]]:
                self._host.serve(secret, interface, [str(hint) for hint in hints] + _address_of_launcher())
                assert self._host.serving is not None
                url, torch = self._host.serving
                self.link.send("serving", url, list(torch))
            case ["reach", str(url), bytes(secret)]:
                self._host.reach(url, secret)
                self.link.send("reached")
            case ["start", dict(values)]:
                self._start(values)
            case ["credit", int(stream), int(count)] if stream in self._credit:
                self._credit[stream] += count
                self._host.want_output(stream, self._credit[stream] > 0)
            case ["input", bytes(data)] if self._input is not None:
                self._input.put(data)
            case ["signal", int(number), bool(groups)]:
                send = self._host.signal_groups if groups else self._host.signal_ranks
                send(signal.Signals(number))
            case ["ask", "culprit" | "left out" as question, [*ranks]]:
                self._host.ask(question, [int(str(rank)) for rank in ranks])
            case ["give up"]:
                self._host.give_up()
            case ["finish"]:
                self._finished = True
            case _:
                raise RondeError(f"the agent got an unknown message ({message[0]!r:.40}): another version of Ronde?")

    def _start(self, values: dict[str, Any]) -> None:
        host, port = values["torch"]
        command = [os.fsdecode(word) for word in values["command"]]
        start = Start(**values | {"command": command, "torch": (host, port)})
        self._started = True
        if 0 in start.ranks:
            self._input = InputReceiver(self._selector, lambda count: self.link.send("taken", count))
            self._host.stdin = self._input.read_end
        self._host.start(start)
        if self._input is not None:
            self._input.release_read_end()


def _address_here() -> str:
    """The address of this host to which the launcher's ssh has connected; "" if it was another program."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _address_of_launcher() -> list[str]:
    """The address from which ssh or srun has started this process, if they say it."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[:1] if len(words) == 4 else os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "").split()


if __name__ == "__main__":
    sys.exit(main())
