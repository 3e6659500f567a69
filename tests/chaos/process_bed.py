"""Runs cases on processes of this machine, over `shm`, `tcp`, or `auto` on two pretended hosts.

Starting processes is slow, so survivors go on to the next case. When too few are left they leave their world and join
a new one, with fresh processes beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from tests.chaos.case import Case
from tests.chaos.faults import HEARTBEAT, Victim
from tests.chaos.rank import Begun, Close, Closed, Open, Opened, Order, Play, Sign, Struck, moment, serve
from tests.chaos.survivor import Told
from tests.chaos.verdict import Event, Finding, Outcome, judge
from transports.auth import new_secret
from transports.rendezvous.server import TcpStoreServer
from transports.shm.segments import PREFIX, default_directory

T = TypeVar("T")

BOUND: Final = 25.0
"""Seconds after which a case hangs."""
PAUSE: Final = 0.2
"""Seconds for which the fault `pause` stops a process."""
AGAIN: Final = 1.0
"""Seconds after which an interrupt that had no effect is sent again: Python drops one that hits a finalizer."""


class Ended(Exception):
    """The process of a rank has ended."""


class Rank:
    """A process that obeys orders, seen from outside."""

    def __init__(self, context: BaseContext, directory: str) -> None:
        self._directory = directory
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        with theirs:
            self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=serve, args=(theirs, directory), daemon=True
            )
            self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def order(self, order: Order) -> None:
        """Give an order."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will tell
            self._pipe.send(order)

    def hear(self, kind: type[T], deadline: float) -> T | None:
        """The next message of that kind, those before it are dropped; None if there is none by the deadline. Raises
        Ended if the process has ended without it."""
        while self._pipe.poll(max(0.0, deadline - time.monotonic())):
            try:
                message = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                raise Ended(f"process {self.pid} ended, exit code {self.process.exitcode}") from None
            if isinstance(message, kind):
                return message
        return None

    def speaks(self, within: float) -> bool:
        """True if there is something to hear, or it has ended, within so many seconds."""
        return self._pipe.poll(within)

    def signal(self, number: int) -> float:
        """Send the process a signal; the moment."""
        now = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return now

    def stacks(self) -> str:
        """The stacks of its threads, for diagnosis."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGUSR1)
        time.sleep(0.3)  # nothing tells when the stacks are written
        with contextlib.suppress(OSError):
            return Path(self._directory, f"stack-{self.pid}").read_text()
        return "no stacks"

    def end(self, patience: float = 0.0) -> None:
        """End the process, if it does not end by itself within `patience` seconds."""
        self.process.join(patience)
        self.signal(signal.SIGKILL)
        self.process.join()
        self.process.close()
        self._pipe.close()


class ProcessBed:
    """Worlds of processes, one at a time. A context; nothing is left when it ends, but for the server that forks.

    settings  of the ranks, before those of the bed
    first     what each new process is ordered before anything else
    patience  as of `judge`
    start     how processes are started: "forkserver" is quick, "spawn" leaves no server behind
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        patience: float = 0.0,
        first: Sequence[Order] = (),
        start: Literal["forkserver", "spawn"] = "forkserver",
    ) -> None:
        self._settings = dict(settings or {})
        self._patience = patience
        self._first = tuple(first)
        self._context = multiprocessing.get_context(start)
        self._context.set_forkserver_preload(["tests.chaos.rank"])
        self._resources = contextlib.ExitStack()
        self.transport = ""
        self._store = contextlib.ExitStack()
        self.world: list[Rank] = []
        """The processes, by rank."""

    def __enter__(self) -> ProcessBed:
        directory = tempfile.mkdtemp(prefix="chaos-ronde-", dir=default_directory())
        self._resources.callback(shutil.rmtree, directory)
        self._directory = directory
        return self

    def __exit__(self, *error: object) -> None:
        with self._resources:
            self.discard()

    def run(self, case: Case) -> Outcome:
        """Run a case and judge it. The ranks of the case before take part if they are as many and on its transport."""
        assert case.bed == "processes"
        case = dataclasses.replace(case, patience=self._patience)
        found = self._prepare(case)
        if not self.world:
            return Outcome(case, False, 0, 0, None, None, tuple(found))
        deadline = time.monotonic() + BOUND
        victim = self.world[case.victim]
        tales: dict[int, Told | None] = dict.fromkeys(range(case.size))
        event = None
        for rank in self.world:
            rank.order(Play(case))
        with contextlib.suppress(Ended):  # who has ended will be missed below
            for rank in self.world:
                rank.hear(Begun, deadline)
            event = self._strike(case, victim, deadline)
        for place in case.survivors:
            try:
                tales[place] = self.world[place].hear(Told, deadline)
            except Ended as error:
                tales[place] = Told(wrong=str(error))
        if not case.fault.harmless:
            tales[case.victim] = self._dismiss(case, victim, deadline)
        stuck = [place for place, told in tales.items() if told is None]
        found += [Finding("hang", f"rank {place}:\n{self.world[place].stacks()}") for place in stuck]
        outcome = judge(case, event, tales, self._patience)
        found += outcome.findings
        self.world = [self.world[place] for place in case.survivors]
        if not case.fault.harmless:
            victim.end(0.0 if tales[case.victim] is None else 5.0)
        if any(finding.broken not in _HARMLESS for finding in found):
            self.discard()
        found += self._left_behind()
        return Outcome(
            case, outcome.struck, outcome.asked, outcome.named, outcome.detection, outcome.recovery, tuple(found)
        )

    def renew(self, transport: str, size: int) -> list[Finding]:
        """Make a new world, of the processes that there are and as many more as it needs."""
        found = self.part()
        while len(self.world) > size:
            self.world.pop().end()
        while len(self.world) < size:
            rank = Rank(self._context, self._directory)
            self.world.append(rank)
            for order in self._first:
                rank.order(order)
        secret = new_secret()
        server = self._store.enter_context(TcpStoreServer("127.0.0.1", secret=secret))
        self.transport = transport
        settings = {
            "transport": transport,
            "timeout": BOUND,
            "connect_timeout": BOUND,
            "heartbeat": HEARTBEAT,
            "shm": {"directory": self._directory},
            "calibrate": False,
            **self._settings,
        }
        for place, rank in enumerate(self.world):
            host = f"host {2 * place // size}" if transport == "auto" else "host"
            rank.order(Open(place, size, server.url, secret, host, settings))
        deadline = time.monotonic() + BOUND
        try:
            late = [rank for rank in self.world if rank.hear(Opened, deadline) is None]
            found += [Finding("hang", f"a rank did not come into its world:\n{rank.stacks()}") for rank in late]
        except Ended as error:
            found.append(Finding("wrong", f"a rank did not come into its world: {error}"))
        if found:
            self.discard()
        return found

    def part(self) -> list[Finding]:
        """Let all ranks leave their world, which must leave nothing behind in them."""
        found = []
        deadline = time.monotonic() + BOUND
        for rank in self.world:
            rank.order(Close())
        for rank in self.world:
            try:
                closed = rank.hear(Closed, deadline)
            except Ended as error:
                closed = Closed([str(error)])
            if closed is None:
                found.append(Finding("hang", f"a rank did not leave its world:\n{rank.stacks()}"))
            else:
                found += [Finding("leak", f"after leaving the world: {leak}") for leak in closed.leaks]
        self._store.close()
        if found:
            self.discard()
        return found + self._left_behind()

    def discard(self) -> None:
        """End all processes."""
        for rank in self.world:
            rank.end()
        self.world = []
        self._store.close()
        for path in self.segments():
            os.unlink(path)

    def _prepare(self, case: Case) -> list[Finding]:
        if (len(self.world), self.transport) == (case.size, case.transport):
            return []
        return self.renew(case.transport, case.size)

    def _strike(self, case: Case, victim: Rank, deadline: float) -> Event | None:
        """Let the fault happen, or wait until the rank says that it does."""
        who = Victim(case.victim, victim.pid)
        name = case.fault_name
        if name in _SIGNALS:
            time.sleep(moment(case))
            at = victim.signal(_SIGNALS[name])
            if name == "interrupt":
                at = self._insist(victim, at, deadline)
            if name == "pause":
                time.sleep(PAUSE)
                victim.signal(signal.SIGCONT)
                for rank in self.world:
                    rank.order(Sign())
            return Event(at, who)
        struck = victim.hear(Struck, deadline)
        return None if struck is None else Event(struck.at, who)

    def _insist(self, victim: Rank, at: float, deadline: float) -> float:
        """Interrupt until it takes effect; when that was."""
        while time.monotonic() < deadline and not victim.speaks(AGAIN):
            at = victim.signal(signal.SIGINT)
        return at

    def _dismiss(self, case: Case, victim: Rank, deadline: float) -> Told | None:
        """The victim's final report, if it can send one."""
        if case.fault_name in _DEAD:
            victim.process.join(max(0.0, deadline - time.monotonic()))
            return None if victim.process.is_alive() else Told()
        victim.signal(signal.SIGCONT)
        if case.fault_name == "freeze":
            victim.order(Sign())
        try:
            told = victim.hear(Told, deadline)
        except Ended as error:
            return Told(wrong=str(error))
        if told is not None and told.said is None and case.fault_name in _WAKING:
            told.wrong = told.wrong or "it did not notice that the others had gone on without it"
        return told

    def _left_behind(self) -> list[Finding]:
        """Segments of shared memory that have a name though nobody is joining a world."""
        return [Finding("leak", f"file {path}") for path in self.segments()]

    def segments(self) -> list[str]:
        """The files that there are in shared memory."""
        return glob.glob(os.path.join(glob.escape(self._directory), PREFIX + "*"))


_SIGNALS: Final = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "pause": signal.SIGSTOP,
    "interrupt": signal.SIGINT,
}
_HARMLESS: Final = ("late", "culprit")
"""Defects after which the survivors can still take the next case."""
_DEAD: Final = ("kill", "exit", "close")
"""Faults after which the process is no more."""
_WAKING: Final = ("stop", "freeze")
"""Faults after which it wakes up when the others have gone on without it."""
