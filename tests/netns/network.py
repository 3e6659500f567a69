"""Hosts on one machine: each has a network, a hostname and a /dev/shm of its own, and a cable to a common switch.

A host is a set of Linux namespaces (namespaces(7)), held by a process that only sleeps. They have no names: when that
process ends, and it does when its stdin closes because whoever made it has ended in whatever way, the kernel takes
the interfaces and the shared memory away with it. So nothing is left, also by a test run that was killed.

The switch is a bridge in a namespace too. The machine's own network is never touched, and the addresses exist in
these namespaces only. Faults are made at the switch's ports, where the hosts cannot see them: frames vanish without
a word, as with a broken switch or a careless firewall.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

T = TypeVar("T")

NEEDED = ("ip", "tc", "unshare", "nsenter", "mount")
CABLE = "eth0"
_LOCALHOST = "127.0.0.1 localhost\n::1 localhost\n"
_CLONE_NEWNET = 0x40000000
_FROM_HERE = ["unshare", "--net", "--mount", "--uts", "--propagation", "private"]
_HOST = """
mount -t tmpfs -o mode=1777 ronde /dev/shm && mount --bind "$1" /etc/hosts &&
echo "$0" > /proc/sys/kernel/hostname && ip link set lo up && echo ready && read -r forever
"""
_CABLES = "ip link set lo up && echo ready && read -r forever"
_SWITCH = """
ip link set lo up && ip link add bridge type bridge mcast_snooping 0 && ip link set bridge up && echo ready &&
read -r forever
"""
# Classic BPF for tc-bpf(8): "direct-action" programs return 2 to drop a frame, -1 to go on.
_DROP_ALL = "1,6 0 0 2"
_DROP_SOME = "4,32 0 0 4294963256,53 1 0 {},6 0 0 2,6 0 0 4294967295"
"""Load a random number; drop the frame if it is less than that of 32 bits given."""
_DROP_LARGE = "4,128 0 0 0,53 0 1 {},6 0 0 2,6 0 0 4294967295"
"""Load the length; drop the frame if it is not less than that given."""

_DROP_NEW = (
    "11,40 0 0 12,21 0 8 2048,48 0 0 23,21 0 6 6,40 0 0 36,21 4 0 22,48 0 0 47,84 0 0 18,21 0 1 2,"
    "6 0 0 2,6 0 0 4294967295"
)
"""Drop the frame if it is IPv4 (the type at 12), TCP (the protocol at 23), not to port 22 (at 36), and of the flags (at
47) SYN is set and ACK is not."""

_MTU = 1500
_MOST_SEGMENTS = 65535
"""The bytes that the network card may be given to cut at a time: the system's own."""

Direction = Literal["both", "to", "from"]


class _Holder:
    """Namespaces, and the process that holds them."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*_FROM_HERE, "sh", "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            _, errors = self._process.communicate()
            raise OSError(f"no namespaces here: {errors.decode().strip()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def command(self, *command: str) -> list[str]:
        """`command`, to be run in these namespaces."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "--", *command]

    def run(self, command: str, *last: str) -> str:
        """Run a command, its words followed by `last`; what it says. Raises CalledProcessError, its complaint noted."""
        try:
            words = self.command(*command.split(), *last)
            return subprocess.run(words, check=True, capture_output=True, timeout=30, text=True).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Host:
    """A host, by what tests do there."""

    name: str
    address: str
    holder: _Holder

    def command(self, *command: str) -> list[str]:
        """`command`, to be run on the host."""
        return self.holder.command(*command)

    def run(self, command: str, *last: str) -> str:
        """Run a command on the host, its words followed by `last`; what it says."""
        return self.holder.run(command, *last)

    @contextlib.contextmanager
    def renamed(self, name: str, entry: str) -> Iterator[None]:
        """Call the host `name`, and have `entry` and localhost only in its /etc/hosts, for a while."""
        with tempfile.NamedTemporaryFile("w", prefix="ronde-hosts-") as book:
            book.write(f"{_LOCALHOST}{entry}\n")
            book.flush()
            self.run(f"mount --bind {book.name} /etc/hosts")
        self._call(name)
        try:
            yield
        finally:
            self.run("umount /etc/hosts")
            self._call(self.name)

    def _call(self, name: str) -> None:
        self.run("sh -c", f"echo {name} > /proc/sys/kernel/hostname")

    def within(self, body: Callable[[], T]) -> T:
        """Call `body` in a thread that is in the host's network: sockets that it makes stay there."""
        outcome: list[tuple[T | None, BaseException | None]] = []

        def enter() -> None:
            try:
                with open(f"/proc/{self.holder.pid}/ns/net") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                outcome.append((body(), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=enter, name=f"in {self.name}")
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


@dataclass(frozen=True)
class Process:
    """A process on a host: the name of its program, and the words of its command line."""

    host: str
    name: str
    words: Sequence[str]


class Network:
    """Hosts that reach each other through a switch. A context: everything is gone after it.

    hosts  their names; each knows the others by them, as by /etc/hosts
    ipv6   hosts have IPv6 addresses, and no IPv4 but loopback
    delay  seconds that frames take to a host, or to those of `far` alone
    """

    def __init__(
        self, hosts: Sequence[str], *, ipv6: bool = False, delay: float = 0.0, far: Sequence[str] | None = None
    ) -> None:
        self._names = tuple(hosts)
        self._ipv6 = ipv6
        self._delay = delay
        self._far = frozenset(hosts if far is None else far)
        self._resources = contextlib.ExitStack()
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as resources:
            self._switch = _hold(resources, _SWITCH, "switch")
            if self._delay:
                self._cables = _hold(resources, _CABLES, "cables")
            book = resources.enter_context(tempfile.NamedTemporaryFile("w", prefix="ronde-hosts-"))
            addresses = [f"fd00:77::{n}" if self._ipv6 else f"10.77.0.{n}" for n in range(1, len(self._names) + 1)]
            book.write(_LOCALHOST)
            book.writelines(f"{address} {name}\n" for address, name in zip(addresses, self._names, strict=True))
            book.flush()
            for name, address in zip(self._names, addresses, strict=True):
                host = self.hosts[name] = Host(name, address, _hold(resources, _HOST, name, book.name))
                self.plug(host, CABLE, f"{address}/{64 if self._ipv6 else 24}", connected=True)
            if self._delay:
                resources.enter_context(self._delayed())
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def plug(self, host: Host, interface: str, address: str, *, connected: bool) -> None:
        """Give a host another interface, up, with an address. One that is not connected has a cable that leads to a
        port which is up, but no further."""
        port = f"{interface}-{host.name}"
        if self._delay and connected and host.name in self._far:
            near, far = _ends(host)
            self._switch.run(f"ip link add {port} type veth peer name {far} netns {self._cables.pid}")
            self._cables.run(f"ip link add {near} type veth peer name {interface} netns {host.holder.pid}")
            for end in (near, far):
                self._cables.run(f"ip link set {end} up")
        else:
            self._switch.run(f"ip link add {port} type veth peer name {interface} netns {host.holder.pid}")
        if connected:
            self._switch.run(f"ip link set {port} master bridge")
        self._switch.run(f"ip link set {port} up")
        self._switch.run(f"tc qdisc add dev {port} clsact")
        host.run(f"ip addr add {address} dev {interface}{' nodad' if ':' in address else ''}")
        host.run(f"ip link set {interface} up")

    @contextlib.contextmanager
    def _delayed(self) -> Iterator[None]:
        """Carry frames between the ends of all cables."""
        pairs = [":".join(_ends(host)) for host in self.hosts.values() if host.name in self._far]
        command = [sys.executable, str(Path(__file__).with_name("delay.py")), str(self._delay), *pairs]
        pipe = subprocess.PIPE
        with subprocess.Popen(self._cables.command(*command), stdin=pipe, stdout=pipe, stderr=pipe) as relay:
            assert relay.stdout is not None
            if not relay.stdout.readline():
                raise OSError(f"no delay here: {relay.communicate()[1].decode().strip()}")
            yield

    def unplug(self, host: Host, interface: str) -> None:
        """Take an interface away from a host."""
        host.run(f"ip link del {interface}")

    def processes(self) -> dict[int, Process]:
        """The processes on all hosts but those that hold them."""
        spaces = {os.stat(f"/proc/{host.holder.pid}/ns/net").st_ino: name for name, host in self.hosts.items()}
        holders = {host.holder.pid for host in self.hosts.values()}
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended
                host = spaces.get(os.stat(folder / "ns/net").st_ino)
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if host is not None and int(folder.name) not in holders:
                    found[int(folder.name)] = Process(host, (folder / "comm").read_text().strip(), words)
        return found

    # Faults. Each lasts until `heal`.

    @contextlib.contextmanager
    def healed(self) -> Iterator[None]:
        """Undo all faults at the end."""
        try:
            yield
        finally:
            self.heal()

    def drop(self, host: str, direction: Direction = "both") -> None:
        """Lose all frames to a host, from it, or both."""
        self._filter(host, direction, _DROP_ALL)

    def drop_some(self, host: str, fraction: float) -> None:
        """Lose a random part of the frames to a host and from it. They are single packets: connections that are made
        from now on send no larger ones for the network card to cut."""
        for other in self.hosts.values():
            other.run(f"ip link set {CABLE} gso_max_segs 1")
        self._filter(host, "both", _DROP_SOME.format(int(fraction * 2**32)))

    def drop_large(self, host: str, nbytes: int) -> None:
        """Lose the frames to a host and from it that have `nbytes` or more, as where the MTU is smaller on the way."""
        self._filter(host, "both", _DROP_LARGE.format(nbytes))

    def drop_new(self, host: str) -> None:
        """Lose the beginnings of connections to a host, but those to its sshd, as by a firewall. IPv4 only."""
        self._filter(host, "to", _DROP_NEW)

    def _filter(self, host: str, direction: Direction, program: str) -> None:
        for hook, of in (("egress", "to"), ("ingress", "from")):
            if direction in (of, "both"):
                self._switch.run(f"tc filter add dev {CABLE}-{host} {hook} bpf da bytecode", program)

    def slow(self, host: str, rate: str, queue: str, burst: str = "16kb") -> None:
        """Let no more than `rate` (as in tc(8): "10mbit") pass to a host and from it; frames that would stand in line
        for more than `queue` ("400ms") are lost. `burst` may pass at once after a pause."""
        limit = f"root tbf rate {rate} burst {burst} latency {queue}"
        self._switch.run(f"tc qdisc add dev {CABLE}-{host} {limit}")
        self.hosts[host].run(f"tc qdisc add dev {CABLE} {limit}")

    def narrow(self, host: str, mtu: int) -> None:
        """Let a host's interface send packets of at most `mtu` bytes."""
        self.hosts[host].run(f"ip link set {CABLE} mtu {mtu}")

    def take_down(self, host: str) -> None:
        """Switch off a host's interface, on the host."""
        self.hosts[host].run(f"ip link set {CABLE} down")

    def heal(self) -> None:
        """Undo all faults."""
        for name, host in self.hosts.items():
            port = f"{CABLE}-{name}"
            self._switch.run(f"tc filter del dev {port} ingress")
            self._switch.run(f"tc filter del dev {port} egress")
            if "tbf" in self._switch.run(f"tc qdisc show dev {port}"):
                self._switch.run(f"tc qdisc del dev {port} root")
                host.run(f"tc qdisc del dev {CABLE} root")
            host.run(f"ip link set {CABLE} up mtu {_MTU} gso_max_segs {_MOST_SEGMENTS}")

    def bytes_from(self, host: str) -> int:
        """Bytes that have come from a host on its cable, in frames of its link layer."""
        (port,) = json.loads(self._switch.run(f"ip -json -stats link show dev {CABLE}-{host}"))
        return int(port["stats64"]["rx"]["bytes"])


def _ends(host: Host) -> tuple[str, str]:
    """The interfaces in the middle of a host's cable, where frames are delayed: towards the host, and the switch."""
    return f"near-{host.name}", f"far-{host.name}"


def _hold(resources: contextlib.ExitStack, script: str, *arguments: str) -> _Holder:
    holder = _Holder(script, *arguments)
    resources.callback(holder.close)
    return holder


@functools.cache
def obstacle() -> str | None:
    """The reason why network namespaces cannot be used on this machine; None if they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)} (iproute2, util-linux)"
    try:
        with Network(["probe"]) as network:
            network.drop_some("probe", 0.5)
            network.slow("probe", "10mbit", "100ms")
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"this kernel or container refuses {' '.join(error.cmd[7:])!r}: {error.stderr.strip()}"
    return None
