"""Ways to find the hosts of an elastic job, which come and go. Each answers with all hosts of this moment."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectives.launch.job.host_list import NamedHost, one_here, parse_file, parse_list, tasks_per_node
from collectives.launch.processes import describe_status, signal_group, start_script
from transports import launchers, names
from transports.errors import ConfigError
from transports.interfaces import canonical

COMMAND_SECONDS: Final = 30.0
"""Time for a script, or for scontrol, to name the hosts."""

MARK: Final = "RONDE_DISCOVERY"
"""Variable with the process of the launcher, by which a command that still runs when the job ends is found."""

_ENDED: Final = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""States of a job of Slurm that has its nodes no more. salloc does not end the launcher then."""

_MAX_OUTPUT: Final = 1 << 20
_PIPE_BYTES: Final = 1 << 16
_SHOWN: Final = 300


class DiscoveryError(Exception):
    """The hosts could not be found this time. Those of the last time stay, and it is tried again."""


class AllocationEnded(Exception):
    """The hosts belong to this job no more, and none will come."""


@dataclass(frozen=True)
class Discovery:
    """A way to find hosts. Its text names it for a message.

    find     the hosts now. It may take up to COMMAND_SECONDS. Raises DiscoveryError, AllocationEnded
    changes  False if the hosts are always the same
    """

    text: str
    find: Callable[[], Sequence[NamedHost]]
    changes: bool = True

    def __str__(self) -> str:
        return self.text


def fixed(hosts: Sequence[NamedHost]) -> Discovery:
    """Always the same hosts."""
    return Discovery("a fixed list of hosts", lambda: hosts, changes=False)


def script(command: str, slots: int) -> Discovery:
    """A command that prints a host in each line, as 'NAME' or 'NAME:SLOTS', as horovodrun has it. No shell reads it. A
    host without a number has `slots`, and one with 0 is not used. Raises ConfigError if it can never be started."""
    where = f"--host-discovery-script {command}"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--host-discovery-script {command!r}: {error}") from error
    if not words or not os.access(words[0], os.X_OK) or Path(words[0]).is_dir():
        raise ConfigError(f"--host-discovery-script {command!r}: must be the path of an executable file")

    def find() -> Sequence[NamedHost]:
        hosts = []
        for number, line in enumerate(_output(words, where).splitlines(), 1):
            if named := line.partition("#")[0].strip():
                hosts += _parsed(named, f"{where}, line {number} of its output", slots)
        return _once(hosts, where)

    return Discovery(where, find)


def host_file(path: Path, slots: int) -> Discovery:
    """A host file that is read again each time. A host without a number has `slots`. Raises ConfigError if there is no
    such file now."""
    where = f"--hostfile {path}"
    if path.is_dir() or not os.access(path, os.R_OK):
        raise ConfigError(f"{where}: must be a file that can be read")

    def find() -> Sequence[NamedHost]:
        try:
            return _usable(parse_file(path.read_text("utf-8-sig"), str(path), slots, least=0))
        except (OSError, UnicodeError) as error:
            raise DiscoveryError(f"{where}: cannot be read: {error}") from error
        except ConfigError as error:
            raise DiscoveryError(str(error)) from error

    return Discovery(where, find)


def dns(name: str, slots: int) -> Discovery:
    """The addresses behind a name, such as that of a headless service of Kubernetes: one host for each."""
    where = f"--discover-dns {name}"

    def find() -> Sequence[NamedHost]:
        try:
            found = names.resolve(name, None, socket.SOCK_STREAM, time.monotonic() + COMMAND_SECONDS)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
            raise DiscoveryError(f"{where}: cannot be resolved: {error}") from error
        addresses = sorted({str(target[0]) for *_, target in found})
        hosts = [NamedHost(address, canonical(address), slots) for address in addresses]
        here = [host for host in hosts if host.is_here]
        return [host for host in hosts if host not in here[1:]]  # one host may have several addresses

    return Discovery(where, find)


def slurm_job(environment: Mapping[str, str], hosts: Sequence[NamedHost], slots: int | None) -> Discovery:
    """The nodes of the allocation that this process is in, which `scontrol update job` makes larger or smaller.

    hosts  the nodes at the start
    slots  of each node; None: those of the start, and for others as many as the first has
    """
    job = environment["SLURM_JOB_ID"]
    where = f"scontrol show job {job}"
    tasks = {} if slots is not None else {host.name: host.slots for host in hosts}
    usual = tasks_per_node(environment.get("SLURM_TASKS_PER_NODE", "1"))[0] if slots is None else slots

    def find() -> Sequence[NamedHost]:
        text = _output(["scontrol", "--oneliner", "show", "job", job], where)
        state = re.search(r"(?:^|\s)JobState=(\w+)", text)
        if state is not None and state[1] in _ENDED:
            raise AllocationEnded(f"the allocation has ended: {where}: JobState={state[1]}")
        found = re.search(r"(?:^|\s)NodeList=(\S+)", text)
        if found is None or found[1] == "(null)":
            raise DiscoveryError(f"{where}: names no nodes: {_shown(text)}")
        try:
            nodes = launchers.expand(found[1], where)
        except ConfigError as error:
            raise DiscoveryError(str(error)) from error
        return [NamedHost(node, node, tasks.get(node, usual)) for node in nodes]

    return Discovery(where, find)


def discovery_mark() -> frozenset[bytes]:
    """The mark of the commands that this process starts to find hosts, as the guardian knows it."""
    return frozenset([f"{MARK}={os.getpid()}".encode()])


def _output(command: Sequence[str], where: str) -> str:
    """The output of a command. Everything that it has started is ended if it takes too long."""

    def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, MARK: str(os.getpid())},
        )

    try:
        process = start_script(command, start)
    except OSError as error:
        raise DiscoveryError(f"{where}: cannot be started: {error.strerror}") from error
    with process:
        try:
            out, err = _words(process, time.monotonic() + COMMAND_SECONDS)
        except TimeoutError as error:
            raise DiscoveryError(f"{where}: did not end within {COMMAND_SECONDS:g} s") from error
        finally:
            signal_group(process.pid, signal.SIGKILL)
    if max(len(out), len(err)) > _MAX_OUTPUT:
        raise DiscoveryError(f"{where}: printed more than {_MAX_OUTPUT} bytes")
    if process.returncode:
        status = describe_status(process.returncode)
        raise DiscoveryError(f"{where}: {status}: {_shown(err.decode(errors='replace'))}")
    return out.decode("utf-8-sig", errors="replace")


def _words(process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes]:
    """The output of a process, stdout and stderr: up to its end, beyond which a child may have them open, or more than
    `_MAX_OUTPUT` bytes. Raises TimeoutError."""
    assert process.stdout is not None
    assert process.stderr is not None
    read, write = os.pipe()
    ends = threading.Thread(target=_await_end, args=(process, write), name="ronde-discovery-end", daemon=True)
    ends.start()
    words = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with open(read, "rb"), selectors.DefaultSelector() as selector:
        for descriptor in (read, *words):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        ended = False
        while not ended and max(map(len, words.values())) <= _MAX_OUTPUT:
            ready = [key.fd for key, _ in selector.select(max(0.0, until - time.monotonic()))]
            ended = read in ready  # then all that it has written can be read
            if not ended and time.monotonic() >= until:
                raise TimeoutError
            for descriptor in words if ended else ready:
                if descriptor in selector.get_map() and not _take(descriptor, words[descriptor], to_end=ended):
                    selector.unregister(descriptor)
    out, err = (bytes(found) for found in words.values())
    return out, err


def _await_end(process: subprocess.Popen[bytes], write: int) -> None:
    """Close a descriptor when a process has ended."""
    try:
        process.wait()
    finally:
        os.close(write)


def _take(descriptor: int, words: bytearray, *, to_end: bool) -> bool:
    """Read what there is; `to_end`: until there is nothing more. False if nobody can write any more, or after too much
    output."""
    while len(words) <= _MAX_OUTPUT:
        try:
            data = os.read(descriptor, _PIPE_BYTES)
        except BlockingIOError:
            return True
        words += data
        if not data:
            return False
        if not to_end:
            return True
    return False


def _parsed(word: str, where: str, slots: int) -> list[NamedHost]:
    try:
        return parse_list(word, slots, where=where, least=0)
    except ConfigError as error:
        raise DiscoveryError(str(error)) from error


def _usable(hosts: Sequence[NamedHost]) -> Sequence[NamedHost]:
    """Those that have a slot: one without is to be left."""
    return [host for host in hosts if host.slots]


def _once(hosts: Sequence[NamedHost], where: str) -> Sequence[NamedHost]:
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise DiscoveryError(f"{where}: names host {name!r} twice")
    return _usable(one_here(hosts))


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return words[-_SHOWN:] or "(it printed nothing)"
