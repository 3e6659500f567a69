"""Every launcher with two hosts of two ranks, and what can happen there: how long it takes until all is over.

    python -m tests.netns.table                                     all of it, for a quarter of an hour
    python -m tests.netns.table --launcher ssh --event rank_killed  one cell
    python -m tests.netns.table --write docs/evidence.md --json benchmarks/results/launchers.json

The hosts are network namespaces; sshd, Slurm, mpiexec and torchrun are the real ones. Every cell has hosts of its own.
The ranks are in endless allreduces, with the settings that there are by default. All is over when no process is left
on either host that was not there before the start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from collectives.launch.hosts.host import LOST
from collectives.launch.processes.processes import exit_code
from tests.chaos.table import machine, write
from tests.netns.launchers import FAR, LAUNCHERS, SIZE, Launcher, Site
from tests.netns.network import Process, obstacle
from tests.transports.launchers.real import ROOT, Launched

START_SECONDS = 90.0
OVER_SECONDS = 60.0
"""After them what is left is left."""
PAUSE_SECONDS = 0.03
FAILING_CODE = 7
LAST = SIZE - 1
"""A rank on the far host."""
RANK = f"""
import collectives as ronde, numpy as np, os, signal, socket, sys, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
world = ronde.init()
world.barrier()
os.write(1, f"ready {{world.rank}} {{os.getpid()}} {{socket.gethostname()}}\\n".encode())
while not told:
    world.allreduce(np.ones(1000))
    time.sleep(0.01)
sys.exit({FAILING_CODE})
"""


class Running:
    """A job that runs. `pids`: the process of each rank."""

    def __init__(self, launcher: Launcher, site: Site) -> None:
        self.launcher = launcher
        self.site = site
        self.pids: dict[int, int] = {}
        self.started: list[Launched] = []
        self._before = site.network.processes()

    @property
    def left(self) -> dict[int, Process]:
        """The processes on the hosts that were not there before."""
        return {pid: process for pid, process in self.site.network.processes().items() if pid not in self._before}

    def await_ranks(self) -> None:
        """Wait until all ranks have met."""
        until = time.monotonic() + START_SECONDS
        while len(self.pids) < SIZE:
            lines = [line for one in self.started for line in one.lines]
            self.pids = {int(m[1]): int(m[2]) for line in lines if (m := re.search(r"ready (\d+) (\d+) ", line))}
            assert time.monotonic() < until, f"the ranks did not meet: {self.words()}"
            time.sleep(PAUSE_SECONDS)

    def words(self) -> list[str]:
        """The output so far, stdout first."""
        return [line for kind in ("lines", "errors") for one in self.started for line in getattr(one, kind)]

    def kill(self, is_wanted: Callable[[Process], bool]) -> None:
        """SIGKILL those processes, of which there must be some."""
        found = [pid for pid, process in self.left.items() if is_wanted(process)]
        assert found, f"no such process of {self.launcher.title}: {self.left}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def over(self, named: Sequence[str], begun: float | None = None) -> Cell:
        """Wait until no process is left, which no event tells; what came of it. What is left is killed."""
        begun = time.monotonic() if begun is None else begun
        ranks = None
        while (left := self.left) and time.monotonic() < begun + OVER_SECONDS:
            if ranks is None and not left.keys() & self.pids.values():
                ranks = time.monotonic() - begun
            time.sleep(PAUSE_SECONDS)
        seconds = time.monotonic() - begun
        self.site.network.heal()
        self.kill_all()
        code = self.started[0].finish().code
        for other in self.started[1:]:
            other.finish()
        words = [line for line in self.words() if "ready" not in line]
        return Cell(
            None if left else seconds,
            ranks if left else seconds,
            None if code == -signal.SIGKILL else exit_code(code),
            not named or any(re.search(rf"\b{word}\b", "\n".join(words)) for word in self._patterns(named)),
            sorted(f"{process.name} on {process.host}" for process in left.values()),
            words[-60:],
        )

    def _patterns(self, named: Sequence[str]) -> list[str]:
        return [word.replace("PID", str(self.pids.get(LAST))) for word in named]

    def kill_all(self) -> None:
        """Kill what is left."""
        for pid in self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Event:
    """Something that happens to a job.

    make   makes it happen
    code   exit code of Ronde's own launchers, where they have one; that of others is not 0
    named  what is printed must have one of these words, so that one finds the culprit; PID stands for the process of
           rank LAST
    """

    name: str
    title: str
    make: Callable[[Running], None]
    code: int | None
    named: Sequence[str] = ()


def fail(job: Running) -> None:
    os.kill(job.pids[LAST], signal.SIGUSR1)


def interrupt(job: Running) -> None:
    """Interrupts all processes of its foreground, as a terminal does."""
    for _ in range(job.launcher.interrupts):
        job.started[0].interrupt()
        time.sleep(0.2)  # srun wants them apart


def kill_launcher(job: Running) -> None:
    job.kill(job.launcher.is_launcher)


def kill_agent(job: Running) -> None:
    job.kill(job.launcher.is_agent)


def kill_rank(job: Running) -> None:
    os.kill(job.pids[LAST], signal.SIGKILL)


def cut_off(job: Running) -> None:
    job.site.network.drop(FAR)


_RANK = (f"rank {LAST}", f"rank      : {LAST}", "PID")
EVENTS = (
    Event("fails", "a rank exits with 7", fail, FAILING_CODE, _RANK),
    Event("rank_killed", "a rank gets SIGKILL", kill_rank, 128 + signal.SIGKILL, _RANK),
    Event("interrupted", "Ctrl-C", interrupt, 128 + signal.SIGINT),
    Event("launcher_killed", "the launcher gets SIGKILL", kill_launcher, None),
    Event("agent_killed", "the agent of the other host gets SIGKILL", kill_agent, LOST, (FAR, "PID")),
    Event("cut_off", "the other host is cut off", cut_off, LOST, (FAR, "PID")),
)
RESULT = "result"
NOTES = {
    ("slurm", "cut_off"): "It waits for Slurm's controller",
    ("srun", "launcher_killed"): "Slurm lets a step go on without its srun: `scancel` ends it",
    ("srun", "agent_killed"): "srun waits for a node whose slurmstepd was killed; Ctrl-C or `scancel` ends it",
    ("srun", "cut_off"): "They wait until Slurm declares the node down (`SlurmdTimeout`)",
    ("openmpi", "agent_killed"): "mpirun says that it has lost a daemon, and may end with 0 all the same",
    ("openmpi", "cut_off"): "mpirun and its daemons wait for each other",
    ("mpich", "cut_off"): "mpiexec waits for its proxy; ssh and sshd end sooner by `ServerAliveInterval` and "
    "`ClientAliveInterval` in their configurations",
}
"""Cells in which a launcher itself leaves something behind or hides a failure, with the reasons."""


@dataclass
class Cell:
    """The result of an event under a launcher.

    seconds  until all was over; None if that did not come within OVER_SECONDS
    ranks    until the ranks had ended; None likewise
    code     exit code of the launcher, None if it was killed, or had to be
    named    True if what was printed names the culprit
    left     names of the processes that were left, with their hosts
    words    the end of what was printed
    """

    seconds: float | None
    ranks: float | None
    code: int | None
    named: bool
    left: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        seconds = "never" if self.ranks is None else f"{self.ranks:.1f} s"
        return seconds if self.code is None else f"{seconds}, {self.code}"

    @property
    def programs(self) -> str:
        """The programs that are left, each of a host once."""
        return ", ".join(sorted(set(self.left)))


def digits(launcher: Launcher) -> Cell:
    """The example on four ranks: right if it ends with 0, and the parameters have the same bits on all ranks."""
    with _started(launcher, [sys.executable, "examples/train_digits.py"]) as job:
        begun = time.monotonic()
        for one in job.started:  # before it is on its host, no process is there
            one.finish()
        return job.over([f"parameters bit-identical on {SIZE} ranks: yes"], begun)


def happen(launcher: Launcher, event: Event) -> Cell:
    """Start the ranks, let it happen, and wait until all is over."""
    with _started(launcher, [sys.executable, "-c", RANK]) as job:
        job.await_ranks()
        begun = time.monotonic()
        event.make(job)
        return job.over(event.named, begun)


def wrong(launcher: Launcher, event: Event | None, cell: Cell) -> str:
    """The part of the outcome that is not as it must be; '' if all is."""
    faults = []
    noted = event is not None and (launcher.name, event.name) in NOTES
    if cell.left and not noted:
        faults.append(f"left {', '.join(cell.left)}")
    if event is None:
        faults += [] if cell.code == 0 and cell.named else ["wrong result"]
        return "; ".join(faults)
    if event.code is not None and not noted and (cell.code != event.code if launcher.ours else not cell.code):
        faults.append(f"exit code {cell.code}")
    if not cell.named:
        faults.append("the culprit is not named")
    return "; ".join(faults)


@contextlib.contextmanager
def _started(launcher: Launcher, program: Sequence[str]) -> Iterator[Running]:
    """A job on hosts of its own."""
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(launcher.site())
        job = Running(launcher, site)
        stack.callback(job.kill_all)
        for host, command in launcher.commands(program).items():
            # A terminal's Ctrl-C is heeded also where this runs in the background of a shell, which ignores it.
            words = site.network.hosts[host].command("env", "--default-signal=INT", "-C", str(ROOT), *command)
            job.started.append(stack.enter_context(Launched(words, dict(site.variables))))
        yield job


def table(cells: Mapping[tuple[str, str], Cell]) -> str:
    """Markdown: a row for each event, a column for each launcher; notes on what launchers leave behind. The times are
    those until all is over; where a launcher leaves something, until the ranks have ended."""
    columns = [launcher for launcher in LAUNCHERS if any(name == launcher.name for name, _ in cells)]
    titles = {RESULT: "digits example, right result", **{event.name: event.title for event in EVENTS}}
    rows = [name for name in titles if any(event == name for _, event in cells)]
    notes: list[str] = []

    def text(launcher: str, event: str) -> str:
        cell = cells.get((launcher, event))
        if cell is None or (not cell.left and cell.code != 0) or (launcher, event) not in NOTES:
            return "" if cell is None else str(cell)
        notes.append(f"{f'Left: {cell.programs}. ' if cell.left else ''}{NOTES[launcher, event]}")
        return f"{cell} [{len(notes)}]"

    lines = [["", *(launcher.title for launcher in columns)], ["---"] * (len(columns) + 1)]
    lines += [[titles[event], *(text(launcher.name, event) for launcher in columns)] for event in rows]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([grid, *(f"[{number}] {note}." for number, note in enumerate(notes, 1))])


def main(arguments: Sequence[str]) -> int:
    """0 if everything came out as it must, 1 if not, 2 if there can be no hosts here."""
    head, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.netns.table",
        description=head,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [launcher.name for launcher in LAUNCHERS]
    events = [RESULT, *(event.name for event in EVENTS)]
    parser.add_argument("--launcher", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--event", action="append", choices=events, help="only this one; may be repeated")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="try each cell N times, and take the slowest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all about every cell to this file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in this file")
    options = parser.parse_args(arguments)
    reason = obstacle()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    cells: dict[tuple[str, str], Cell] = {}
    faults = 0
    for launcher in LAUNCHERS:
        if options.launcher and launcher.name not in options.launcher:
            continue
        reason = launcher.obstacle()
        if reason is not None:
            print(f"{launcher.name}: skipped: {reason}", flush=True)
            continue
        for event in (None, *EVENTS):
            name = RESULT if event is None else event.name
            if options.event and name not in options.event:
                continue
            for _ in range(options.times):
                try:
                    cell = digits(launcher) if event is None else happen(launcher, event)
                except AssertionError as error:  # it did not come to the event
                    faults += 1
                    print(f"{launcher.name}, {name}: WRONG: {error}", flush=True)
                    continue
                fault = wrong(launcher, event, cell)
                faults += bool(fault)
                said = f"; WRONG: {fault}" if fault else f"; left: {cell.programs}" if cell.left else ""
                print(f"{launcher.name}, {name}: {cell}{said}", flush=True)
                if fault:
                    print("".join(f"    {word}\n" for word in cell.words), flush=True)
                before = cells.get((launcher.name, name))
                if before is None or _slowness(cell) > _slowness(before):
                    cells[launcher.name, name] = cell
    text = table(cells)
    print(f"\nseconds until all is over, exit code\n\n{text}")
    if options.json is not None:
        found = {f"{launcher} {event}": {**asdict(cell), "words": []} for (launcher, event), cell in cells.items()}
        options.json.write_text(json.dumps({"machine": machine(), "cells": found}, indent=1) + "\n", "utf-8")
    if options.write is not None:
        write(options.write, f"{machine()}\n\n{text}", "launchers", fence="")
    return int(bool(faults))


def _slowness(cell: Cell) -> float:
    return float("inf") if cell.seconds is None else cell.seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
