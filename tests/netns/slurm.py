"""A Slurm of two nodes on one machine: slurmctld and a slurmd per host of a Network, with a munged of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.collectives.launch.launcher import environment
from tests.netns.network import Network

NEEDED = ("slurmctld", "slurmd", "srun", "salloc", "sinfo", "munged")
NODES = ("alpha", "beta")
BOUND = 90.0
READY_SECONDS = 40.0
_ROOT = Path(__file__).resolve().parents[2]
_CONFIGURATION = """
ClusterName=ronde
SlurmctldHost=alpha
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
MpiDefault=none
NodeName=alpha,beta CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def obstacle() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (slurmctld, slurmd, slurm-client, munge)" if missing else None


class Slurm:
    """The cluster. A context: at its end all processes on its hosts are killed."""

    def __init__(self) -> None:
        self.network = Network(NODES)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Slurm:
        with contextlib.ExitStack() as resources:
            folder = self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="ronde-slurm-")))
            for name in ("state", *(f"spool-{node}" for node in NODES)):
                (folder / name).mkdir()
            (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder))
            (folder / "munge.key").write_bytes(secrets.token_bytes(128))
            (folder / "munge.key").chmod(0o400)
            resources.enter_context(self.network)
            resources.callback(self._kill)
            options = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
            options.append(f"--socket={folder}/munge.socket")
            self._start("alpha", "munged", "--foreground", "--force", *options)
            wait_for(folder / "munge.socket")
            self._start("alpha", "slurmctld", "-D")
            for node in NODES:
                self._start(node, "slurmd", "-D", "-N", node)
            self._wait()
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command on the first node; killed at the end."""
        with subprocess.Popen(
            self.network.hosts[NODES[0]].command("env", "-C", str(_ROOT), *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *command: str) -> tuple[int, str, str]:
        """Run a command on the first node to its end: exit code, stdout, stderr."""
        with self.running(*command) as process:
            out, err = process.communicate(timeout=BOUND)
            return process.returncode, out.decode(errors="replace"), err.decode()

    def processes(self, *words: str) -> list[int]:
        """Processes on any node whose command line ends in these words; without words all."""
        found = self.network.processes().items()
        return [pid for pid, process in found if process.words[len(process.words) - len(words) :] == list(words)]

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which Slurm's commands find this cluster."""
        return environment({"SLURM_CONF": f"{self._folder}/slurm.conf", "PYTHONPATH": str(_ROOT)})

    def _start(self, node: str, *command: str) -> None:
        host = self.network.hosts[node]
        with open(self._folder / f"{command[0]}-{node}.err", "wb") as err:
            self._processes.append(
                subprocess.Popen(
                    host.command(*command), stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=self.environment
                )
            )

    def _wait(self) -> None:
        """Wait until both nodes are idle: no event tells it."""
        until = time.monotonic() + READY_SECONDS
        while self.run("sinfo", "-h", "-o", "%T %D")[1].split() != ["idle", "2"]:
            assert time.monotonic() < until, "\n".join(path.read_text()[-2000:] for path in self._folder.glob("*.log"))
            time.sleep(0.2)

    def _kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait()


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    until = time.monotonic() + READY_SECONDS
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.05)


def salloc(nodes: int, tasks: int, command: Sequence[str]) -> list[str]:
    """A command in an allocation."""
    return ["salloc", "--quiet", f"--nodes={nodes}", f"--ntasks-per-node={tasks}", *command]
