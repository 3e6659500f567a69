"""Launchers inside launchers: one world of the right size, or an error that names both.

`python -m tests.transports.launchers.nested` prints the table, as root with the launchers of Slurm in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.collectives.launch.launcher import RONDE
from tests.netns import cluster, slurm
from tests.transports.launchers import real

PROGRAM: Final = (
    real.RANK
    + """
world = ronde.init(config={"calibrate": False, "connect_timeout": 60.0})
total = ronde.allreduce(np.full(3, world.rank + 1.0))
say(f"rank {world.rank} of {world.size} sum {total[0]:g}")
"""
)
SIZES: Final = ((1, 1), (1, 2), (2, 1), (2, 2))
"""Numbers of processes that the outer and the inner launcher start."""
BOUND: Final = 200.0

_TORCHRUN: Final = [sys.executable, "-m", "torch.distributed.run", "--no-python"]


@dataclass(frozen=True)
class Kind:
    """A launcher. `title`: a part of its name in errors; `obstacle`: why it cannot be started, None if it can."""

    name: str
    title: str
    obstacle: Callable[[], str | None]
    words: Callable[[int], list[str]]


def _without(kind: str) -> Callable[[], str | None]:
    return lambda: None if real.mpiexec(kind) else f"{kind} is not installed"


def _mpi(kind: str) -> Callable[[int], list[str]]:
    return lambda size: real.mpi_command(kind, size)


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("ronde", "ronde run", lambda: None, lambda size: [*RONDE, "run", "--no-prefix", "-np", str(size)]),
        Kind(
            "torchrun",
            "torchrun",
            lambda: None if importlib.util.find_spec("torch") else "torch is not installed",
            lambda size: [*_TORCHRUN, "--nproc-per-node", str(size)],
        ),
        Kind("openmpi", "Open MPI", _without("openmpi"), _mpi("openmpi")),
        Kind("mpich", "MPICH", _without("mpich"), _mpi("mpich")),
        Kind(
            "srun",
            "srun",
            lambda: slurm.obstacle() or cluster.obstacle(),
            lambda size: ["srun", "--overlap", "--mpi=none", "--nodes=1", "-n", str(size), "--kill-on-bad-exit=1"],
        ),
    )
}

REFUSED: Final = "Open MPI's own error"
"""The verdict where no program was started: Open MPI 4 starts none in a job of its own."""
_REFUSAL: Final = "does not support recursive calls"
Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
"""Runs a command with these variables: its exit code, and its output of both streams."""


def run_here(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a command on this machine."""
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=BOUND, check=False)
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def slurm_run() -> Iterator[Run]:
    """Run commands on the first node of a Slurm, in an allocation of both nodes."""
    with slurm.Slurm() as made:

        def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
            settings = [f"{name}={value}" for name, value in variables.items() if name.startswith(("OMPI_", "RONDE_"))]
            code, out, err = made.run(*slurm.salloc(1, 4, ["env", *settings, *command]))
            return code, out + err

        yield run


def verdict(outer: Kind, inner: Kind, sizes: tuple[int, int], run: Run) -> str:
    """The result of one nesting: 'one world of N', 'error that names both', REFUSED, or the fault, which begins with
    'FAULT'."""
    words = [*outer.words(sizes[0]), *inner.words(sizes[1]), sys.executable, "-c", PROGRAM]
    code, text = run(words, real.environment(RONDE_SECRET="5a" * 16))
    ranks = sorted(re.findall(r"rank (\d+) of (\d+) sum", text))
    size = sizes[1]
    if code == 0 and sizes[0] == 1 and ranks == [(str(rank), str(size)) for rank in range(size)]:
        return f"one world of {size}"
    named = [kind.title for kind in (outer, inner) if kind.title in text]
    both = len(named) == 2 and (outer is not inner or text.count(outer.title) > 1)
    if code != 0 and sizes[0] > 1 and both and "several copies" in text:
        return "error that names both"
    if code != 0 and not ranks and _REFUSAL in text:
        return REFUSED
    return f"FAULT: exit code {code}, ranks {ranks}\n{text}"


def table(kinds: Sequence[Kind], in_slurm: Run) -> Iterator[str]:
    """The rows of the table, as Markdown. `in_slurm` runs the nestings with srun, and those alone: inside of an
    allocation mpiexec starts its daemons by srun, one job after the other."""
    yield "| outer | inner | " + " | ".join(f"{outer} of {inner}" for outer, inner in SIZES) + " |"
    yield "|---|---|" + "---|" * len(SIZES)
    for outer in kinds:
        for inner in kinds:
            run = in_slurm if KINDS["srun"] in (outer, inner) else run_here
            cells = [verdict(outer, inner, sizes, run) for sizes in SIZES]
            yield f"| {outer.name} | {inner.name} | " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table; 1 if a cell is a fault."""
    kinds = [kind for kind in KINDS.values() if kind.obstacle() is None]
    faults = False
    with slurm_run() if KINDS["srun"] in kinds else contextlib.nullcontext(run_here) as run:
        for row in table(kinds, run):
            faults = faults or "FAULT" in row
            sys.stdout.write(row + "\n")
            sys.stdout.flush()
    return int(faults)


if __name__ == "__main__":
    sys.exit(main())
