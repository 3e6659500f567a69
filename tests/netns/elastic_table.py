"""Elastic jobs and what can happen to them: steps lost, and the time without progress.

    python -m tests.netns.elastic_table                                       all of it, for a few minutes
    python -m tests.netns.elastic_table --where "2 hosts" --event rank_killed  one cell
    python -m tests.netns.elastic_table --write docs/evidence.md

The hosts are network namespaces with a real sshd. The launcher, and with it the store, is on the first host. Every cell
has hosts of its own, two ranks on each, and the settings that there are by default. All ranks check the sum of every
step, and the state. After the event the job must reach the world that it leads to and go on there; then it is told to
stop, and must end with 0 on all ranks. The time without progress is the longest pause between two steps of rank 0 after
the event; a step takes 10 ms. A step is lost if some rank had completed it, and the ranks compute it again. One may be
lost where a rank ends without notice: some of the others may have completed the step which rank 0 could not.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.table import machine, write
from tests.netns.elastic_jobs import (
    EACH,
    NAMES,
    NOTICE,
    PAUSE_SECONDS,
    SECONDS,
    WHERE,
    Job,
    Where,
    has_socket,
    longest_pause,
    steps_lost,
)
from tests.netns.network import obstacle


@dataclass(frozen=True)
class Event:
    """Something that happens to a job.

    make     makes it happen
    change   the number of ranks that the world has more, or fewer, when it has come into effect
    hosts    the least number of hosts at the start for which it means something
    options  of `ronde run`
    spares   number of spares, which have slots on the last host
    standbys the setting
    may_lose the most steps that may be lost; 0 if the ranks that go know it before a step
    ends     why it ends the job; '' if the job goes on
    """

    name: str
    title: str
    make: Callable[[Job], None]
    change: int
    hosts: int = 1
    options: Sequence[str] = ()
    spares: int = 0
    standbys: int = 0
    may_lose: int = 1
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
    job.drain(job.names[-1])


def notice(job: Job) -> None:
    job.notice(job.names[-1])


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
    Event("terminated", "a rank gets SIGTERM and leaves", terminate_rank, -1, may_lose=0),
    Event("rank_added", "a rank comes: a slot more", add_rank, 1, may_lose=0),
    Event("slot_taken", "a rank leaves: a slot fewer", take_a_slot, -1, may_lose=0),
    Event("host_added", "a host comes", add_host, EACH, hosts=2, may_lose=0),
    Event("drained", "`ronde drain` of a host", drain, -EACH, hosts=2, may_lose=0),
    Event(
        "preempted",
        "a preemption notice on a host",
        notice,
        -EACH,
        hosts=2,
        options=("--preemption-file", NOTICE),
        may_lose=0,
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
    Event(
        "store_replaced",
        "likewise, with `--set standbys=2`",
        kill_first_host,
        -EACH,
        hosts=3,
        standbys=2,
    ),
)


@dataclass
class Cell:
    """The result of an event.

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
    options = [*event.options, *(["--max-np", str(EACH * where.hosts), "--spares", "1"] if event.spares else [])]
    with Job(where, spares=event.spares, options=options, standbys=event.standbys) as job:
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
        job.heal()
        lines = job.lines()
        if not event.ends:
            cell.pause, cell.lost = longest_pause(lines, begun), steps_lost(lines)
            if cell.lost > event.may_lose:
                cell.wrong.append(f"{cell.lost} steps were lost, {event.may_lose} may be")
        cell.wrong += [" ".join(line.words) for line in lines if line.words[0] == "wrong"]
        cell.wrong += [f"leak: {leak}" for leak in job.leaks()]
        cell.words = job.words()
    return cell


def changed(job: Job, begun: float, event: Event) -> float:
    """When the ranks first had another world after an event. Raises TimeoutError."""

    def worlds() -> list[float]:
        return [line.at for line in job.lines(begun) if line.words[0] == "world"]

    job.await_true(lambda: bool(worlds()), lambda: f"no other world after: {event.title}")
    return worlds()[0]


def await_spare(job: Job) -> None:
    """Wait until there is a process beyond the ranks that has reached the store."""
    job.await_true(
        lambda: len(ranks := job.ranks) > job.size and all(map(has_socket, ranks)), lambda: "no spare has come"
    )


def await_end(job: Job, begun: float, cell: Cell) -> None:
    """Wait until no process is left."""
    while job.left:
        if time.monotonic() > begun + SECONDS:
            raise TimeoutError("the job did not end")
        time.sleep(PAUSE_SECONDS)
    cell.until = time.monotonic() - begun


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
