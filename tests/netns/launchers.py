"""The launchers that start four ranks on two hosts: what they need, their commands, and their processes there."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.collectives.launch.launcher import RONDE
from tests.netns import cluster, slurm
from tests.netns.cluster import Cluster
from tests.netns.network import Network, Process
from tests.netns.slurm import Slurm, salloc
from tests.transports.launchers import real

NEAR, FAR = "alpha", "beta"
"""The host where the launcher is started and rank 0 runs, and the other one."""
EACH = 2
"""Ranks of a host."""
SIZE = 2 * EACH
_HOSTS = f"{NEAR}:{EACH},{FAR}:{EACH}"
_TORCHRUN = "torch.distributed.run"
_MEET = f"{NEAR}:29400"


@dataclass(frozen=True)
class Site:
    """Two hosts on which a launcher can work. `variables`: what its commands need there."""

    network: Network
    variables: Mapping[str, str]


class Launcher(Protocol):
    """A way to start ranks."""

    name: str
    title: str
    interrupts: int
    """The number of times that it wants Ctrl-C before it ends the ranks."""
    ours: bool
    """True if it is Ronde's own, whose exit codes are right or wrong."""

    def obstacle(self) -> str | None:
        """Why it cannot run on this machine; None if it can."""

    def site(self) -> contextlib.AbstractContextManager[Site]:
        """Hosts for it."""

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        """The commands to start, by host. The first is the one that a user would interrupt."""

    def is_launcher(self, process: Process) -> bool:
        """True for the process that the user has started on the near host, or what does its work."""

    def is_agent(self, process: Process) -> bool:
        """True for the process that has started the ranks of the far host."""


@contextlib.contextmanager
def _plain() -> Iterator[Site]:
    with Network([NEAR, FAR]) as network:
        yield Site(network, real.environment())


@contextlib.contextmanager
def _with_sshd() -> Iterator[Site]:
    with Cluster([NEAR, FAR]) as made:
        yield Site(made.network, real.environment())


@contextlib.contextmanager
def _with_slurm() -> Iterator[Site]:
    with Slurm() as made:
        yield Site(made.network, {**real.environment(), **made.environment})


def _has(process: Process, *words: str) -> bool:
    return all(word in process.words for word in words)


class BySsh:
    """`ronde run -H`."""

    name, title, interrupts, ours = "ssh", "`ronde run -H`, ssh", 1, True

    def obstacle(self) -> str | None:
        return cluster.obstacle()

    def site(self) -> contextlib.AbstractContextManager[Site]:
        return _with_sshd()

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        return {NEAR: [*RONDE, "run", "-H", _HOSTS, *program]}

    def is_launcher(self, process: Process) -> bool:
        return process.host == NEAR and _has(process, *RONDE, "run")

    def is_agent(self, process: Process) -> bool:
        return process.host == FAR and _has(process, "collectives.launch.agent")


class InAllocation(BySsh):
    """`ronde run` in an allocation of Slurm."""

    name, title, interrupts, ours = "slurm", "`ronde run` in Slurm", 1, False  # the exit code is salloc's

    def obstacle(self) -> str | None:
        return slurm.obstacle()

    def site(self) -> contextlib.AbstractContextManager[Site]:
        return _with_slurm()

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        return {NEAR: salloc(2, EACH, [*RONDE, "run", *program])}

    def is_launcher(self, process: Process) -> bool:
        return super().is_launcher(process) and process.words[: len(RONDE)] == RONDE  # not salloc


class BySrun:
    """The program itself under srun."""

    name, title, interrupts, ours = "srun", "srun", 2, False

    def obstacle(self) -> str | None:
        return slurm.obstacle()

    @contextlib.contextmanager
    def site(self) -> Iterator[Site]:
        with _with_slurm() as made:
            yield Site(made.network, {**made.variables, "RONDE_SECRET": secrets.token_hex(32)})

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        return {NEAR: ["srun", "--nodes=2", f"--ntasks-per-node={EACH}", *program]}

    def is_launcher(self, process: Process) -> bool:
        return process.name == "srun"

    def is_agent(self, process: Process) -> bool:
        return process.host == FAR and process.name == "slurmstepd"


class ByMpi:
    """The program itself under mpiexec."""

    interrupts, ours = 1, False

    def __init__(self, kind: str, title: str, agents: Sequence[str], options: Sequence[str]) -> None:
        self.name, self.title = kind, title
        self._agents = agents
        self._options = options

    def obstacle(self) -> str | None:
        if real.mpiexec(self.name) is None:
            return f"{self.name} is not installed: no mpiexec of it on the PATH or in RONDE_TEST_MPIEXEC"
        return cluster.obstacle()

    def site(self) -> contextlib.AbstractContextManager[Site]:
        return _with_sshd()

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        return {NEAR: [*real.mpi_command(self.name, SIZE, *self._options), *program]}

    def is_launcher(self, process: Process) -> bool:
        return process.host == NEAR and process.name in ("mpiexec", "mpiexec.hydra", "mpirun", "prterun")

    def is_agent(self, process: Process) -> bool:
        return process.host == FAR and process.name in self._agents


class ByTorchrun:
    """The program itself under torchrun, started on both hosts."""

    name, title, interrupts, ours = "torchrun", "torchrun", 1, False

    def obstacle(self) -> str | None:
        return "torch is not installed" if importlib.util.find_spec("torch") is None else None

    def site(self) -> contextlib.AbstractContextManager[Site]:
        return _plain()

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        words = [sys.executable, "-m", _TORCHRUN, "--nnodes=2", f"--nproc-per-node={EACH}", "--no-python"]
        place = [f"--master-addr={NEAR}", "--master-port=29511"]
        return {host: [*words, *place, f"--node-rank={node}", *program] for node, host in enumerate((NEAR, FAR))}

    def is_launcher(self, process: Process) -> bool:
        return process.host == NEAR and _has(process, _TORCHRUN)

    def is_agent(self, process: Process) -> bool:
        return process.host == FAR and _has(process, _TORCHRUN)


class ByHand:
    """`ronde run --meet`, started on both hosts."""

    name, title, interrupts, ours = "hand", "`ronde run --meet`, by hand", 1, True

    def obstacle(self) -> str | None:
        return None

    @contextlib.contextmanager
    def site(self) -> Iterator[Site]:
        with _plain() as made:
            yield Site(made.network, {**made.variables, "RONDE_SECRET": secrets.token_hex(32)})

    def commands(self, program: Sequence[str]) -> Mapping[str, list[str]]:
        words = [*RONDE, "run", "--nodes", "2", "--meet", _MEET, "-np", str(EACH)]
        return {host: [*words, "--node-rank", str(node), *program] for node, host in enumerate((NEAR, FAR))}

    def is_launcher(self, process: Process) -> bool:
        return process.host == NEAR and _has(process, *RONDE, "run")

    def is_agent(self, process: Process) -> bool:
        return process.host == FAR and _has(process, *RONDE, "run")


LAUNCHERS: Sequence[Launcher] = (
    BySsh(),
    InAllocation(),
    ByHand(),
    BySrun(),
    ByMpi(
        "openmpi",
        "Open MPI's mpirun",
        ["prted", "orted"],  # from version 5 on, and before
        ["--host", _HOSTS, "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS"],
    ),
    ByMpi("mpich", "MPICH's mpiexec", ["hydra_pmi_proxy"], ["-hosts", _HOSTS]),
    ByTorchrun(),
)
