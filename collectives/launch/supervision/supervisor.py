"""Runs the ranks of a job on its hosts: one thread, one selector, every wait on an event or a deadline.

A plan of `collectives.scaling` decides: the supervisor tells it what happens, and carries out its actions. What an
elastic job has beside its hosts is in `elastic_job`.

How a job ends
    every rank exits with 0          processes that ranks left behind are ended; exit code 0
    a rank fails                     the others get REPORT_SECONDS to report, then SIGTERM, `grace`, SIGKILL; exit code
                                     of the rank that failed first
      with keep_going                the job goes on until its ranks have ended or were left behind by a shrink; exit
                                     code 0 if any rank exits with 0, otherwise that of the first that failed
      in an elastic job              it is replaced; the job ends when its plan says so
    a host is lost                   its ranks have failed, with exit code LOST; its agent ends them there
    SIGINT, SIGTERM, SIGHUP          passed on to the ranks, `grace`, SIGKILL; a second one: SIGKILL; 128 + N
    time limit, output closed        SIGTERM, `grace`, SIGKILL; 124 as from timeout(1), 141 as from SIGPIPE
    the launcher is killed           the guardian kills all ranks here; agents end theirs
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from collectives import scaling
from collectives.config import Config
from collectives.launch.hosts import (
    FINISH_SECONDS,
    LOST,
    CommandConnection,
    Escalation,
    Facts,
    Failure,
    Here,
    Host,
    Hosts,
    Listener,
    LocalHost,
    RemoteHost,
    Start,
    agent_header,
    cannot_start,
    folder_here,
)
from collectives.launch.job import Job, Place, StartError, discovery_mark
from collectives.launch.processes import (
    Guardian,
    Relay,
    adopt_orphans,
    exit_code,
    fill_standard_descriptors,
    prefix_of,
    rank_folder,
    signals_as_bytes,
    torch_address,
)
from collectives.launch.store_keeper import Question, StoreKeeper
from collectives.launch.supervision.elastic import ElasticJob
from collectives.launch.supervision.summary import Rank, summarize
from transports.errors import RondeError
from transports.moments import seconds_until

LEFTOVER_SECONDS: Final = 1.0
"""Time for processes that ranks left behind to end after the last rank."""

OUTPUT_SECONDS: Final = 2.0
"""Time for a slow reader to take the remaining output after a signal ended the job."""

ANSWER_SECONDS: Final = 5.0
"""Time for the host with the store to tell which rank failed first."""

TIMED_OUT: Final = 124
_NEVER: Final = float("inf")


def supervise(job: Job) -> int:
    """Run the job and return its exit code. On return no process of the job is left on hosts that can be reached.

    Call it in the main thread of a process of its own: it takes over signals, stdout and stderr. Raises StartError
    naming the hosts when ranks cannot be started, and ConfigError or RendezvousError when the store cannot be served on
    this host, after ending what was started.
    """
    fill_standard_descriptors()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        keeper = stack.enter_context(contextlib.closing(job.keeper or StoreKeeper(job.variables)))
        supervisor = _Supervisor(job, selector, guardian, keeper)
        stack.enter_context(contextlib.closing(supervisor.relay))
        stack.enter_context(signals_as_bytes(selector, supervisor.on_signals))
        stack.callback(supervisor.close)  # also after an exception
        supervisor.relay.open()
        guardian.start()
        if job.elastic is not None:
            guardian.mark(discovery_mark())
        return supervisor.run()


@dataclass
class _HostInUse:
    """A host that is in use, with the ranks that were started there.

    done   whether it has done what it was asked for; the plan is told once. None if there is nothing to tell
    late   the failure if it has not done so at `until`, which is infinite where the plan itself has a deadline
    """

    host: Host
    ranks: list[Rank] = field(default_factory=list)
    done: Callable[[], bool] | None = None
    until: float = _NEVER
    late: str = ""
    failure: Failure | None = None


class _Supervisor(Listener):
    def __init__(self, job: Job, selector: selectors.BaseSelector, guardian: Guardian, keeper: StoreKeeper) -> None:
        far = job.elastic is not None or any(not place.is_here for place in job.places)
        self._lasting = far and Config.load(environment=job.variables).standbys > 0
        self._job = job
        self._here = Here(selector, guardian, self, job.variables, job.grace)
        self._keeper = keeper
        self._used: dict[str, _HostInUse] = {}
        self._closing: list[tuple[Host, float]] = []
        self._together = Hosts(
            lambda: [used.host for used in self._used.values()] + [host for host, _ in self._closing]
        )
        self.relay = Relay(selector, self._together.want_output, stamped=job.stamped)
        self._places = {str(number): place for number, place in enumerate(job.places)}
        self._failed: list[int] = []
        self._elastic: ElasticJob | None = None
        self._plan: scaling.Plan | scaling.FixedPlan
        if job.elastic is not None:
            self._elastic = ElasticJob(job.elastic, job.name, selector, keeper, self.relay.print, self.end)
            self._plan, self._places, self._failed = self._elastic.plan, self._elastic.places, self._elastic.failed
        else:
            ranks, now = [place.ranks for place in job.places], time.monotonic()
            self._plan = scaling.FixedPlan(ranks, now, start_seconds=job.start_timeout, keep_going=job.keep_going)
        self._machines: dict[str, str] = {}  # of the hosts that were reached: their machines
        self._ranks: dict[int, Rank] = {}
        self._first_size = 0  # number of ranks of the first world
        self._store_host: RemoteHost | None = None  # that serves the store; None: this one
        self._store: tuple[str, tuple[str, int]] | None = None  # its URL, and the address for torch there
        self._answers: dict[Question, int | bool] = {}
        self._code: int | None = None
        self._reason = ""
        self._interrupted = False
        self._escalation = Escalation(job.grace)
        self._time_limit_at = self._stop_at = _NEVER
        self._remains: dict[int, float] = {}  # failed ranks: when the processes that they have left behind are killed
        self._busy = True  # the plan has just decided something, to which it may get an answer at once

    # Run

    def run(self) -> int:
        """Run the job to its end; the exit code. Raises StartError, ConfigError, RendezvousError."""
        try:
            return self._run()
        except StartError as error:
            self._code = error.code  # agents are told it, as launchers on other nodes have it for theirs
            raise

    def _run(self) -> int:
        if self._elastic is not None:
            self._elastic.open()
            self._limit_time()
        for place in self._job.places:
            self._expect_output(place, place.ranks)
        self._loop(lambda: self._code is not None)
        self._loop(self._all_gone)
        self._escalation.cancel()
        self._time_limit_at = _NEVER
        if self._interrupted:
            self._stop_at = time.monotonic() + OUTPUT_SECONDS
        self._loop(lambda: time.monotonic() >= self._drained_at(), self._drained_at)
        if self._code or self._reason:
            self.relay.print(self._report())
        self._loop(lambda: not self.relay.pending)
        assert self._code is not None
        return self._code

    def close(self) -> None:
        """End the agents, kill what is left, release everything. Idempotent."""
        self._stop_at = _NEVER
        self._escalation.cancel()
        self._code = 1 if self._code is None else self._code
        for key in list(self._used):
            self._retire(key)
        until = time.monotonic() + FINISH_SECONDS
        self._loop(lambda: not self._closing or time.monotonic() >= until, lambda: until)
        for host, _ in self._closing:
            host.close()
        self._closing.clear()
        if self._elastic is not None:
            self._elastic.close()

    def _loop(self, done: Callable[[], bool], next_check: Callable[[], float] = lambda: _NEVER) -> None:
        """Handle events until `done` returns True. `next_check`: when to ask it again if no event happens."""
        while not done() and time.monotonic() < self._stop_at:
            self._turn(min(self._stop_at, next_check()))

    def _turn(self, until: float) -> None:
        """Handle the next events."""
        wakes = [min(used.host.wake_at, used.until) for used in self._used.values()]
        wakes += [0.0 if host.closed else min(until, host.wake_at) for host, until in self._closing]
        wakes += [until, self._time_limit_at, self._escalation.wake_at, *self._remains.values()]
        if self._code is None:
            wakes.append(0.0 if self._busy else self._plan.wake_at)
        until = min(wakes)
        for key, _ in self._here.selector.select(seconds_until(until)):
            key.data()
        self._check_hosts()
        self.relay.update()
        if self.relay.ending is not None:
            self.end(*self.relay.ending)
        if time.monotonic() >= self._time_limit_at:
            self._time_limit_at = _NEVER
            self.end(TIMED_OUT, f"timed out after {self._job.time_limit:g} s")
        for rank in [rank for rank, kill_at in self._remains.items() if time.monotonic() >= kill_at]:
            del self._remains[rank]
            self._signal(self._ranks[rank], signal.SIGKILL)
        self._busy = self._code is None and self._decide()
        self._escalation.apply(self._together)

    def _limit_time(self) -> None:
        if self._job.time_limit is not None:
            self._time_limit_at = time.monotonic() + self._job.time_limit

    def end(self, code: int, reason: str, delay: float = 0.0) -> None:
        """End the job by SIGTERM after some seconds, unless it is ending already."""
        if self._code is None:
            self._code, self._reason = code, reason
            self._escalation.begin(time.monotonic() + delay, signal.SIGTERM)

    def _drained_at(self) -> float:
        """The time from which the output of all ranks counts as complete."""
        return max((used.host.drained_at for used in self._used.values()), default=0.0)

    def _all_gone(self) -> bool:
        return all(used.host.gone for used in self._used.values())

    # The plan

    def _decide(self) -> bool:
        """Carry out what the plan decides; False if that is nothing."""
        actions = self._plan.decide(time.monotonic())
        for action in actions:
            self._do(action)
        if self._elastic is not None and self._code is None:
            self._elastic.conclude()
        return bool(actions)

    def _do(self, action: scaling.Action) -> None:
        match action:
            case scaling.Open(key):
                self._open(key)
            case scaling.Serve(key):
                self._serve(key)
            case scaling.Begin(places):
                self._begin(places)
            case scaling.Start(number, key, slot):
                self._expect_output(self._places[key], [number])
                self._start(key, [number], number + 1, slot)
            case scaling.Send(number, kill):
                self._signal(self._ranks[number], signal.SIGKILL if kill else signal.SIGTERM)
            case scaling.Close(key):
                self.relay.print(f"ronde: host {key} is not used any more")
                self._retire(key)
            case scaling.Ask(ranks):
                self._ask("left out", ranks)
            case scaling.Leave(numbers, reason) if self._elastic is not None:
                self._elastic.ask_to_leave(numbers, reason)
            case scaling.Refuse(keys, reason):
                raise self._not_started(keys, reason)
            case scaling.Finish(success, reason, first):
                if first is not None and not self._failed:
                    self._failed.append(first)
                if reason and self._elastic is not None and self._elastic.trouble:
                    reason += f"; {self._elastic.trouble}"
                code = 0 if success else 1 if first is None else self._ranks[first].exit_code
                self.end(code, reason, LEFTOVER_SECONDS if success else 0.0 if reason else scaling.REPORT_SECONDS)

    def _not_started(self, keys: Sequence[str], reason: str) -> StartError:
        """The error for hosts that do not start their ranks. `reason`: "" if their failures tell."""
        failures = {key: self._late(key, reason) if reason else self._used[key].failure or Failure("") for key in keys}
        texts = [f"host {self._places[key].name}: {failure.text}" for key, failure in failures.items()]
        for key, failure in failures.items():
            if failure.lost:  # its ranks may have run already, though it did not say so
                return StartError(f"host {self._places[key].name} was lost: {failure.text}", LOST)
            if len(self._places) == 1 and self._places[key].is_here:
                texts = [failure.text]
        code = max(failure.exit_code for failure in failures.values())
        return StartError(texts[0] if len(texts) == 1 else "\n    ".join([f"{len(texts)} hosts", *texts]), code)

    def _late(self, key: str, reason: str) -> Failure:
        """The failure of a host that has not done what it was asked for in time: its login may ask for something."""
        words = self._used[key].host.words if key in self._used else ""
        return Failure(f"{reason}; it has printed: {words}" if words else reason)

    # Hosts

    def _open(self, key: str) -> None:
        job, place, here = self._job, self._places[key], self._here
        if self._elastic is not None and self._store is None:
            self._store, here.has_store = self._elastic.serve(job.secret, job.interface), True
        host: Host
        if place.is_here:
            host = LocalHost(place.name, here)
        else:
            header = agent_header(folder_here(), job.passed_on)
            connection = place.connected or CommandConnection(place.agent or (), header, here.selector, here.guardian)
            host = RemoteHost(
                *(place.name, connection, here.selector, self),
                limit=job.host_timeout,
                grace=job.grace,
                lasting=self._lasting,
            )
        used = self._used[key] = _HostInUse(host)
        try:
            host.open()
            self._expect(used, lambda: host.facts is not None, "was not reached")
        except OSError as error:
            if self._elastic is None:
                raise StartError(f"cannot reach host {place.name}: {error}", 1) from error
            self._lose(key, Failure(str(error)))

    def _expect(self, used: _HostInUse, done: Callable[[], bool], late: str) -> None:
        """Wait until a host has done what it was asked for."""
        used.done = done
        if self._elastic is not None:
            seconds = self._job.start_timeout
            used.until, used.late = time.monotonic() + seconds, f"{late} within {seconds:g} s"

    def _serve(self, key: str) -> None:
        """Let the first host serve the store, if all have the same Python and Ronde as this one. Raises StartError,
        ConfigError, RendezvousError."""
        job, host, own = self._job, self._used[key].host, Facts.own().versions
        found = [(used.host.name, used.host.facts or Facts()) for used in self._used.values()]
        others = [f"host {name} has {facts.versions}" for name, facts in found if facts.versions != own]
        if others:
            first = f"the launcher has {own}; all hosts must have the same, but"
            raise StartError("\n    ".join([first, *others]), 1)
        hints = [facts.address for _, facts in found[1:] if facts.address]
        hints += [place.name for place in job.places[1:] if not place.is_here]
        if isinstance(host, RemoteHost):
            keeper = self._store_host = host
            host.serve(job.secret, job.interface, hints)
            self._expect(self._used[key], lambda: keeper.serving is not None, "")
            return
        self._store = self._keeper.serve(job.secret, job.interface, hints)
        self._here.has_store = True
        self._plan.ready(key)

    def _begin(self, places: Sequence[tuple[str, int]]) -> None:
        """Start the first world. Raises StartError."""
        self._first_size = len(places)
        if self._elastic is None:
            self._limit_time()
        else:
            self.relay.print(f"ronde: job {self._job.name} begins with {len(places)} ranks")
            for number, (key, _) in enumerate(places):
                self._expect_output(self._places[key], [number])
        for key, group in groupby(enumerate(places), key=lambda item: item[1][0]):
            self._start(key, [number for number, _ in group], len(places))

    def _expect_output(self, place: Place, ranks: Sequence[int]) -> None:
        """Expect output of ranks that are to start at a place. Raises StartError."""
        job, shown = self._job, place.connected is None
        for number in ranks:
            rank = self._ranks[number] = Rank(number, place.name)
            name = place.name if len(self._places) > 1 else ""
            prefix = prefix_of(number, job.width, name) if job.prefix else b""
            folder = job.output_folder / rank_folder(number, job.width) if job.output_folder and shown else None
            try:
                self.relay.add(number, prefix, rank.tail, folder, shown=shown)
            except OSError as error:
                raise StartError(f"cannot write {error.filename}: {error.strerror}", 1) from error

    def _start(self, key: str, numbers: Sequence[int], size: int, slot: int | None = None) -> None:
        """Start ranks of the first world, or a newcomer in a slot. Raises StartError, ConfigError."""
        job, used = self._job, self._used.get(key)
        if used is None:  # lost since the plan has decided
            return
        used.ranks += [self._ranks[number] for number in numbers]
        room = self._room(key)
        before, beside = self._rooms_beside(key)
        start = Start(
            *(job.command, numbers, size, self._served[0], job.name, self._torch_address(), job.secret),
            first_local=before + (slot or 0),
            local_size=beside + (len(numbers) if slot is None else max(slot + 1, room)),
            room=room,
            joins=slot is not None,
        )
        host = used.host = used.host.with_room(room)
        try:
            host.start(start)
        except OSError as error:
            failure = cannot_start(job.command, error)
            name = f"host {host.name}: " if self._elastic is None and len(self._places) > 1 else ""
            raise StartError(name + failure.text, failure.exit_code) from error
        self._expect(used, lambda: host.running, "did not start its ranks")

    def _room(self, key: str) -> int:
        """The number of ranks that a host may come to have."""
        return len(self._places[key].ranks) if self._elastic is None else self._elastic.plan.slots(key)

    def _rooms_beside(self, key: str) -> tuple[int, int]:
        """The number of ranks that other hosts may come to have which are the same machine under another name: those
        that are named before this one, and all. A node that was started by hand is a machine by itself: its user may
        have divided the devices."""
        machine, before, beside = self._machines.get(key), 0, 0
        for name in self._places:
            if name == key:
                before = beside
            elif machine and self._machines.get(name) == machine:
                beside += self._room(name)
        return before, beside

    @property
    def _served(self) -> tuple[str, tuple[str, int]]:
        found = self._store if self._store_host is None else self._store_host.serving
        assert found is not None
        return found

    def _torch_address(self) -> tuple[str, int]:
        """The address and port for rank 0 of torch, on the host of rank 0."""
        _, (address, port) = self._served
        if self._elastic is not None:
            key = self._ranks[self._elastic.first_rank].host
            if key in self._used and not self._places[key].is_here:
                facts = self._used[key].host.facts or Facts()
                address, port = facts.address or key, facts.port or port
        return torch_address((address, port), self._job.passed_on)

    def _check_hosts(self) -> None:
        """Notice what hosts have done, and those that were lost or have closed."""
        now = time.monotonic()
        for key, used in list(self._used.items()):
            used.host.tick()
            if used.failure is None and used.host.failure is not None:
                self._lose(key, used.host.failure)
            elif used.failure is None and used.done is not None and used.done():
                used.done, used.until = None, _NEVER
                self._on_ready(key, used.host)
            elif now >= used.until:
                self._lose(key, self._late(key, used.late))
        for host, until in list(self._closing):
            host.tick()
            if host.closed or now >= until:
                host.close()
                self._closing.remove((host, until))

    def _on_ready(self, key: str, host: Host) -> None:
        facts = host.facts or Facts()
        found, own = facts.versions, Facts.own().versions
        if self._places[key].connected is None:
            self._machines[key] = facts.machine
        if self._elastic is not None and found != own:
            self._lose(key, Failure(f"it has {found}, the launcher {own}"))
            return
        if self._elastic is not None and not self._used[key].ranks:
            self._elastic.watch_preemption(key, host)
        self._plan.ready(key)

    def _lose(self, key: str, failure: Failure) -> None:
        """A host cannot be used now, and its ranks are lost."""
        used = self._used[key]
        used.failure = failure
        if self._elastic is not None:
            self.relay.print(f"ronde: host {key}: {failure.text}")
            self._retire(key)
        for rank in used.ranks:
            if rank.running:
                rank.lost = True
                self._fail(rank, f"lost with host {used.host.name}: {failure.text}")
        self._plan.lost(key, time.monotonic())

    def _retire(self, key: str) -> None:
        """Let a host end."""
        used = self._used.pop(key, None)
        if used is not None:
            used.host.finish(self._code or 0)
            self._closing.append((used.host, time.monotonic() + FINISH_SECONDS))

    # What happens

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if self._together.pass_on(number):
                continue
            if self._code is not None and self._all_gone():
                self._stop_at = 0.0
            elif self._interrupted:
                self._escalation.begin(time.monotonic(), signal.SIGKILL)
            else:
                self._interrupted = True
                if not self._code:
                    self._code, self._reason = exit_code(-number), f"ended by {number.name}"
                self._escalation.begin(time.monotonic(), number)

    def started(self, rank: int, pid: int) -> None:
        self._ranks[rank].pid = pid
        for used in self._used.values():  # to start many ranks here takes long where they have few cores
            used.host.beat()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.relay.feed(rank, stream, data)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        ended = self._ranks[rank]
        if not ended.running:
            return
        ended.status, ended.last_signal = status, last_signal
        if status:
            self._fail(ended, f"{ended.describe()}, pid {ended.pid}")
            self._end_remains(ended)
        else:
            self._give_up(ended)
        self._plan.ended(rank, status, time.monotonic())

    def _fail(self, rank: Rank, text: str) -> None:
        if self._elastic is None:
            self._failed.append(rank.rank)
            if self._job.keep_going:
                self._give_up(rank)
                self.relay.print(f"ronde: rank {rank.rank} failed: {text}")
            return
        self._give_up(rank)
        wanted = rank.last_signal in (signal.SIGTERM, signal.SIGKILL)  # by the plan, or the job ends
        if not wanted:
            self._failed.append(rank.rank)
        if self._code is None and not rank.lost:
            self.relay.print(f"ronde: process {rank.rank}{'' if wanted else ' failed'}: {text}")

    def _end_remains(self, rank: Rank) -> None:
        """End the processes that a failed rank has left behind, where the job goes on: they would keep memory and ports
        that other ranks need."""
        if self._code is None and (self._elastic is not None or self._job.keep_going):
            if not rank.last_signal:  # otherwise they have got it
                self._signal(rank, signal.SIGTERM)
            self._remains[rank.rank] = time.monotonic() + self._job.grace

    def _signal(self, rank: Rank, number: signal.Signals) -> None:
        """Signal a rank and what it has started, if its host is in use."""
        for used in self._used.values():
            if rank in used.ranks:
                used.host.signal_rank(rank.rank, number)

    def _give_up(self, rank: Rank) -> None:
        """Let the ranks that wait in the store for one that has ended know, while the job goes on."""
        if self._elastic is not None:
            self._elastic.give_up(rank.rank, self._first_size)
        elif self._code is None and not rank.lost and any(other.running for other in self._ranks.values()):
            (self._store_host or self._keeper).announce_end(rank.rank)

    def _ask(self, question: Question, ranks: Sequence[int]) -> None:
        if self._store_host is not None:
            self._store_host.ask(question, ranks)
        else:
            self.answered(question, self._keeper.ask(question, ranks))

    def answered(self, question: Question, value: int | bool) -> None:
        self._answers[question] = value
        if question == "left out" and value and isinstance(self._plan, scaling.FixedPlan):
            self._plan.left_behind(time.monotonic())

    def stderr_line(self, host: Host, line: bytes) -> None:
        self.relay.print(f"[{host.name}] {line.decode(errors='replace').rstrip()}")

    # Report

    def _report(self) -> str:
        """The report for stderr. If ranks failed, the one that failed first determines the exit code."""
        several, brief = self._elastic is not None or len(self._places) > 1, self._elastic is not None
        brief |= self._interrupted or self.relay.ending is not None
        ranks = [rank for rank in self._ranks.values() if rank.pid]
        if self._reason or not self._failed:
            shown = [rank for rank in ranks if rank.running or not brief]
            return summarize(self._reason or "the job has failed", None, shown, several_hosts=several)
        first = self._ranks[self._culprit()]
        if self._elastic is not None:
            ranks = [self._ranks[number] for number in self._failed]
        elif first.lost:
            self._code = LOST
            reason = next(used.failure.text for used in self._used.values() if first in used.ranks and used.failure)
            return summarize(f"host {first.host} was lost: {reason}", None, ranks, several_hosts=several)
        if not first.ended_by_launcher:
            self._code = first.exit_code
        return summarize("", first, ranks, several_hosts=several)

    def _culprit(self) -> int:
        """The rank that failed first, as the store tells; if it cannot be asked, the one that ended first."""
        until, keeper = time.monotonic() + ANSWER_SECONDS, self._store_host
        with contextlib.suppress(RondeError):
            self._ask("culprit", self._failed)
        while (
            keeper is not None
            and keeper.failure is None
            and "culprit" not in self._answers
            and time.monotonic() < until
        ):
            self._turn(until)
        answer = self._answers.get("culprit", self._failed[0])
        return answer if answer in self._failed else self._failed[0]
