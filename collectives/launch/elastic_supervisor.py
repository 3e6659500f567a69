"""Runs an elastic job: carries out what `collectives.scaling.Plan` decides, on the hosts that discovery names.

One thread with one selector, as in `supervisor`; two more threads look for hosts and read the changes of the ranks.
The launcher serves the store, since any host may go. The job ends when the plan says so, and by signals, the time limit
and closed output as any other job (see `supervisor`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from collectives.config import Config
from collectives.launch import agent_commands
from collectives.launch.agent_commands import Srun, Ssh
from collectives.launch.connection import CommandConnection
from collectives.launch.control import ControlSocket
from collectives.launch.discovery import Discovery, discovery_mark
from collectives.launch.environment import torch_address
from collectives.launch.escalation import Escalation
from collectives.launch.host import Facts, Host, Hosts, Listener, Start, cannot_start
from collectives.launch.host_list import Host as Found
from collectives.launch.local_host import LocalHost
from collectives.launch.mailbox import FIND_SECONDS, Mailbox
from collectives.launch.processes import Guardian, adopt_orphans, exit_code, fill_standard_descriptors, signals_as_bytes
from collectives.launch.relay import Relay, prefix_of, rank_folder
from collectives.launch.remote_host import FINISH_SECONDS, RemoteHost
from collectives.launch.store_keeper import Question, StoreKeeper
from collectives.launch.summary import Rank, summarize
from collectives.launch.supervisor import LEFTOVER_SECONDS, OUTPUT_SECONDS, REPORT_SECONDS, TIMED_OUT, StartError
from collectives.membership import Change, ask_to_leave, set_bounds
from collectives.scaling import Action, Begin, Close, Finish, Leave, Open, Plan, Send, Terms
from collectives.scaling import Start as StartNewcomer
from transports.errors import ConfigError, RondeError
from transports.interfaces import canonical, interfaces
from transports.rendezvous import give_up
from transports.store import Store

_NEVER: Final = float("inf")


@dataclass(frozen=True)
class ElasticJob:
    """The program and the terms on which its ranks come and go. Times in seconds; see also `supervisor.Job`.

    way     reaches hosts other than this one
    width   number of ranks for which the prefixes of output have room
    notice  a file that says on each host that it is about to go; '' for none
    """

    command: Sequence[str]
    terms: Terms
    discovery: Discovery
    way: Ssh | Srun
    secret: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    passed_on: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = ""
    interface: str = ""
    width: int = 10
    notice: str = ""
    prefix: bool = True
    stamped: bool = False
    output_folder: Path | None = None
    time_limit: float | None = None
    start_timeout: float = 30.0
    host_timeout: float = 10.0


def supervise(job: ElasticJob) -> int:
    """Run the job and return its exit code. On return no process of it is left on hosts that can be reached.

    Call it in the main thread of a process of its own: it takes over signals, stdout and stderr. Raises StartError if
    the program cannot be started, ConfigError or RendezvousError if the store cannot be served, after ending what was
    started.
    """
    fill_standard_descriptors()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        keeper = stack.enter_context(contextlib.closing(StoreKeeper(job.variables)))
        mailbox = stack.enter_context(contextlib.closing(Mailbox(selector)))
        supervisor = _ElasticSupervisor(job, selector, guardian, keeper, mailbox)
        stack.enter_context(contextlib.closing(supervisor.relay))
        stack.enter_context(signals_as_bytes(selector, supervisor.on_signals))
        stack.callback(supervisor.close)  # also after an exception
        supervisor.relay.open()
        try:
            stack.enter_context(contextlib.closing(ControlSocket(selector, job.name, supervisor.on_request)))
        except ConfigError as error:
            supervisor.relay.print(f"ronde: `ronde drain` will not reach this job: {error}")
        guardian.start()
        guardian.mark(discovery_mark())
        return supervisor.run()


@dataclass
class _Used:
    """A host that is in use. `until`: when it must have been reached."""

    host: Host
    until: float
    asked: bool = False
    ready: bool = False


class _ElasticSupervisor(Listener):
    def __init__(
        self,
        job: ElasticJob,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        keeper: StoreKeeper,
        mailbox: Mailbox,
    ) -> None:
        self._job = job
        self._selector = selector
        self._guardian = guardian
        self._keeper = keeper
        self._mailbox = mailbox
        self._together = Hosts(self._all_hosts)
        self.relay = Relay(selector, self._together.want_output, stamped=job.stamped)
        self._plan = Plan(job.terms, time.monotonic())
        self._found: dict[str, Found] = {}  # also those that are in use and not named any more
        self._named: dict[str, int] = {}  # slots of the hosts, as the last look named them
        self._trouble = ""  # of the last look for hosts
        self._used: dict[str, _Used] = {}
        self._closing: list[tuple[Host, float]] = []
        self._ranks: dict[int, Rank] = {}
        self._failed: list[int] = []
        self._first = 0  # number of ranks of the first world
        self._url = ""
        self._torch = ("", 0)  # for rank 0 of torch on this host
        self._zero = 0  # the process that is rank 0
        self._store: Store | None = None
        self._finish: Finish | None = None
        self._code: int | None = None
        self._reason = ""
        self._interrupted = False
        self._escalation = Escalation(job.terms.grace)
        self._time_limit_at = _NEVER if job.time_limit is None else time.monotonic() + job.time_limit
        self._stop_at = _NEVER
        self._lasting = Config.load(environment=job.variables).standbys > 0
        self._concluded = False
        self._busy = False  # the plan has just decided something, to which it may get an answer at once

    # Run

    def run(self) -> int:
        """Run the job to its end; the exit code. Raises StartError, ConfigError, RendezvousError."""
        self._mailbox.watch_hosts(self._job.discovery, self._on_found, self._on_trouble)
        self._loop(lambda: self._code is not None)
        self._loop(lambda: not self._hosts_with_processes())
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
        for name in list(self._used):
            self._retire(name)
        until = time.monotonic() + FINISH_SECONDS
        self._loop(lambda: not self._closing or time.monotonic() >= until, lambda: until)
        for host, _ in self._closing:
            host.close()
        self._closing.clear()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _loop(self, done: Callable[[], bool], next_check: Callable[[], float] = lambda: _NEVER) -> None:
        """Handle events until `done` returns True. `next_check`: when to ask it again if no event happens."""
        while not done() and time.monotonic() < self._stop_at:
            wakes = [used.host.wake_at for used in self._used.values()]
            wakes += [used.until for used in self._used.values() if not used.ready]
            wakes += [min(until, host.wake_at) for host, until in self._closing]
            own = (self._time_limit_at, self._stop_at, next_check(), self._escalation.wake_at, self._plan.wake_at)
            until = 0.0 if self._busy else min(*own, *wakes)
            timeout = None if until == _NEVER else max(0.0, until - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            self._check_hosts()
            self.relay.update()
            self._check_limits()
            self._busy = self._code is None and self._decide()
            self._escalation.apply(self._together)

    def _check_limits(self) -> None:
        if self.relay.ending is not None:
            self._end(*self.relay.ending)
        if time.monotonic() >= self._time_limit_at:
            self._time_limit_at = _NEVER
            self._end(TIMED_OUT, f"timed out after {self._job.time_limit:g} s")

    def _end(self, code: int, reason: str, number: signal.Signals = signal.SIGTERM, when: float = 0.0) -> None:
        """End the job, unless it is ending already."""
        if self._code is None:
            self._code, self._reason = code, reason
            self._escalation.begin(max(when, time.monotonic()), number)

    def _drained_at(self) -> float:
        return max((used.host.drained_at for used in self._used.values()), default=0.0)

    def _hosts_with_processes(self) -> list[Host]:
        return [used.host for used in self._used.values() if not used.host.gone]

    # The plan

    def _decide(self) -> bool:
        """Carry out what the plan decides; False if that is nothing."""
        actions = self._plan.decide(time.monotonic())
        try:
            for action in actions:
                self._do(action)
            if self._plan.finished_by is not None and self._code is None and not self._concluded:
                self._conclude(self._plan.finished_by)
        except ConfigError:
            raise
        except RondeError as error:  # the store is in this process: without it nothing goes on
            self._end(1, f"the store of the job failed: {error}")
        return bool(actions)

    def _conclude(self, number: int) -> None:
        """The program has ended on a rank: the others wait for nobody. Raises RondeError."""
        self._concluded = True
        self.relay.print(f"ronde: process {number} exited with 0: the program has ended, and no process is started now")
        if self._store is not None:
            set_bounds(self._store, 1, self._job.terms.maximum)

    def _do(self, action: Action) -> None:
        match action:
            case Open(name):
                self._open(name)
            case Close(name):
                self.relay.print(f"ronde: host {name} is not used any more")
                self._retire(name)
            case Begin(places):
                self._begin(places)
            case StartNewcomer(number, name, slot):
                self._start(name, [number], slot, max(slot + 1, self._plan.slots(name)), number + 1, joins=True)
            case Leave(numbers, reason):
                listed = ", ".join(map(str, numbers))
                self.relay.print(f"ronde: processes {listed} are to leave: {reason}")
                assert self._store is not None
                ask_to_leave(self._store, numbers, reason)
            case Send(number, kill):
                used = self._used.get(self._ranks[number].host)
                if used is not None:
                    used.host.signal_rank(number, signal.SIGKILL if kill else signal.SIGTERM)
            case Finish(success, reason, first):
                trouble = f"; {self._cause()}" if reason and self._cause() else ""
                code = 0 if success else self._code_of(first)
                delay = 0.0 if success or reason else REPORT_SECONDS
                self._finish = action
                self._end(code, reason + trouble, when=time.monotonic() + delay + LEFTOVER_SECONDS * success)

    def _cause(self) -> str:
        """The reason why there are no more hosts, as far as it is known."""
        if self._mailbox.looks_for >= FIND_SECONDS:
            return f"{self._job.discovery} has not ended for {self._mailbox.looks_for:.0f} s"
        return self._trouble

    def _open(self, name: str) -> None:
        job, found = self._job, self._found[name]
        try:
            if not self._url:
                self._serve()
            host: Host
            if found.is_here:
                host = LocalHost(
                    name,
                    self._selector,
                    self._guardian,
                    self,
                    variables=job.variables,
                    stdin=0,
                    grace=job.terms.grace,
                    has_store=True,
                )
            else:
                connection = CommandConnection(
                    job.way.command(found.address),
                    agent_commands.header(os.getcwd(), job.passed_on),
                    self._selector,
                    self._guardian,
                )
                host = RemoteHost(
                    name,
                    connection,
                    self._selector,
                    self,
                    limit=job.host_timeout,
                    grace=job.terms.grace,
                    lasting=self._lasting,
                )
            self._used[name] = _Used(host, time.monotonic() + job.start_timeout)
            host.open()
        except OSError as error:
            self._lose(name, str(error))

    def _serve(self) -> None:
        """Serve the store where other hosts reach it. Raises ConfigError, RendezvousError."""
        job = self._job
        hints = [found.name for found in self._found.values() if not found.is_here]
        interface = job.interface
        if not hints and not interface and job.discovery.changes:  # hosts elsewhere may come later
            interface = _outward_address()
        self._url, self._torch = self._keeper.serve(job.secret, interface, hints)
        self._store = self._keeper.client()
        set_bounds(self._store, job.terms.minimum, job.terms.maximum)
        self._mailbox.watch_changes(self._keeper.client(), self._on_met, self._on_change, self._on_lost_store)

    def _begin(self, places: Sequence[tuple[str, int]]) -> None:
        """Start the first world. Raises StartError."""
        self.relay.print(f"ronde: job {self._job.name} begins with {len(places)} ranks")
        self._first = len(places)
        numbered = list(enumerate(places))
        for name, group in groupby(numbered, key=lambda item: item[1][0]):
            here = list(group)
            self._start(name, [number for number, _ in here], 0, len(here), len(places), joins=False)

    def _start(
        self, name: str, numbers: Sequence[int], local_rank: int, local_size: int, size: int, *, joins: bool
    ) -> None:
        job, used = self._job, self._used.get(name)
        for number in numbers:
            rank = self._ranks[number] = Rank(number, name)
            shown = name if len(self._found) > 1 else ""
            prefix = prefix_of(number, job.width, shown) if job.prefix else b""
            folder = None if job.output_folder is None else job.output_folder / rank_folder(number, job.width)
            try:
                self.relay.add(number, prefix, rank.tail, folder)
            except OSError as error:
                raise StartError(f"cannot write {error.filename}: {error.strerror}", 1) from error
        if used is None:  # lost since the plan has decided
            return
        start = Start(
            *(job.command, numbers, size, self._url, job.name, self._torch_address(), job.secret),
            first_local=local_rank,
            local_size=local_size,
            room=self._plan.slots(name),
            joins=joins,
        )
        try:
            used.host.start(start)
        except OSError as error:
            failure = cannot_start(job.command, error)
            raise StartError(failure.text, failure.exit_code) from error

    def _torch_address(self) -> tuple[str, int]:
        """The address and port for rank 0 of torch, on the host of rank 0."""
        name = self._ranks[self._zero].host
        address, port = self._torch
        used = self._used.get(name)
        if used is not None and not self._found[name].is_here:
            facts = used.host.facts or Facts()
            address, port = facts.address or name, facts.port or port
        return torch_address((address, port), self._job.passed_on)

    # Hosts

    def _check_hosts(self) -> None:
        """Go on with hosts that are being reached, and notice those that were lost or have closed."""
        for name, used in list(self._used.items()):
            used.host.tick()
            if used.host.failure is not None:
                self._lose(name, used.host.failure.text)
            elif not used.ready:
                self._reach(name, used)
        for host, _ in self._closing:
            host.tick()
        now = time.monotonic()
        for host, until in self._closing:
            if host.closed or now >= until:
                host.close()
        self._closing = [(host, until) for host, until in self._closing if not (host.closed or now >= until)]

    def _reach(self, name: str, used: _Used) -> None:
        host, own = used.host, Facts.own()
        if host.facts is not None and not used.asked:
            used.asked = True
            if host.facts.versions != own.versions:
                self._lose(name, f"it has {host.facts.versions}, the launcher {own.versions}")
                return
            host.reach(self._url, self._job.secret)
            host.heed(self._job.notice, self._job.terms.leave_timeout, partial(self._on_preempted, name))
        if host.reached:
            used.ready = True
            self._plan.ready(name)
        elif time.monotonic() >= used.until:
            self._lose(name, f"was not reached within {self._job.start_timeout:g} s")

    def _lose(self, name: str, reason: str) -> None:
        """A host cannot be used now."""
        self.relay.print(f"ronde: host {name}: {reason}")
        for rank in self._ranks.values():
            if rank.host == name and rank.running:
                rank.lost = True
                self._failed.append(rank.rank)
                self._give_up(rank.rank)
        self._retire(name)
        self._plan.lost(name, time.monotonic())

    def _retire(self, name: str) -> None:
        """Let a host end."""
        used = self._used.pop(name, None)
        if used is not None:
            used.host.finish(self._code or 0)
            self._closing.append((used.host, time.monotonic() + FINISH_SECONDS))

    # What happens

    def _on_found(self, hosts: Sequence[Found]) -> None:
        self._trouble = ""
        names = {host.name: host.slots for host in hosts}
        found = {**self._found, **{host.name: host for host in hosts}}
        self._found = {name: host for name, host in found.items() if name in names or name in self._used}
        if names != self._named:
            self._named = names
            listed = ", ".join(f"{name}:{slots}" for name, slots in names.items())
            if self._job.discovery.changes:
                self.relay.print(f"ronde: hosts: {listed or '(none)'}")
            self._plan.found(names)

    def _on_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self.relay.print(f"ronde: {text}")

    def _on_preempted(self, name: str, reason: str) -> None:
        self._plan.drain(name, reason)

    def _on_met(self, ranks: Sequence[int]) -> None:
        self._plan.met(ranks, time.monotonic())

    def _on_change(self, change: Change) -> None:
        text = f"ronde: {len(change.members)} ranks, processes {', '.join(map(str, change.members))}"
        if change.came:
            text += f"; came: {', '.join(map(str, change.came))}"
        for number, reason in change.left.items():
            text += f"; left: {number} ({reason})"
        self.relay.print(text)
        self._failed = [number for number in self._failed if number in change.members]  # the others were replaced
        self._zero = change.members[0]
        self._plan.changed(change.members, change.left, time.monotonic(), change.lost)

    def _on_lost_store(self, text: str) -> None:
        self._end(1, f"the store of the job failed: {text}")

    def on_request(self, request: dict[str, Any]) -> dict[str, str]:
        """Answer a command, see `control`."""
        match request:
            case {"drain": str(name)}:
                try:
                    numbers = self._plan.drain(canonical(name), "ronde drain")
                except KeyError:
                    known = ", ".join(self._found) or "none"
                    raise ConfigError(f"host {name!r}: is not known; hosts: {known}") from None
                listed = (
                    f"processes {', '.join(map(str, numbers))} are to leave" if numbers else "no process runs there"
                )
                return {"text": f"host {name}: {listed}"}
            case _:
                raise ConfigError("the launcher does not know this request: another version of Ronde?")

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if self._together.pass_on(number):
                continue
            if self._code is not None and not self._hosts_with_processes():
                self._stop_at = 0.0
            elif self._interrupted:
                self._escalation.begin(time.monotonic(), signal.SIGKILL)
            else:
                self._interrupted = True
                self._finish = None
                self._code, self._reason = exit_code(-number), f"ended by {number.name}"
                self._escalation.begin(time.monotonic(), number)

    def started(self, rank: int, pid: int) -> None:
        self._ranks[rank].pid = pid

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.relay.feed(rank, stream, data)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        ended = self._ranks[rank]
        if ended.running:
            ended.status, ended.last_signal = status, last_signal
            self._give_up(rank)
            if status and last_signal in (signal.SIGTERM, signal.SIGKILL):  # the plan wanted its end, or the job ends
                if self._code is None:
                    self.relay.print(f"ronde: process {rank}: {ended.describe()}, pid {ended.pid}")
            elif status:
                self._failed.append(rank)
                if self._code is None:
                    self.relay.print(f"ronde: process {rank} failed: {ended.describe()}, pid {ended.pid}")
            self._give_up(rank)
            self._plan.ended(rank, status, time.monotonic())

    def _give_up(self, number: int) -> None:
        """A process has ended: the first world begins without it, if it has not met."""
        if self._store is not None and number < self._first:
            give_up(self._store, number, self._first)

    def answered(self, question: Question, value: int | bool) -> None:
        """No host of an elastic job is asked: the store is here."""

    def said(self, host: Host, line: bytes) -> None:
        self.relay.print(f"[{host.name}] {line.decode(errors='replace').rstrip()}")

    def lost(self, host: Host, reason: str) -> None:
        """Its `failure` says so, too."""

    # All hosts

    def _all_hosts(self) -> list[Host]:
        return [used.host for used in self._used.values()] + [host for host, _ in self._closing]

    # Report

    def _code_of(self, number: int | None) -> int:
        return 1 if number is None else self._ranks[number].exit_code

    def _report(self) -> str:
        """The report for stderr. If ranks failed, the one that failed first determines the exit code."""
        if self._reason or self._finish is None or self._finish.number is None:
            running = [rank for rank in self._ranks.values() if rank.running and rank.pid]
            return summarize(self._reason or "the job has failed", None, running, several_hosts=True)
        number = self._finish.number
        with contextlib.suppress(RondeError):
            number = int(self._keeper.ask("culprit", self._failed or [number]))
        first = self._ranks[number]
        self._code = self._code_of(number)
        ended = [self._ranks[other] for other in self._failed if not self._ranks[other].ended_by_launcher]
        return summarize("", first, ended, several_hosts=True)


def _outward_address() -> str:
    """An address of this machine that is not loopback; '' if it has none."""
    found = [ipaddress.ip_address(text) for texts in interfaces().values() for text in texts]
    return next((str(address) for address in found if not (address.is_loopback or address.is_link_local)), "")
