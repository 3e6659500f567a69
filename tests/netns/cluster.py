"""Hosts with an sshd each, as a cluster has them: keys are known, and nothing needs to be asked.

The folder /etc/ssh of every host is one of the test's own, so that neither the machine's configuration nor that of the
user matters. sshd runs in the foreground, and everything is gone when it and the hosts' namespaces are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.collectives.launch.launcher import RONDE, environment
from tests.netns.network import Host, Network

SSHD = "/usr/sbin/sshd"
_ROOT = Path(__file__).resolve().parents[2]
_SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication yes
PermitRootLogin prohibit-password
PidFile none
LogLevel DEBUG1
"""
_CLIENT = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
"""
BOUND = 90.0
"""Seconds after which a test fails; normal runs take far less."""
NOTICE = 15.0
"""Seconds within which what is wrong with a host must be said, on a machine that is not loaded."""
LOADED = 3.0
"""Factor for a machine that has other things to do."""


def obstacle() -> str | None:
    """Why no sshd can run here; None if it can."""
    missing = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (openssh-server, openssh-client)" if missing else None


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """The body must take no longer than NOTICE."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took < NOTICE * (LOADED if os.getloadavg()[0] > os.cpu_count() else 1.0), f"it took {took:.1f} s"


class Cluster:
    """A network whose hosts run sshd. A context.

    hosts   their names
    folder  keys and configurations, which are /etc/ssh on every host, and the logs of sshd
    """

    def __init__(self, hosts: Sequence[str], *, ipv6: bool = False) -> None:
        self.network = Network(hosts, ipv6=ipv6)
        self._resources = contextlib.ExitStack()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as resources:
            self.folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="ronde-ssh-")))
            for key in ("host_key", "user_key"):
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
                subprocess.run(command, check=True, capture_output=True, timeout=30)
            (self.folder / "sshd_config").write_text(_SERVER.format(folder=self.folder))
            (self.folder / "ssh_config").write_text(_CLIENT.format(folder=self.folder))
            resources.enter_context(self.network)
            self.know(*[name for host in self.hosts.values() for name in (host.name, host.address)])
            for host in self.hosts.values():
                host.run(f"mount --bind {self.folder} /etc/ssh")
                host.run("mount -t tmpfs ronde /run")
                host.run("mkdir -m 755 /run/sshd")
                self._servers[host.name] = resources.enter_context(self._serve(host))
            for host in self.hosts.values():
                _wait_for_sshd(host)
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def hosts(self) -> Mapping[str, Host]:
        return self.network.hosts

    def know(self, *names: str) -> None:
        """Make these the hosts whose keys are known to ssh."""
        key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text("".join(f"{name} {key}" for name in names))

    @contextlib.contextmanager
    def changed(self, host: str, path: str, text: str) -> Iterator[None]:
        """Replace the contents of a file on a host, for a while."""
        with tempfile.NamedTemporaryFile("w", prefix="ronde-file-") as file:
            file.write(text)
            file.flush()
            self.hosts[host].run(f"mount --bind {file.name} {path}")
            try:
                yield
            finally:
                self.hosts[host].run(f"umount {path}")

    def command(self, host: str, *arguments: str, command: str = "run", folder: Path = _ROOT) -> list[str]:
        """`ronde run`, or another command, with these arguments, on a host, in a working directory. It heeds SIGINT,
        also where the tests run in the background of a shell, which ignores it."""
        return self.hosts[host].command("env", "--default-signal=INT", "-C", str(folder), *RONDE, command, *arguments)

    @contextlib.contextmanager
    def running(
        self,
        host: str,
        *arguments: str,
        command: str = "run",
        variables: Mapping[str, str] | None = None,
        words: IO[bytes] | int = subprocess.PIPE,
        folder: Path = _ROOT,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Such a command while it runs; killed at the end. `words`: where its output and its complaints go."""
        with subprocess.Popen(
            self.command(host, *arguments, command=command, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            env=environment({"PYTHONPATH": str(_ROOT), **(variables or {})}),
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ronde(self, host: str, *arguments: str, command: str = "run") -> tuple[int, str, str]:
        """Run `ronde run`, or another command, on a host to its end: exit code, stdout, stderr."""
        with self.running(host, *arguments, command=command) as process:
            out, err = process.communicate(timeout=BOUND)
            return process.returncode, out.decode(), err.decode()

    def log(self, host: str) -> Path:
        """The log of a host's sshd."""
        return self.folder / f"sshd-{host}.log"

    def processes(self, word: str) -> list[int]:
        """Processes on any host whose command line has `word`."""
        return [pid for pid, process in self.network.processes().items() if word in "\0".join(process.words)]

    @contextlib.contextmanager
    def _serve(self, host: Host) -> Iterator[subprocess.Popen[bytes]]:
        command = host.command(SSHD, "-D", "-E", str(self.log(host.name)), "-f", "/etc/ssh/sshd_config")
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as server:
            try:
                yield server
            finally:
                server.kill()


def _wait_for_sshd(host: Host) -> None:
    """Wait until it listens: no event announces it. It is not asked, since it would complain of who says nothing."""
    until = time.monotonic() + BOUND
    while not host.run("ss -Hltn sport = :22"):
        assert time.monotonic() < until, f"no sshd on {host.name}"
        time.sleep(0.02)
