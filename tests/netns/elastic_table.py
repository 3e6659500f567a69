"""Elastic jobs and what can happen to them: steps lost, and the time without progress.

    python -m tests.netns.elastic_table                                       all of it, for a few minutes
    python -m tests.netns.elastic_table --where "2 hosts" --event rank_killed  one cell
    python -m tests.netns.elastic_table --write docs/elastic-launch.md

The hosts are network namespaces with a real sshd. The launcher, and with it the store, is on the first host. Every cell
has hosts of its own, two ranks on each, and the settings that there are by default. All ranks check the sum of every
step, and the state. After the event the job must reach the world that it leads to and go on there; then it is told to
stop, and must end with 0 on all ranks. The time without progress is the longest pause between two steps of rank 0 after
the event; a step takes 10 ms. A step is lost if some rank had completed it, and the ranks compute it again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.chaos.table import machine, write
from tests.collectives.launch.launcher import environment
from tests.netns.cluster import Cluster
from tests.netns.network import Process, obstacle

SECONDS = 60.0
"""Time for the start, for the world that an event leads to, and for the end. After it a cell counts as a hang."""
GO_ON_STEPS = 20
PAUSE_SECONDS = 0.05
EACH = 2
"""Ranks of a host at the start."""
ROOT = Path(__file__).resolve().parents[2]
RANK = str(Path(__file__).with_name("elastic_rank.py"))
NAMES = ("alpha", "beta", "gamma", "delta")


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
    """Where a job runs. `hosts`: the number of hosts at the start; `transport`: a setting."""

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
    """A job that runs on hosts of its own. A context.

    process  the launcher
    pids     the first ranks, in their order
    """

    def __init__(self, where: Where, event: Event) -> None:
        self.where = where
        self.event = event
        self.names = NAMES[: where.hosts]
        self.size = EACH * where.hosts
        self._resources = contextlib.ExitStack()
        self.pids: list[int] = []

    def __enter__(self) -> Job:
        with contextlib.ExitStack() as stack:
            event = self.event
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-elastic-")))
            self.log = self.folder / "log"
            self.log.mkdir()
            self.offer({**dict.fromkeys(self.names, EACH), self.names[-1]: EACH + event.spares})
            self.cluster = stack.enter_context(Cluster(NAMES[: self.where.hosts + 1]))
            self.network = self.cluster.network
            self._before = self.network.processes()
            stack.callback(self._kill_all)
            options = [*event.options, *(["--max-np", str(self.size), "--spares", "1"] if event.spares else [])]
            settings = ["--set", f"transport={self.where.transport}", "--time-limit", str(4 * SECONDS)]
            program = [sys.executable, RANK, str(self.log)]
            self.process = stack.enter_context(
                self.cluster.running(
                    self.names[0],
                    *("--min-np", "1", "--hostfile", str(self.folder / "hosts"), *options, *settings, *program),
                    variables={"XDG_RUNTIME_DIR": str(self.folder)},
                    words=stack.enter_context(open(self.folder / "words", "wb")),
                )
            )
            self.await_world(self.size)
            first = [line for line in self.lines() if line.words[0] == "world"]
            self.pids = [line.pid for line in sorted(first, key=lambda line: line.numbers[0])]
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def offer(self, slots: dict[str, int]) -> None:
        """Change the host file, at once for who reads it."""
        new = self.folder / "new"
        new.write_text("".join(f"{name}:{count}\n" for name, count in slots.items()))
        new.rename(self.folder / "hosts")

    def words(self) -> str:
        """The launcher's words so far."""
        return (self.folder / "words").read_text(errors="replace")

    def lines(self) -> list[Line]:
        """The lines of all ranks so far, by time."""
        found = []
        for file in self.log.glob("[0-9]*"):
            for text in file.read_text().splitlines():
                at, *words = text.split()
                found.append(Line(float(at), int(file.name), words))
        return sorted(found, key=lambda line: line.at)

    @property
    def left(self) -> dict[int, Process]:
        """The processes on the hosts that were not there before."""
        return {pid: process for pid, process in self.network.processes().items() if pid not in self._before}

    def await_world(self, size: int, since: float = 0.0) -> float:
        """Wait until a world of this size has gone some steps; when it began. Raises TimeoutError."""
        until = time.monotonic() + SECONDS
        while True:
            steps = [line for line in self.lines() if line.words[0] == "step" and line.numbers[:2] == (0, size)]
            after = [line.at for line in steps if line.at >= since]
            if len(after) >= GO_ON_STEPS:
                return after[0]
            if time.monotonic() >= until or self.process.poll() is not None:
                raise TimeoutError(f"no world of {size} ranks went on")
            time.sleep(PAUSE_SECONDS)  # files tell nobody that they grow

    def stop(self) -> int:
        """Let the ranks end; the exit code of the launcher. Raises TimeoutExpired."""
        (self.log / "stop").touch()
        return self.process.wait(SECONDS)

    def leaks(self) -> list[str]:
        """Processes and shared memory that are left on the hosts some seconds after the end."""
        until = time.monotonic() + 15.0
        while (left := self.left) and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        found = [f"{process.name} on {process.host}" for process in left.values()]
        for name, host in self.cluster.hosts.items():
            found += [f"/dev/shm/{file} on {name}" for file in host.run("ls /dev/shm").split()]
        return found

    def kill_host(self, name: str) -> None:
        """End a host as a power cut does: no word leaves it, and its processes are gone."""
        self.network.drop(name)
        for pid, process in self.left.items():
            if process.host == name:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        for pid in self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Event:
    """Something that happens to a job.

    make     makes it happen
    change   the number of ranks that the world has more, or fewer, when it has come into effect
    hosts    the least number of hosts at the start for which it means something
    options  of `ronde run`
    spares   number of spares, which have slots on the last host
    ends     why it ends the job; '' if the job goes on
    """

    name: str
    title: str
    make: Callable[[Job], None]
    change: int
    hosts: int = 1
    options: Sequence[str] = ()
    spares: int = 0
    ends: str = ""


def kill_rank(job: Job) -> None:
    os.kill(job.pids[-1], signal.SIGKILL)


def terminate_rank(job: Job) -> None:
    os.kill(job.pids[-1], signal.SIGTERM)


def kill_last_host(job: Job) -> None:
    job.kill_host(job.names[-1])


def kill_first_host(job: Job) -> None:
    job.kill_host(job.names[0])


def add_rank(job: Job) -> None:
    job.offer({**dict.fromkeys(job.names, EACH), job.names[-1]: EACH + 1})


def add_host(job: Job) -> None:
    job.offer(dict.fromkeys([*job.names, NAMES[job.where.hosts]], EACH))


def take_a_slot(job: Job) -> None:
    job.offer({**dict.fromkeys(job.names, EACH), job.names[-1]: EACH - 1})


def drain(job: Job) -> None:
    command = job.cluster.command(job.names[0], job.names[-1], command="drain")
    subprocess.run(
        command,
        env=environment({"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(job.folder)}),
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )


def notice(job: Job) -> None:
    """The launcher and the agents look for the file on their own hosts: /run is each host's own."""
    job.cluster.hosts[job.names[-1]].run("touch /run/preempted")


def cut_off(job: Job) -> None:
    job.network.drop(job.names[-1])


EVENTS = (
    Event("rank_killed", "a rank gets SIGKILL", kill_rank, -1),
    Event(
        "spare",
        "a rank gets SIGKILL, a spare waits",
        kill_rank,
        0,
        spares=1,
    ),
    Event("terminated", "a rank gets SIGTERM and leaves", terminate_rank, -1),
    Event("rank_added", "a rank comes: a slot more", add_rank, 1),
    Event("slot_taken", "a rank leaves: a slot fewer", take_a_slot, -1),
    Event("host_added", "a host comes", add_host, EACH, hosts=2),
    Event("drained", "`ronde drain` of a host", drain, -EACH, hosts=2),
    Event(
        "preempted",
        "a preemption notice on a host",
        notice,
        -EACH,
        hosts=2,
        options=("--preemption-file", "/run/preempted"),
    ),
    Event("host_killed", "a host is switched off", kill_last_host, -EACH, hosts=2),
    Event("cut_off", "a host is cut off", cut_off, -EACH, hosts=2),
    Event(
        "store_killed",
        "the launcher's host is switched off",
        kill_first_host,
        0,
        hosts=2,
        ends="The store is in the launcher, and the job ends with it. Nothing is left on the other hosts",
    ),
)


@dataclass
class Cell:
    """What came of an event.

    lost    steps that were computed again
    pause   the longest time without a step after the event; None if the job ended
    until   seconds from the event to the world that it leads to, or to the end of all
    wrong   what is not as it must be
    """

    lost: int = 0
    pause: float | None = None
    until: float = 0.0
    wrong: list[str] = field(default_factory=list)
    words: str = ""

    def __str__(self) -> str:
        if self.pause is None:
            return f"ends, {self.until:.1f} s"
        return f"{self.lost}, {self.pause:.2f} s ({self.until:.1f} s)"


def happen(where: Where, event: Event) -> Cell:
    """Start a job, let it happen, and see whether the job goes on, and how it ends."""
    cell = Cell()
    with Job(where, event) as job:
        if event.spares:
            await_spare(job)
        begun = time.monotonic()
        try:
            event.make(job)
            if event.ends:
                await_end(job, begun, cell)
            else:
                cell.until = job.await_world(job.size + event.change, changed(job, begun, event)) - begun
                code = job.stop()
                if code:
                    cell.wrong.append(f"exit code {code}")
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            cell.wrong.append(f"hang: {error}")
        job.network.heal()
        lines = job.lines()
        if not event.ends:
            cell.pause, cell.lost = longest_pause(lines, begun), steps_lost(lines)
        cell.wrong += [" ".join(line.words) for line in lines if line.words[0] == "wrong"]
        cell.wrong += [f"leak: {leak}" for leak in job.leaks()]
        cell.words = job.words()
    return cell


def changed(job: Job, begun: float, event: Event) -> float:
    """When the ranks first had another world after an event. Raises TimeoutError."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        worlds = [line.at for line in job.lines() if line.words[0] == "world" and line.at > begun]
        if worlds:
            return worlds[0]
        time.sleep(PAUSE_SECONDS)
    raise TimeoutError(f"no other world after: {event.title}")


def await_spare(job: Job) -> None:
    """Wait until there is a process beyond the ranks that has reached the store. It says nothing, its sockets tell."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ours = [pid for pid, process in job.left.items() if RANK in process.words and "-m" not in process.words]
        if len(ours) > job.size and all(_has_socket(pid) for pid in ours):
            return
        time.sleep(PAUSE_SECONDS)
    raise TimeoutError("no spare has come")


def _has_socket(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def await_end(job: Job, begun: float, cell: Cell) -> None:
    """Wait until no process is left."""
    while job.left:
        if time.monotonic() > begun + SECONDS:
            raise TimeoutError("the job did not end")
        time.sleep(PAUSE_SECONDS)
    cell.until = time.monotonic() - begun


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


def cells() -> Iterator[tuple[Where, Event]]:
    """Everything that can be measured."""
    for event in EVENTS:
        for where in WHERE:
            if where.hosts >= event.hosts:
                yield where, event


def table(found: dict[tuple[str, str], Cell]) -> str:
    """Markdown: a row for each event, a column for each place; notes on the events that end the job."""
    columns = [where for where in WHERE if any(name == where.name for name, _ in found)]
    lines = [["", *(where.name for where in columns)], ["---"] * (len(columns) + 1)]
    notes = []
    for event in EVENTS:
        row = [found.get((where.name, event.name)) for where in columns]
        if any(row):
            if event.ends:
                notes.append(event.ends)
            mark = f" [{len(notes)}]" if event.ends else ""
            lines.append([event.title + mark, *("-" if cell is None else str(cell) for cell in row)])
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([grid, *(f"[{number}] {note}." for number, note in enumerate(notes, 1))])


def main(arguments: Sequence[str]) -> int:
    """0 if everything came out as it must, 1 if not, 2 if there can be no hosts here."""
    head, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.netns.elastic_table",
        description=head,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--where", action="append", choices=[where.name for where in WHERE], help="only there")
    parser.add_argument("--event", action="append", choices=[event.name for event in EVENTS], help="only this one")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in this file")
    options = parser.parse_args(arguments)
    reason = obstacle()
    if reason is not None:
        print(reason)
        return 2
    found: dict[tuple[str, str], Cell] = {}
    faults = 0
    for where, event in cells():
        if where.name in (options.where or [where.name]) and event.name in (options.event or [event.name]):
            cell = found[where.name, event.name] = happen(where, event)
            faults += bool(cell.wrong)
            print(f"{where.name}, {event.name}: {cell}{''.join(f'; WRONG: {text}' for text in cell.wrong)}", flush=True)
            if cell.wrong:
                print("".join(f"    {line}\n" for line in cell.words.splitlines()[-40:]), flush=True)
    text = f"{table(found)}\n\nWrong results, hangs, leaks and exit codes other than 0: {faults} of {len(found)} cells."
    print(f"\nsteps lost, longest time without a step (time until the new world)\n\n{text}")
    if options.write is not None:
        write(options.write, f"{machine()}\n\n{text}", "elastic", fence="")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
