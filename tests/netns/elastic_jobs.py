"""Elastic jobs on hosts of network namespaces with a real sshd: their hosts, their lines, and their remains.

The launcher, and with it the store, is on the first host. The ranks write a line for each world and each step; see
elastic_rank.py and elastic_training.py.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.collectives.launch.launcher import environment
from tests.netns.cluster import Cluster
from tests.netns.network import Process

SECONDS = 60.0
"""Time for the start, for the world that an event leads to, and for the end. After it a job counts as a hang."""
LEFT_SECONDS = 15.0
"""Time for processes to end after the job."""
GO_ON_STEPS = 20
PAUSE_SECONDS = 0.05
EACH = 2
"""Ranks of a host at the start."""
ROOT = Path(__file__).resolve().parents[2]
RANK = str(Path(__file__).with_name("elastic_rank.py"))
NAMES = ("alpha", "beta", "gamma", "delta")
NOTICE = "/run/preempted"
"""The file that gives notice of preemption. /run is each host's own."""


@dataclass(frozen=True)
class Line:
    """A line of a rank. `words` are those after the time."""

    at: float
    pid: int
    words: Sequence[str]

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Rank, size and step of `world` and `step`."""
        rank, size, step = map(int, self.words[1:4])
        return rank, size, step


@dataclass(frozen=True)
class Where:
    """A place where a job runs. `hosts`: the number of hosts at the start; `transport`: a setting."""

    name: str
    hosts: int
    transport: str


WHERE = (
    Where("1 host, shm", 1, "shm"),
    Where("1 host, tcp", 1, "tcp"),
    Where("2 hosts", 2, "auto"),
    Where("3 hosts", 3, "auto"),
)


class Job:
    """A job that runs on hosts of its own: those of `where`, and one more, which may come. A context.

    spares   slots of the last host for which there is no rank at the start
    options  of `ronde run`
    program  what a rank runs, with the folder of the lines as its argument
    limit    seconds after which the launcher ends the job
    standbys the setting: with standbys the ranks may outlast the launcher
    at_start called when the launcher has been started, before the first world is awaited

    names    the hosts at the start
    size     the ranks at the start
    slots    the slots of each host, as discovery finds them
    process  the launcher
    pids     the first ranks, in their order
    """

    def __init__(
        self,
        where: Where,
        *,
        spares: int = 0,
        options: Sequence[str] = (),
        program: str = RANK,
        limit: float = 4 * SECONDS,
        standbys: int = 0,
        at_start: Callable[[Job], None] = lambda _: None,
    ) -> None:
        self.where = where
        self.names = NAMES[: where.hosts]
        self.size = EACH * where.hosts
        self.slots: dict[str, int] = {**dict.fromkeys(self.names, EACH), self.names[-1]: EACH + spares}
        self.pids: list[int] = []
        self._options = options
        self._program = program
        self._limit = limit
        self._standbys = standbys
        self._at_start = at_start
        self._resources = contextlib.ExitStack()
        self._lines: list[Line] = []
        self._read: dict[Path, int] = {}
        self._dead: set[str] = set()  # hosts that were ended, and have not come back

    def __enter__(self) -> Job:
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-elastic-")))
            self.log = self.folder / "log"
            self.log.mkdir()
            self.offer(self.slots)
            looking = self.folder / "discover"
            looking.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\necho >> {self.folder}/looks\n")
            looking.chmod(0o755)
            self.cluster = stack.enter_context(Cluster(NAMES[: self.where.hosts + 1]))
            self.network = self.cluster.network
            self._before = self.network.processes()
            stack.callback(self.kill_all)
            settings = ["--set", f"transport={self.where.transport}", "--set", f"standbys={self._standbys}"]
            settings += ["--time-limit", str(self._limit)]
            program = [sys.executable, self._program, str(self.log)]
            self.process = stack.enter_context(
                self.cluster.running(
                    self.names[0],
                    *("--min-np", "1", "--host-discovery-script", str(looking), *self._options, *settings, *program),
                    variables={"XDG_RUNTIME_DIR": str(self.folder)},
                    words=stack.enter_context(open(self.folder / "words", "wb")),
                    folder=self.folder,
                )
            )
            self._at_start(self)
            self.await_world(self.size)
            first = [line for line in self.lines() if line.words[0] == "world"]
            self.pids = [line.pid for line in sorted(first, key=lambda line: line.numbers[0])]
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def offer(self, slots: Mapping[str, int]) -> None:
        """Change what discovery finds, at once for who looks. A host without slots is not named."""
        self.slots = dict(slots)
        new = self.folder / "new"
        new.write_text("".join(f"{name}:{count}\n" for name, count in slots.items() if count))
        new.rename(self.folder / "hosts")

    def await_look(self) -> None:
        """Wait until the launcher has looked for hosts, from the beginning to the end. Raises TimeoutError."""
        looks = self.folder / "looks"
        before = looks.stat().st_size
        self.await_true(lambda: looks.stat().st_size > before + 2, lambda: "the launcher does not look for hosts")

    def drain(self, host: str) -> None:
        """`ronde drain`, on the host of the launcher. Raises CalledProcessError, TimeoutExpired."""
        subprocess.run(
            self.cluster.command(self.names[0], host, command="drain"),
            env=environment({"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.folder), "TMPDIR": str(self.folder)}),
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )

    def notice(self, host: str) -> None:
        """Give notice that a host is about to go."""
        self.cluster.hosts[host].run(f"touch {NOTICE}")

    def words(self) -> str:
        """The launcher's words so far."""
        return (self.folder / "words").read_text(errors="replace")

    def lines(self, since: float = 0.0) -> list[Line]:
        """The lines of all ranks so far, from a time on, by time."""
        for file in self.log.glob("[0-9]*"):
            with open(file, "rb") as log:
                log.seek(self._read.get(file, 0))
                for text in log:
                    if text.endswith(b"\n"):  # who writes may be within a line
                        self._read[file] = self._read.get(file, 0) + len(text)
                        at, *words = text.decode().split()
                        self._lines.append(Line(float(at), int(file.name), words))
        self._lines.sort(key=_time)
        return self._lines[bisect.bisect_left(self._lines, since, key=_time) :]

    @property
    def left(self) -> dict[int, Process]:
        """The processes on the hosts that were not there before."""
        return {pid: process for pid, process in self.network.processes().items() if pid not in self._before}

    @property
    def ranks(self) -> dict[int, str]:
        """The processes that run the program, ranks and newcomers, with their hosts."""
        return {
            pid: process.host
            for pid, process in self.left.items()
            if self._program in process.words and "-m" not in process.words
        }

    def await_true(self, done: Callable[[], bool], trouble: Callable[[], str], seconds: float = SECONDS) -> None:
        """Wait until something is so. Raises TimeoutError with `trouble`, also when the launcher has ended, with which
        the ranks end unless there are standbys."""
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= until or (self.process.poll() is not None and not self._standbys):
                raise TimeoutError(trouble())
            time.sleep(PAUSE_SECONDS)  # neither files nor hosts tell anybody that they change

    def await_world(self, size: int, since: float = 0.0) -> float:
        """Wait until a world of this size has gone some steps; when it began. Raises TimeoutError."""
        after: list[float] = []

        def goes_on() -> bool:
            lines = self.lines(since)
            after[:] = [line.at for line in lines if line.words[0] == "step" and line.numbers[:2] == (0, size)]
            return len(after) >= GO_ON_STEPS

        self.await_true(goes_on, lambda: f"no world of {size} ranks went on")
        return after[0]

    def stop(self) -> int:
        """Let the ranks end; the exit code of the launcher, or without one 0 if all ranks were done. Raises
        TimeoutExpired, TimeoutError."""
        (self.log / "stop").touch()
        if self.process.poll() is None:
            return self.process.wait(SECONDS)
        ranks = set(self.ranks)
        self.await_true(lambda: not self.left, lambda: f"processes are left: {self.left}")
        return int(ranks != {line.pid for line in self.lines() if line.words[0] == "done"})

    def leaks(self) -> list[str]:
        """Processes, sockets and shared memory that are left on the hosts some seconds after the end."""
        until = time.monotonic() + LEFT_SECONDS
        while (left := self.left) and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        self._empty_the_dead()
        found = [f"{process.name} on {process.host}" for process in left.values()]
        for name, host in self.cluster.hosts.items():
            found += [f"/dev/shm/{file} on {name}" for file in host.run("ls /dev/shm").split()]
            sockets = host.run("ss -Htanp state listening state established").splitlines()
            found += [f"socket on {name}: {' '.join(text.split())}" for text in sockets if "sshd" not in text]
        return found

    def kill_host(self, name: str) -> None:
        """End a host as a power cut does: no word leaves it, and its processes are gone."""
        self.network.drop(name)
        for pid, process in self.left.items():
            if process.host == name:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._dead.add(name)

    def heal(self) -> None:
        """Let all hosts reach each other again. One that was ended comes back with an empty memory."""
        self._empty_the_dead()
        self.network.heal()

    def _empty_the_dead(self) -> None:
        for name in self._dead:
            self.cluster.hosts[name].run("find /dev/shm -type f -delete")
        self._dead.clear()

    def kill_all(self) -> None:
        """End all processes that were not there before."""
        for pid in self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def has_socket(pid: int) -> bool:
    """True if a process has a socket: a newcomer that waits says nothing, but it has reached the store."""
    with contextlib.suppress(OSError):
        return any(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def longest_pause(lines: Sequence[Line], begun: float) -> float:
    """The longest time between two steps of rank 0 after `begun`, the first of them the last one before it."""
    steps = [line.at for line in lines if line.words[0] == "step" and line.numbers[0] == 0]
    before = [at for at in steps if at < begun][-1:]
    times = before + [at for at in steps if at >= begun]
    return max((b - a for a, b in pairwise(times)), default=0.0)


def steps_lost(lines: Sequence[Line]) -> int:
    """The steps that some rank had completed, and that a later world did not begin with."""
    lost = furthest = 0
    for line in lines:
        if line.words[0] == "world" and line.numbers[0] == 0:
            lost += max(0, furthest - line.numbers[2])
            furthest = line.numbers[2]
        elif line.words[0] == "step":
            furthest = max(furthest, line.numbers[2])
    return lost


def chosen_places(names: Sequence[str] | None) -> Iterator[Where]:
    """The places of these names; all without names."""
    return (where for where in WHERE if where.name in (names or [where.name]))


def _time(line: Line) -> float:
    return line.at
