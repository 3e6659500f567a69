"""Runs the ranks of a job on its hosts: one thread, one selector, every wait on an event or a deadline.

How a job ends
    every rank exits with 0          processes that ranks left behind are ended; exit code 0
    a rank fails                     the others get REPORT_SECONDS to report, then SIGTERM, `grace`, SIGKILL; exit code
                                     of the rank that failed first
      with keep_going                the job goes on until its ranks have ended or were left behind by a shrink; exit
                                     code 0 if any rank exits with 0, otherwise that of the first that failed
    a host is lost                   its ranks have failed, with exit code LOST; its agent ends them there
    SIGINT, SIGTERM, SIGHUP          passed on to the ranks, `grace`, SIGKILL; a second one: SIGKILL; 128 + N
    time limit, output closed        SIGTERM, `grace`, SIGKILL; 124 as from timeout(1), 141 as from SIGPIPE
    the launcher is killed           the guardian kills all ranks here; agents end theirs
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectives.config import Config
from collectives.launch import agent_commands
from collectives.launch.connection import CommandConnection, Connection
from collectives.launch.environment import torch_address
from collectives.launch.escalation import Escalation
from collectives.launch.host import LOST, Facts, Failure, Host, Hosts, Listener, Start, cannot_start
from collectives.launch.local_host import LocalHost
from collectives.launch.processes import (
    Guardian,
    adopt_orphans,
    exit_code,
    fill_standard_descriptors,
    signals_as_bytes,
)
from collectives.launch.relay import Relay, prefix_of, rank_folder
from collectives.launch.remote_host import FINISH_SECONDS, RemoteHost
from collectives.launch.store_keeper import Question, StoreKeeper
from collectives.launch.summary import Rank, summarize

REPORT_SECONDS: Final = 1.5
"""Time for the other ranks to notice a failure and to print their errors."""

LEFTOVER_SECONDS: Final = 1.0
"""Time for processes that ranks left behind to end after the last rank."""

OUTPUT_SECONDS: Final = 2.0
"""Time for a slow reader to take the remaining output after a signal ended the job."""

OTHERS_SECONDS: Final = 2.0
"""Time, after one host could not be reached, for the others to tell what is wrong with them."""

ANSWER_SECONDS: Final = 5.0
"""Time for the host with the store to tell which rank failed first."""

MOST_AT_ONCE: Final = 64
"""Number of hosts that are being reached at the same time."""

TIMED_OUT: Final = 124
_NEVER: Final = float("inf")


@dataclass(frozen=True)
class Place:
    """A host and its ranks.

    agent      the command that starts an agent there; None on this host, and where an agent is connected already
    connected  the connection to that agent, which prints the output of its ranks itself
    """

    name: str
    ranks: Sequence[int]
    agent: Sequence[str] | None = None
    connected: Connection | None = None

    @property
    def is_here(self) -> bool:
        """True if the ranks run on this host."""
        return self.agent is None and self.connected is None


@dataclass(frozen=True)
class Job:
    """The ranks to start and how to treat them. Times in seconds.

    places         the hosts; the first serves the store. Together they have the ranks 0 to size - 1
    variables      the environment of the ranks on this host
    passed_on      the variables that ranks on other hosts get, beside those of a login there
    name           the job's id
    interface      name or address of the network interface that the other hosts reach; "" chooses
    prefix         put the rank in front of every line of output, and its host if there are several
    stamped        put the time in front of that
    output_folder  folder that gets rank.N/stdout and rank.N/stderr
    start_timeout  time until the ranks must have started on all hosts
    keeper         serves the store already; None: the first host does it
    host_timeout   time without a sign of life after which a host is lost
    keep_going     let the others go on when a rank fails
    """

    command: Sequence[str]
    places: Sequence[Place]
    secret: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    passed_on: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = ""
    interface: str = ""
    prefix: bool = True
    stamped: bool = False
    output_folder: Path | None = None
    grace: float = 5.0
    time_limit: float | None = None
    start_timeout: float = 30.0
    host_timeout: float = 10.0
    keep_going: bool = False
    keeper: StoreKeeper | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(place.ranks) for place in self.places)


class StartError(Exception):
    """The ranks could not be started. `code`: the exit code of the launcher."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class _Ending:
    """The reason for which the job ends other than by all ranks exiting with 0.

    code     exit code
    reason   text for the report; '' if a rank failed
    brief    True to report only the ranks that still run
    """

    code: int
    reason: str = ""
    brief: bool = False


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
        supervisor = _Supervisor(job, selector, guardian)
        stack.enter_context(contextlib.closing(supervisor.relay))
        stack.enter_context(signals_as_bytes(selector, supervisor.on_signals))
        stack.callback(supervisor.close)  # also after an exception
        supervisor.relay.open()
        guardian.start()
        supervisor.start()
        return supervisor.run()


class _Supervisor(Listener):
    def __init__(self, job: Job, selector: selectors.BaseSelector, guardian: Guardian) -> None:
        self._job = job
        self._selector = selector
        self._hosts: list[Host] = []
        self._together = Hosts(lambda: self._hosts)
        self.relay = Relay(selector, self._together.want_output, stamped=job.stamped)
        far = any(not place.is_here for place in job.places)
        lasting = far and Config.load(environment=job.variables).standbys > 0
        for place in job.places:
            if place.is_here:
                host: Host = LocalHost(
                    place.name,
                    selector,
                    guardian,
                    self,
                    variables=job.variables,
                    stdin=0,
                    grace=job.grace,
                    keeper=job.keeper,
                )
            else:
                header = agent_commands.header(os.getcwd(), job.passed_on)
                connection = place.connected or CommandConnection(place.agent or (), header, selector, guardian)
                host = RemoteHost(
                    place.name,
                    connection,
                    selector,
                    self,
                    limit=job.host_timeout,
                    grace=job.grace,
                    lasting=lasting,
                )
            self._hosts.append(host)
        self._ranks = sorted(
            (Rank(rank, place.name) for place in job.places for rank in place.ranks), key=lambda rank: rank.rank
        )
        self._begun = False
        self._failed: list[Rank] = []
        self._losses: dict[str, str] = {}
        self._answers: dict[Question, int | bool] = {}
        self._ending: _Ending | None = None
        self._interrupted = False
        self._escalation = Escalation(job.grace)
        self._time_limit_at = _NEVER
        self._stop_at = _NEVER
        self._code = 1  # until the job has run

    # Start

    def start(self) -> None:
        """Reach the hosts and start the ranks. Raises StartError."""
        job, hosts = self._job, self._hosts
        elsewhere = {rank for place in job.places if place.connected is not None for rank in place.ranks}
        for rank in self._ranks:
            prefix = prefix_of(rank.rank, job.size, rank.host if len(hosts) > 1 else "") if job.prefix else b""
            shown, folder = rank.rank not in elsewhere, None
            if shown and job.output_folder is not None:
                folder = job.output_folder / rank_folder(rank.rank, job.size)
            try:
                self.relay.add(rank.rank, prefix, rank.tail, folder, shown=shown)
            except OSError as error:
                raise StartError(f"cannot write {error.filename}: {error.strerror}", 1) from error
        until = time.monotonic() + job.start_timeout
        waiting = list(hosts)
        self._wait(hosts, lambda host: host.facts is not None, until, "was not reached", lambda: self._open(waiting))
        self._compare(Facts.own())
        if self._ending is None:  # a signal has not ended the job already
            hints = [host.facts.address for host in hosts[1:] if host.facts is not None and host.facts.address]
            hints += [place.name for place in job.places[1:] if not place.is_here]
            hosts[0].serve(job.secret, job.interface, hints)
        self._wait(hosts[:1], lambda host: host.serving is not None, until, "did not serve the store")
        if self._ending is None:
            assert hosts[0].serving is not None
            url, found = hosts[0].serving
            torch = torch_address(found, job.passed_on)
            for host in hosts[1:]:
                host.reach(url, job.secret)
            self._wait(hosts[1:], lambda host: host.reached, until, f"did not reach the store at {url}")
        if self._ending is None:
            if job.time_limit is not None:
                self._time_limit_at = time.monotonic() + job.time_limit
            for host, place in zip(hosts, job.places, strict=True):
                start = Start(job.command, place.ranks, job.size, url, job.name, torch, job.secret)
                try:
                    host.start(start)
                except OSError as error:
                    raise self._not_started({host.name: cannot_start(job.command, error)}) from error
            self._wait(hosts, lambda host: host.running, until, "did not start its ranks")
        self._begun = True

    def _open(self, waiting: list[Host]) -> None:
        """Begin to reach more hosts, not too many at once."""
        busy = sum(host.facts is None and host.failure is None for host in self._hosts) - len(waiting)
        while waiting and busy < MOST_AT_ONCE:
            host = waiting.pop(0)
            busy += 1
            try:
                host.open()
            except OSError as error:
                raise StartError(f"cannot reach host {host.name}: {error}", 1) from error

    def _wait(
        self,
        hosts: Sequence[Host],
        ready: Callable[[Host], bool],
        until: float,
        complaint: str,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until all hosts are ready, or the job ends. Raises StartError with what is wrong with each host."""
        patience = _NEVER

        def done() -> bool:
            nonlocal patience
            also()
            if patience == _NEVER and any(host.failure is not None for host in hosts):
                patience = time.monotonic() + OTHERS_SECONDS
            late = time.monotonic() >= min(until, patience)
            return late or self._ending is not None or all(ready(host) or host.failure is not None for host in hosts)

        self._loop(done, lambda: min(until, patience))
        failures = {host.name: host.failure for host in hosts if host.failure is not None}
        lost = next((host for host in hosts if host.failure is not None and host.failure.lost), None)
        if lost is not None and lost.failure is not None:  # its ranks may have run already, though it did not say so
            raise StartError(f"host {lost.name} was lost: {lost.failure.text}", LOST)
        if not failures and self._ending is None:
            failures |= {
                host.name: Failure(f"{complaint} within {self._job.start_timeout:g} s")
                for host in hosts
                if not ready(host)
            }
        if failures:
            raise self._not_started(failures)

    def _not_started(self, failures: Mapping[str, Failure]) -> StartError:
        several = len(self._hosts) > 1 or not self._job.places[0].is_here
        texts = [f"host {name}: {failure.text}" if several else failure.text for name, failure in failures.items()]
        code = max(failure.exit_code for failure in failures.values())
        return StartError(texts[0] if len(texts) == 1 else "\n    ".join([f"{len(texts)} hosts", *texts]), code)

    def _compare(self, own: Facts) -> None:
        """Raise StartError if a host has another Python or Ronde than this one."""
        found = {host.name: host.facts.versions for host in self._hosts if host.facts is not None}
        if any(versions != own.versions for versions in found.values()):
            lines = [f"the launcher has {own.versions}; all hosts must have the same, but"]
            lines += [f"host {name} has {versions}" for name, versions in found.items() if versions != own.versions]
            raise StartError("\n    ".join(lines), 1)

    # Run

    def run(self) -> int:
        """Wait for the ranks, pass on the rest of their output, report; the exit code."""
        self._loop(lambda: all(host.gone for host in self._hosts))
        if self._ending is None and self._failed and all(rank.failed for rank in self._ranks):
            self._ending = _Ending(self._failed[0].exit_code)  # with keep_going, all ranks failed
        self._escalation.cancel()
        self._time_limit_at = _NEVER
        if self._interrupted:
            self._stop_at = time.monotonic() + OUTPUT_SECONDS
        self._loop(lambda: time.monotonic() >= self._drained_at(), self._drained_at)
        if self._ending is not None:
            self.relay.print(self._report(self._ending))
        self._loop(lambda: not self.relay.pending)
        self._code = 0 if self._ending is None else self._ending.code
        return self._code

    def close(self) -> None:
        """End the agents, kill what is left, release everything. Idempotent."""
        self._stop_at = _NEVER
        self._escalation.cancel()
        for host in self._hosts:
            host.finish(self._code)
        until = time.monotonic() + FINISH_SECONDS
        self._loop(lambda: all(host.closed for host in self._hosts) or time.monotonic() >= until, lambda: until)
        for host in self._hosts:
            host.close()

    def _loop(self, done: Callable[[], bool], next_check: Callable[[], float] = lambda: _NEVER) -> None:
        """Handle events until `done` returns True. `next_check`: when to ask it again if no event happens."""
        while not done() and time.monotonic() < self._stop_at:
            wakes = [host.wake_at for host in self._hosts]
            until = min(self._time_limit_at, self._stop_at, next_check(), self._escalation.wake_at, *wakes)
            timeout = None if until == _NEVER else max(0.0, until - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            for host in self._hosts:
                host.tick()
            self.relay.update()
            if self.relay.ending is not None:
                self._finish(_Ending(*self.relay.ending, brief=True))
            if time.monotonic() >= self._time_limit_at:
                self._time_limit_at = _NEVER
                self._finish(_Ending(TIMED_OUT, f"timed out after {self._job.time_limit:g} s"))
            self._escalation.apply(self._together)

    def _drained_at(self) -> float:
        """The time from which the output of all ranks counts as complete."""
        return max(host.drained_at for host in self._hosts)

    # What happens

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if self._together.pass_on(number):
                continue
            if self._begun and all(host.gone for host in self._hosts):
                self._stop_at = 0.0
            elif self._interrupted:
                self._escalation.begin(time.monotonic(), signal.SIGKILL)
            else:
                self._interrupted = True
                self._ending = self._ending or _Ending(exit_code(-number), f"ended by {number.name}", brief=True)
                self._escalation.begin(time.monotonic(), number)

    def started(self, rank: int, pid: int) -> None:
        self._ranks[rank].pid = pid

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.relay.feed(rank, stream, data)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        ended = self._ranks[rank]
        ended.status, ended.last_signal = status, last_signal
        if status:
            self._fail(ended, f"{ended.describe()}, pid {ended.pid}")
        if self._ending is None and any(other.running for other in self._ranks):
            self._hosts[0].announce_end(rank)  # others may wait for it to begin
        self._check_running()

    def answered(self, question: Question, value: int | bool) -> None:
        self._answers[question] = value
        if question == "left out" and value and not self._escalation.planned:
            self._escalation.begin(time.monotonic() + REPORT_SECONDS, signal.SIGTERM)

    def said(self, host: Host, line: bytes) -> None:
        self.relay.print(f"[{host.name}] {line.decode(errors='replace').rstrip()}")

    def lost(self, host: Host, reason: str) -> None:
        if not self._begun:  # the start fails, and says so
            return
        self._losses[host.name] = reason
        place = self._job.places[self._hosts.index(host)]  # names of hosts may be alike
        for rank in (self._ranks[number] for number in place.ranks):
            if rank.running:
                rank.lost = True
                self._fail(rank, f"lost with host {host.name}: {reason}")
        self._check_running()

    def _fail(self, rank: Rank, text: str) -> None:
        if rank in self._failed:  # it was lost, and its host could still be heard
            return
        self._failed.append(rank)
        if self._job.keep_going:
            self.relay.print(f"ronde: rank {rank.rank} failed: {text}")
        elif self._ending is None:
            self._ending = _Ending(rank.exit_code)
            self._escalation.begin(time.monotonic() + REPORT_SECONDS, signal.SIGTERM)

    def _check_running(self) -> None:
        """End what ranks left behind when all have ended, or when the others have gone on without those that run."""
        running = [rank.rank for rank in self._ranks if rank.running]
        if not self._escalation.planned and not running:
            self._escalation.begin(time.monotonic() + LEFTOVER_SECONDS, signal.SIGTERM)
        elif not self._escalation.planned and self._job.keep_going and self._begun:
            self._hosts[0].ask("left out", running)

    def _finish(self, ending: _Ending) -> None:
        """End the job by SIGTERM, unless it is ending already."""
        if self._ending is None:
            self._ending = ending
            self._escalation.begin(time.monotonic(), signal.SIGTERM)

    # Report

    def _report(self, ending: _Ending) -> str:
        """The report for stderr. If ranks failed, the one that failed first determines the exit code."""
        several = len(self._hosts) > 1
        started = [rank for rank in self._ranks if rank.pid]
        ranks = [rank for rank in started if not ending.brief or rank.running]
        if ending.reason:
            return summarize(ending.reason, None, ranks, several_hosts=several)
        first = self._ranks[self._culprit()]
        if first.lost:
            self._ending = _Ending(LOST)
            reason = f"host {first.host} was lost: {self._losses[first.host]}"
            return summarize(reason, None, ranks, several_hosts=several)
        if not first.ended_by_launcher:
            self._ending = _Ending(first.exit_code)
        return summarize("", first, ranks, several_hosts=several)

    def _culprit(self) -> int:
        """The rank that failed first, as the store tells; if it cannot be asked, the one that ended first."""
        keeper = self._hosts[0]
        failed = [rank.rank for rank in self._failed]
        until = time.monotonic() + ANSWER_SECONDS
        if keeper.failure is None:
            keeper.ask("culprit", failed)
            self._loop(
                lambda: "culprit" in self._answers or keeper.failure is not None or time.monotonic() >= until,
                lambda: until,
            )
        answer = self._answers.get("culprit", failed[0])
        return answer if answer in failed else failed[0]
