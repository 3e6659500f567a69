"""Elastic jobs to which everything happens at random, from a seed: one thing after the other, and several at once.

    python -m tests.netns.elastic_random --minutes 30 --seed 1
    python -m tests.netns.elastic_random --minutes 2 --seed 7 --where "2 hosts"
    python -m tests.netns.elastic_random --minutes 30 --write docs/evidence.md

The hosts are network namespaces with a real sshd. The launcher, and with it the store, is on the first host, which
stays; but half of the jobs on three hosts have standbys of the store, and that host is switched off at their end. Each
job has a seed of its own, which is shown: `--seed` with it begins with that job. Half of the jobs lose a rank about
the time when the first world begins. Other events come in bursts, of one event or of up to three within two seconds, so
before the ranks have changed for the first of them. After a burst the world must become the one that all events lead
to, and go on there, with no process that does not belong to it. At least one rank that has the state is spared in each
burst, since a job whose last state is lost begins anew; with standbys a majority of the ranks.

A job counts as wrong if a rank finds a sum that is not right, if more than one step is lost in a change of ranks, if
the launcher's exit code is not 0, or if the final parameters of a rank are not those of the oracle: training in one
process, with the same number of ranks in each step (tests/collectives/elastic/oracle.py). The lines of the ranks tell
that history. All numbers are whole, so the parameters must be equal bit by bit. The state holds the history too, and
must tell the same. A hang is a world that does not come about in time. Leaks are processes, agents, sockets and shared
memory that are left on the hosts, and descriptors and threads that a rank still has when its last world is closed.

The time without progress is the longest pause between two steps of rank 0, from a burst until its world goes on.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.chaos.table import machine, write
from tests.collectives.elastic.oracle import Oracle
from tests.netns.elastic_jobs import (
    EACH,
    GO_ON_STEPS,
    NOTICE,
    WHERE,
    Job,
    Line,
    Where,
    chosen_places,
    has_socket,
    longest_pause,
)
from tests.netns.elastic_training import digest, empty_sizes
from tests.netns.network import obstacle

TRAINING = str(Path(__file__).with_name("elastic_training.py"))
JOB_SECONDS = 60.0
"""Time for the events of a job."""
SETTLE_SECONDS = 90.0
"""Time for the world that a burst leads to. Longer than the longest rest of a slot and the time to reach a host."""
MOST_AT_ONCE = 3
LONGEST_GAP = 1.0
"""Seconds between two events of a burst."""
MOST_SLOTS = 8
"""Slots of all hosts: the machine has few cores."""
MOST_HERE = 3
COOLDOWN = (0.5, 16.0)
MOST_FAULTS = 5
"""Faults of a slot in a job, whose rests are then shorter than the longest: so none is given up."""
START_SECONDS = 2.0
"""Time in which a rank is killed at the start. Half of it passes before the first world has begun."""
TITLES = {
    "at_start": "a rank gets SIGKILL at the start of the job",
    "rank_killed": "a rank gets SIGKILL",
    "spare": "a rank gets SIGKILL, a spare waits",
    "terminated": "a rank gets SIGTERM and leaves",
    "slot_added": "a slot more",
    "slot_taken": "a slot fewer",
    "host_added": "a host comes",
    "host_taken": "a host is not named any more",
    "drained": "`ronde drain` of a host",
    "preempted": "a preemption notice on a host",
    "host_killed": "a host is switched off",
    "cut_off": "a host is cut off",
    "reclaimed": "a host is switched off while its ranks leave",
    "healed": "such a host comes back",
    "launcher_lost": "the launcher's host is switched off, with `standbys=2`",
}
_REVOCABLE = frozenset({"slot_taken", "host_taken"})
"""Their victims go on if the slot is offered again before the launcher has looked."""
_FAULTS = {"at_start": 1, "rank_killed": 1, "spare": 1, "terminated": 1, "host_killed": 2, "cut_off": 2, "reclaimed": 2}
"""Faults that an event costs a slot: that of its process, or all of its host, which may also be tried in vain."""


@dataclass(frozen=True)
class Process:
    """A process of the program. `slot`: None before it has said so; `has_state`: it has gone a step."""

    host: str
    slot: int | None = None
    has_state: bool = False


@dataclass(frozen=True)
class Event:
    """Something that may happen. `pid`: the process that is signalled, in `slot`, if it is known; `victims`: the
    processes that end by it."""

    kind: str
    host: str
    pid: int = 0
    victims: frozenset[int] = frozenset()
    slot: int | None = None

    @property
    def faults(self) -> Counter[tuple[str, int]]:
        """The faults of slots that it makes."""
        slots = range(MOST_HERE) if self.slot is None else (self.slot,)
        return Counter(dict.fromkeys(((self.host, slot) for slot in slots), _FAULTS.get(self.kind, 0)))


@dataclass
class Scene:
    """The hosts of a job as they are to be, and the processes that are to end.

    first    the launcher's host, which stays
    names    all hosts
    slots    those that are offered
    most     greatest number of ranks; None for all slots
    spares   processes beyond them
    majority True if a majority of the ranks must stay in each burst
    away     hosts that are cut off or switched off
    gone     those of them that were to be left: they are offered again when they come back
    refused  hosts that are drained, or about to be preempted
    doomed   processes that are to end
    ending   those of them that cannot go on
    """

    first: str
    names: Sequence[str]
    slots: dict[str, int]
    most: int | None = None
    spares: int = 0
    majority: bool = False
    away: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)
    ending: set[int] = field(default_factory=set)
    faults: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def used(self) -> dict[str, int]:
        """The slots that may have processes."""
        unused = self.away | self.refused
        return {name: count for name, count in self.slots.items() if count and name not in unused}

    @property
    def size(self) -> int:
        """The size of the world that everything leads to."""
        total = sum(self.used.values())
        return total if self.most is None else min(total, self.most)

    @property
    def processes(self) -> int:
        """The number of processes that everything leads to."""
        total = sum(self.used.values())
        return total if self.most is None else min(total, self.most + self.spares)

    def events(self, running: Mapping[int, Process]) -> list[Event]:
        """Everything that may happen now. It spares one process that has the state, and the slots are not given up."""
        there = {pid: process for pid, process in running.items() if pid not in self.doomed}
        safe = {pid for pid, process in there.items() if process.has_state and process.host not in self.away}
        return [
            event
            for event in self._all_events(there)
            if safe - event.victims
            and (not self.majority or 2 * len(self.doomed | event.victims) < len(running))
            and all(self.faults[place] + count <= MOST_FAULTS for place, count in event.faults.items())
            and (event.kind != "spare" or self.processes > self.size)
        ]

    def _all_events(self, there: Mapping[int, Process]) -> Iterator[Event]:
        room = MOST_SLOTS - sum(self.slots.values())
        for pid, process in there.items():
            if process.host in self.used:
                for kind in ("rank_killed", "spare", "terminated") if process.has_state else ("rank_killed",):
                    yield Event(kind, process.host, pid, frozenset([pid]), process.slot)
        for name in self.names:
            count = self.used.get(name, 0)
            if count and room and count < MOST_HERE:
                yield Event("slot_added", name)
            if count > 1:
                gone = [pid for pid, process in there.items() if process.host == name and process.slot != 0]
                lost = [pid for pid in gone if (slot := there[pid].slot) is None or slot >= count - 1]
                yield Event("slot_taken", name, 0, frozenset(lost))
            if not self.slots.get(name) and name not in self.away and room >= EACH:
                yield Event("host_added", name)
            if count and name != self.first:
                here = frozenset(pid for pid, process in there.items() if process.host == name)
                for kind in ("host_taken", "drained", "preempted", "host_killed", "cut_off", "reclaimed"):
                    yield Event(kind, name, 0, here)

    def note(self, event: Event) -> None:
        """It happens."""
        self.doomed |= event.victims
        self.ending |= event.victims if event.kind not in _REVOCABLE else frozenset()
        self.faults += event.faults
        match event.kind:
            case "slot_added":
                self.slots[event.host] += 1
            case "slot_taken":
                self.slots[event.host] -= 1
            case "host_added":
                self.slots[event.host] = EACH
            case "host_taken":
                self.slots[event.host] = 0
            case "drained" | "preempted":
                self.refused.add(event.host)
            case "host_killed" | "cut_off":
                self.away.add(event.host)
            case "reclaimed":
                self.slots[event.host] = 0
                self.away.add(event.host)
                self.gone.add(event.host)

    def settled(self) -> None:
        """Everything has come into effect."""
        self.doomed.clear()
        self.ending.clear()

    def choose(self, chance: random.Random, running: Mapping[int, Process]) -> Event | None:
        """One of the events that may happen, each kind as probable as the others; None if there is none."""
        events = self.events(running)
        kinds = sorted({event.kind for event in events})
        if not kinds:
            return None
        kind = chance.choice(kinds)
        return chance.choice([event for event in events if event.kind == kind])


@dataclass
class Row:
    """The results of a kind of event. `pauses`: times without progress of those that happened alone, in seconds."""

    alone: int = 0
    together: int = 0
    pauses: list[float] = field(default_factory=list)


@dataclass
class Place:
    """The results of the jobs of a place."""

    jobs: int = 0
    events: int = 0
    changes: int = 0
    steps: int = 0
    lost: int = 0
    wrong: int = 0
    hangs: int = 0
    leaks: int = 0

    def line(self) -> str:
        """All counts, in one line."""
        return ", ".join(f"{count} {name}" for name, count in vars(self).items())


@dataclass
class Tally:
    """The results of all jobs."""

    rows: dict[str, Row] = field(default_factory=lambda: defaultdict(Row))
    places: dict[str, Place] = field(default_factory=lambda: defaultdict(Place))
    several: list[float] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Wrong results, hangs and leaks."""
        return sum(place.wrong + place.hangs + place.leaks for place in self.places.values())

    def add(self, kinds: Sequence[str], pause: float) -> None:
        """Count a burst."""
        for kind in kinds:
            self.rows[kind].alone += len(kinds) == 1
            self.rows[kind].together += len(kinds) > 1
        (self.several if len(kinds) > 1 else self.rows[kinds[0]].pauses).append(pause)

    def table(self) -> str:
        """Markdown: a table of events, and one of places."""
        lines = [["event", "alone", "with others", "without progress: median", "worst"], ["---", *["--:"] * 4]]
        for kind, title in TITLES.items():
            if kind in self.rows:
                row = self.rows[kind]
                lines.append([title, str(row.alone), str(row.together), *_times(row.pauses)])
        if self.several:
            lines.append(["2 or 3 of them at once", "", str(len(self.several)), *_times(self.several)])
        heads = ["", "jobs", "events", "changes of ranks", "steps", "steps lost", "wrong", "hangs", "leaks"]
        places = [heads, ["---", *["--:"] * (len(heads) - 1)]]
        places += [[name, *(f"{count:,}" for count in vars(place).values())] for name, place in self.places.items()]
        return f"{_grid(lines)}\n\n{_grid(places)}"


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    return (f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s") if seconds else ("-", "-")


def _grid(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Course:
    """A job, and the events that happen to it.

    outlasts  True if it has standbys, and its launcher is lost at the end

    faults  lines about everything that is wrong, by its kind: wrong, hang, leak
    story   a line for each event, with the seconds since the beginning
    """

    def __init__(self, job: Job, spares: int, chance: random.Random, tally: Tally, *, outlasts: bool) -> None:
        most = job.size if spares else None
        names = list(job.cluster.hosts) if job.where.hosts > 1 else job.names  # one host is to stay the only one
        self.scene = Scene(job.names[0], names, dict(job.slots), most, spares, majority=outlasts)
        self.faults: list[tuple[str, str]] = []
        self.story: list[str] = []
        self._job = job
        self._chance = chance
        self._tally = tally
        self._place = tally.places[job.where.name]
        self._begun = time.monotonic()

    def note_start(self, host: str) -> None:
        """A rank of a host was killed at the start."""
        self.scene.note(Event("at_start", host))
        self._tell("at_start", host)
        self._tally.rows["at_start"].alone += 1
        self._place.events += 1

    def run(self, until: float) -> None:
        """Let bursts happen, then end the job and see what came of it."""
        job = self._job
        try:
            self._settle(self._begun)
            while time.monotonic() < until:
                self._burst()
                self._restore()
            if self.scene.majority:
                self._lose_launcher()
            if code := job.stop():
                self.faults.append(("wrong", f"exit code {code}"))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            self.faults.append(("hang", str(error)))
            job.kill_all()
        lines = job.lines()
        hung = bool(self.faults)
        self.faults += [("wrong", text) for text in judged(lines, ended=not hung)]
        kept = [f"process {line.pid}: {' '.join(line.words)}" for line in lines if line.words[0] == "open"]
        self.faults += [("leak", text) for text in [*kept, *([] if hung else job.leaks())]]
        self._count(lines)

    def _count(self, lines: Sequence[Line]) -> None:
        place = self._place
        place.jobs += 1
        place.changes += len(worlds(lines)) - 1
        place.steps += len(history(lines))
        place.lost += sum(losses(lines))
        kinds = [kind for kind, _ in self.faults]
        place.wrong += kinds.count("wrong")
        place.hangs += kinds.count("hang")
        place.leaks += kinds.count("leak")

    def _burst(self) -> None:
        begun = time.monotonic()
        count = self._chance.choice((1, 1, *range(2, MOST_AT_ONCE + 1)))
        kinds: list[str] = []
        for place in range(count):
            event = self.scene.choose(self._chance, self._running())
            if event is None:
                break
            if event.kind == "spare" and not kinds:
                self._await_spares()
            self.scene.note(event)
            self._do(event)
            kinds.append(event.kind)
            if place < count - 1:
                time.sleep(self._chance.choice((0.0, self._chance.uniform(0.0, LONGEST_GAP))))
        if kinds:
            self._close(kinds, begun)

    def _restore(self) -> None:
        """Bring hosts back that are away, and give up those that are refused, so that they can come again."""
        scene, job = self.scene, self._job
        if scene.away:
            begun = time.monotonic()
            self._tell("healed", ", ".join(sorted(scene.away)))
            job.heal()
            scene.away.clear()
            for name in scene.gone:  # the events meanwhile may have taken its slots
                room = MOST_SLOTS - sum(scene.slots.values())
                scene.slots[name] = min(EACH, room)
            scene.gone.clear()
            job.offer(scene.slots)
            self._close(["healed"], begun)
        if scene.refused:
            for name in scene.refused:
                scene.slots[name] = 0
                job.cluster.hosts[name].run(f"rm -f {NOTICE}")
            job.offer(scene.slots)
            scene.refused.clear()
            job.await_look()
            self._settle(time.monotonic())

    def _lose_launcher(self) -> None:
        """Switch its host off, with a majority of the ranks on the others."""
        scene, job = self.scene, self._job
        scene.slots.update(dict.fromkeys(scene.names, 0) | dict.fromkeys(job.names, EACH))
        job.offer(scene.slots)
        job.await_look()
        self._settle(time.monotonic())
        begun = time.monotonic()
        self._tell("launcher_lost", scene.first)
        job.kill_host(scene.first)
        scene.away.add(scene.first)
        self._close(["launcher_lost"], begun)

    def _close(self, kinds: Sequence[str], begun: float) -> None:
        """See a burst to its end, and count it."""
        self._settle(begun)
        pause = longest_pause(self._job.lines(), begun)
        self.story.append(
            f"{'':8}  {time.monotonic() - begun:.1f} s until all had settled, {pause:.2f} s without a step"
        )
        self._place.events += len(kinds)
        self._tally.add(kinds, pause)

    def _do(self, event: Event) -> None:
        job = self._job
        self._tell(event.kind, f"{event.host}{f', process {event.pid}' if event.pid else ''}")
        match event.kind:
            case "rank_killed" | "spare":
                os.kill(event.pid, signal.SIGKILL)
            case "terminated":
                os.kill(event.pid, signal.SIGTERM)
            case "drained":
                job.drain(event.host)
            case "preempted":
                job.notice(event.host)
            case "host_killed":
                job.kill_host(event.host)
            case "cut_off":
                job.network.drop(event.host)
            case "reclaimed":
                job.offer(self.scene.slots)
                job.await_look()
                time.sleep(self._chance.choice((0.0, 0.1, self._chance.uniform(0.0, LONGEST_GAP))))
                job.kill_host(event.host)
            case _:
                job.offer(self.scene.slots)

    def _tell(self, kind: str, about: str) -> None:
        self.story.append(f"{time.monotonic() - self._begun:6.1f} s  {kind}: {about}")

    def _running(self) -> dict[int, Process]:
        """The processes of the program, but on hosts that are away."""
        lines = self._job.lines()
        slots = {line.pid: int(line.words[1]) for line in lines if line.words[0] == "started"}
        trained = {line.pid for line in lines if line.words[0] == "step"}
        return {
            pid: Process(host, slots.get(pid), pid in trained)
            for pid, host in self._job.ranks.items()
            if host not in self.scene.away
        }

    def _await_spares(self) -> None:
        job, scene = self._job, self.scene
        job.await_true(
            lambda: len(there := self._running()) == scene.processes and all(map(has_socket, there)),
            lambda: "no spare has come",
        )

    def _settle(self, begun: float) -> None:
        """Wait until the world is that which everything leads to, and goes on. Raises TimeoutError."""
        job, scene = self._job, self.scene
        since: float | None = None
        trouble = ""

        def settled() -> bool:
            nonlocal since, trouble
            trouble = self._unsettled()
            if trouble:
                since = None
                return False
            since = time.monotonic() if since is None else since
            sizes = [line.numbers[1] for line in job.lines(since) if line.words[0] == "step" and not line.numbers[0]]
            last = sizes[-GO_ON_STEPS:]
            trouble = f"a world of {scene.size} ranks does not go on; last sizes: {last}"
            return last == [scene.size] * GO_ON_STEPS

        job.await_true(settled, lambda: f"{trouble}; {time.monotonic() - begun:.0f} s after the event", SETTLE_SECONDS)
        scene.settled()

    def _unsettled(self) -> str:
        """The difference from the world that everything leads to; '' if all is."""
        scene, left = self.scene, self._job.left
        for pid, process in left.items():
            if process.host in scene.away:
                continue
            if pid in scene.ending:
                return f"process {pid} on {process.host} has not ended"
            if process.host not in scene.used and TRAINING in process.words:
                return f"process {pid} on {process.host} is left there"
            if process.host not in scene.used and "collectives.launch.agent" in process.words:
                return f"the agent on {process.host} is left there"
        running = self._running()
        for pid, process in running.items():
            if process.slot is not None and process.slot >= scene.used.get(process.host, 0):
                return f"process {pid} on {process.host} has slot {process.slot}, which is not offered any more"
        count = len(running)
        return "" if count == scene.processes else f"there are {count} processes, not {scene.processes}"


def worlds(lines: Iterable[Line]) -> list[Line]:
    """The worlds, by the words of their rank 0."""
    return [line for line in lines if line.words[0] == "world" and line.numbers[0] == 0]


def history(lines: Iterable[Line]) -> list[int]:
    """The size of the world in each step. A step that was computed again counts as it was the last time. Raises
    ValueError if a step is missing."""
    sizes = {line.numbers[2]: line.numbers[1] for line in lines if line.words[0] == "step"}
    if sorted(sizes) != list(range(1, len(sizes) + 1)):
        raise ValueError("the lines do not tell all steps")
    return [sizes[step] for step in sorted(sizes)]


def losses(lines: Iterable[Line]) -> list[int]:
    """The number of steps that each world computed again."""
    found, furthest = [], 0
    for line in lines:
        if line.words[0] == "world" and line.numbers[0] == 0:
            found.append(max(0, furthest - line.numbers[2]))
            furthest = line.numbers[2]
        elif line.words[0] == "step":
            furthest = max(furthest, line.numbers[2])
    return found


def judged(lines: Sequence[Line], *, ended: bool) -> list[str]:
    """The faults in the results of a job; `ended`: it was stopped, and its ranks have ended."""
    found = [" ".join(line.words) for line in lines if line.words[0] == "wrong"]
    found += [f"{count} steps were lost in a change of ranks" for count in losses(lines) if count > 1]
    if not ended:
        return found
    sizes = history(lines)
    weights = ",".join(map(str, Oracle().train(sizes).weights))
    told = empty_sizes()
    told[: len(sizes)] = sizes
    right = [str(len(sizes)), weights, digest(told)]
    done = [line for line in lines if line.words[0] == "done"]
    found += [f"rank ended with {line.words[1:]}, the oracle with {right}" for line in done if line.words[1:] != right]
    last = [line for line in lines if line.words[0] == "step"][-1:]
    if any(len(done) != line.numbers[1] for line in last):
        found.append(f"{len(done)} of {last[0].numbers[1]} ranks have come to the end")
    return found


def run_job(where: Where, seed: int, seconds: float, tally: Tally) -> Course:
    """Run a job to which things happen for some seconds."""
    chance = random.Random(seed)
    outlasts = where.hosts > 2 and bool(chance.randrange(2))
    spares = 0 if outlasts else chance.randrange(2)
    options = ["--blacklist-cooldown-range", *map(str, COOLDOWN), "--preemption-file", NOTICE]
    options += ["--max-np", str(EACH * where.hosts), "--spares", "1"] if spares else []
    limit = seconds + 3 * SETTLE_SECONDS
    standbys = 2 if outlasts else 0
    lost: list[str] = []

    def lose_one(job: Job) -> None:
        """Kill a rank before the first world has begun, or soon after."""
        if chance.randrange(2):
            job.await_true(lambda: len(job.ranks) >= job.size, lambda: "the first ranks were not started")
            time.sleep(chance.uniform(0.0, START_SECONDS))
            pid, host = chance.choice(sorted(job.ranks.items()))
            os.kill(pid, signal.SIGKILL)
            lost.append(host)

    with Job(
        where, spares=spares, options=options, program=TRAINING, limit=limit, standbys=standbys, at_start=lose_one
    ) as job:
        course = Course(job, spares, chance, tally, outlasts=outlasts)
        for host in lost:
            course.note_start(host)
        course.run(time.monotonic() + seconds)
        if course.faults:
            course.story += ["", *job.words().splitlines()[-60:]]
    return course


def main(arguments: Sequence[str]) -> int:
    """0 if everything came out as it must, 1 if not, 2 if there can be no hosts here."""
    head, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.netns.elastic_random",
        description=head,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    parser.add_argument("--seed", type=int, default=None, help="of the first job (default: a new one, which is shown)")
    parser.add_argument("--where", action="append", choices=[where.name for where in WHERE], help="only there")
    parser.add_argument("--story", action="store_true", help="show the events of jobs without faults too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers in this file")
    options = parser.parse_args(arguments)
    reason = obstacle()
    if reason is not None:
        print(reason)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    seed = first = random.randrange(10**6) if options.seed is None else options.seed
    tally = Tally()
    until = time.monotonic() + 60 * options.minutes
    places = cycle(chosen_places(options.where))
    while (remaining := until - time.monotonic()) > 0:
        where = next(places)
        course = run_job(where, seed, min(JOB_SECONDS, remaining), tally)
        place = tally.places[where.name]
        print(
            f"{where.name}, seed {seed}: {place.line()}; {max(0.0, until - time.monotonic()) / 60:.1f} min left",
            flush=True,
        )
        for kind, text in course.faults:
            print(f"{kind.upper()}: {text}", flush=True)
        if course.faults or options.story:
            print("".join(f"    {line}\n" for line in course.story), flush=True)
        seed += 1
    text = f"{tally.table()}\n\nWrong results, hangs and leaks: {tally.faults}."
    print(f"\n{text}")
    if options.write is not None:
        command = f"python -m tests.netns.elastic_random --minutes {options.minutes:g} --seed {first}"
        write(options.write, f"`{command}`; {machine()}\n\n{text}", "elastic-random", fence="")
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
