"""`ronde doctor` for several hosts: starts a probe on each, checks them, and prints what was found."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Final

from collectives.config import Config
from collectives.launch.hosts import Srun, Ssh, agent_header, folder_here
from collectives.launch.job import NamedHost, allocated
from collectives.launch.processes import Guardian, exit_code, passed_on
from frontends.command_line.doctor import report
from frontends.command_line.doctor.check import Findings, HostFinding, HostProbe, check
from frontends.command_line.doctor.probes import (
    MODULE,
    ProbeByCommand,
    ProbeByStore,
    ProbeHere,
    answer_by_store,
    probe_of_rank,
)
from transports import launchers
from transports.errors import ConfigError, RondeError
from transports.store import Store

MEET_SECONDS: Final = 10.0
"""Time for the ranks of a launcher to find each other."""

FACTS_SECONDS: Final = 5.0
"""Time for a rank to answer for the first time."""

MOST_AT_ONCE: Final = 256
"""Number of hosts that are asked at the same time."""

INTERFACE: Final = "RONDE_TCP_INTERFACE"


def check_hosts(hosts: Sequence[NamedHost], way: Ssh | Srun, *, interface: str, start_seconds: float) -> Findings:
    """Check hosts on which a command starts the probes; on this host no command is needed.

    Raises ConfigError for a bad setting. All commands have ended when this returns or raises.
    """
    Config.load()
    header = agent_header(folder_here(), passed_on(os.environ, {}), MODULE)
    probes: list[HostProbe] = []
    commands: list[ProbeByCommand] = []
    with _Interrupts() as interrupts, contextlib.ExitStack() as stack:
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        guardian.start()
        for host in hosts:
            if host.is_here:
                probe: ProbeHere | ProbeByCommand = ProbeHere(host.name)
            else:
                command = way.command(host.address)
                try:
                    probe = ProbeByCommand(host.name, command, header, guardian)
                except OSError as error:
                    raise ConfigError(f"{command[0]}: cannot be started: {error.strerror}") from error
                commands.append(probe)
            stack.callback(probe.close)
            probes.append(probe)
        pool = stack.enter_context(_pool(len(probes)))
        try:
            with interrupts.heard():
                findings = check(probes, pool, interface=interface, start_seconds=start_seconds)
        except BaseException:
            for started in commands:
                started.kill()  # so that the threads end that wait for an answer
            raise
        for started in commands:
            started.end()
        return findings


class _Interrupts:
    """Holds Ctrl-C back but for the body of `heard`: a command must not start without somebody who ends it."""

    def __init__(self) -> None:
        self._held = True
        self._came = False

    def __enter__(self) -> _Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # by nohup or `&`
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Let KeyboardInterrupt be raised in the body; at once if Ctrl-C has come before."""
        self._held = False
        try:
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._held = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._came = True


def check_ranks(environment: Mapping[str, str], *, interface: str) -> Findings | None:
    """Check the hosts of the ranks that a launcher has started, one probe for each host. To be called on every rank.

    Returns the findings on rank 0, and None on the others. Raises ConfigError if no launcher has started this process
    or its ranks cannot meet, RendezvousError or DeadlineExceeded if they do not.
    """
    launch = launchers.find(environment)
    if launch is None:
        raise ConfigError(
            "--cluster: no launcher has started this process as a rank; name the hosts by -H or --hostfile"
        )
    deadline = time.monotonic() + MEET_SECONDS
    with contextlib.ExitStack() as resources:
        store, _ = launchers.meet(
            launch,
            history=launchers.History(),
            interface=interface,
            deadline=deadline,
            tls=Config.load().load_tls(),
            resources=resources,
        )
        if launch.rank:
            answer_by_store(launch.rank, store)
            return None
        return _check_from_rank_0(launch.size, store, interface)


def _check_from_rank_0(size: int, store: Store, interface: str) -> Findings:
    """Ask all ranks where they are, and check their hosts by the first rank of each."""
    with contextlib.ExitStack() as stack:
        here = ProbeHere("rank 0", probe_of_rank(store))
        stack.callback(here.close)
        probes: list[ProbeHere | ProbeByStore] = [here]
        for rank in range(1, size):
            probes.append(ProbeByStore(f"rank {rank}", rank, store))
            stack.callback(probes[-1].close)
        pool = stack.enter_context(_pool(size))
        facts = list(pool.map(_facts, probes))
        told = {found["identity"]: found["hostname"] for found in facts if not isinstance(found, str)}
        names = Counter(told.values())
        chosen: dict[str, HostProbe] = {}
        silent = []
        for rank, (probe, found) in enumerate(zip(probes, facts, strict=True)):
            if isinstance(found, str):
                silent.append(HostFinding(f"rank {rank}", found))
            elif found["identity"] not in chosen:
                alone = names[found["hostname"]] == 1
                probe.name = found["hostname"] if alone else f"{found['hostname']} (rank {rank})"
                chosen[found["identity"]] = probe
        findings = check(list(chosen.values()), pool, interface=interface, start_seconds=FACTS_SECONDS)
        findings.hosts += silent
        return findings


def _pool(count: int) -> ThreadPoolExecutor:
    """Threads for this number of hosts."""
    return ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, count)), "ronde-doctor")


def _facts(probe: HostProbe) -> dict[str, Any] | str:
    """The facts of a rank's host, or why there are none."""
    try:
        facts: dict[str, Any] = probe.ask("facts", seconds=FACTS_SECONDS)
    except RondeError as error:
        return f"the rank does not answer: {error}"
    return facts


def main(args: argparse.Namespace, hosts: Sequence[NamedHost] | None) -> int:
    """Check the named hosts, those of the allocation, or those of the launcher's ranks; the exit code."""
    interface = args.network_interface or os.environ.get(INTERFACE, "")
    way: Ssh | Srun = Ssh(args.ssh_port, args.ssh_identity_file)
    if hosts is None and launchers.find(os.environ) is None:
        hosts, way = allocated(os.environ), Srun()
    try:
        if hosts is not None:
            findings: Findings | None = check_hosts(hosts, way, interface=interface, start_seconds=args.start_timeout)
        else:
            findings = check_ranks(os.environ, interface=interface)
    except KeyboardInterrupt:
        return exit_code(-signal.SIGINT)
    if findings is None:
        return 0
    wrong = report.problems(findings)
    if args.json:
        shown = dataclasses.asdict(findings) | {"warnings": report.warnings(findings), "problems": wrong}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        sys.stdout.write(report.render(findings))
    return 1 if wrong else 0
