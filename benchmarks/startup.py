"""The start of a job: from the command to the end of `init()` on the last rank, beside mpirun and one ssh per rank.

    python -m benchmarks.startup                        4 ranks here, and 2 hosts x 4 over ssh
    python -m benchmarks.startup --np 8 --hosts 0       8 ranks here
    python -m benchmarks.startup --rounds 11 --json benchmarks/results/startup.json

All contenders run in turns; the figures are medians of the rounds. The parts are those of the slowest rank:

    launch   from the command to the process of the rank
    python   until the first line of its program
    import   of Ronde and NumPy
    init     until all ranks have met and are connected

`end` is the time from then until the command has ended: the ranks leave at once.
`cpu` is what all processes of the job took, to its end, which tells more than the times where a machine has other work;
over ssh it is not known.

Over several hosts (network namespaces, so it needs root) sshd is the real one. `ssh per rank` is as horovodrun starts
ranks: one ssh for each, at once, with environment and command on its command line; the ranks meet at an address of rank
0. MPI's own start is that of a program that imports NumPy and calls MPI_Init by ctypes. mpirun is Open MPI's, that of
MPICH is mpiexec; they are found on the PATH, beside this Python, or in RONDE_TEST_MPIEXEC.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import secrets
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from frontends.command_line.bench import machine
from tests.netns import cluster, network
from tests.netns.cluster import Cluster
from tests.transports.launchers import real

RONDE = [sys.executable, "-m", "ronde", "run", "--no-prefix"]
BOUND = 180.0
PARTS = ("launch", "python", "import", "init")
_CLOCK = """
import os, time
begun = time.monotonic()
with open("/proc/self/stat", "rb") as file:
    ticks = int(file.read().rpartition(b")")[2].split()[19])
born = ticks / os.sysconf("SC_CLK_TCK") - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()
"""
_TELL = """
os.write(1, f"times {born} {begun} {imported} {met}\\n".encode())
"""
_OURS = f"""{_CLOCK}
import numpy, ronde
imported = time.monotonic()
ronde.init()
met = time.monotonic()
{_TELL}
ronde.shutdown()
"""
_MPI = f"""{_CLOCK}
import ctypes, sys, numpy
imported = time.monotonic()
mpi = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
met = time.monotonic()
{_TELL}
mpi.MPI_Finalize()
"""
_NOTHING = f"""{_CLOCK}
import numpy, ronde
imported = met = time.monotonic()
{_TELL}
"""


@dataclass(frozen=True)
class Contender:
    """A way to start ranks. `commands`: those of one job, which run at the same time."""

    name: str
    commands: Callable[[], Sequence[Sequence[str]]]


@dataclass
class Result:
    """The rounds of a contender: seconds until the last rank was ready, the parts of the slowest rank, seconds from
    then to the end of the job, and the seconds of processors that it took."""

    seconds: list[float] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(contender: Contender, size: int, result: Result) -> None:
    """One round. Raises RuntimeError if a rank says nothing."""
    # With their bytecode kept, modules load as they do for users.
    environment = {name: value for name, value in real.environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    used, begun = _used(), time.monotonic()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=real.ROOT,
                )
            )
            for command in contender.commands()
        ]
        for process in processes:
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=BOUND) for process in processes]
        ended = time.monotonic()
    lines = [line for out, _ in outputs for line in out.decode().splitlines() if line.startswith("times ")]
    if len(lines) != size:
        raise RuntimeError(f"{contender.name}: {len(lines)} of {size} ranks: {[err.decode() for _, err in outputs]}")
    ranks = sorted([float(word) for word in line.split()[1:]] for line in lines)
    slowest = max(ranks, key=lambda times: times[-1])
    result.seconds.append(slowest[-1] - begun)
    result.parts.append([after - before for before, after in zip([begun, *slowest], slowest, strict=False)])
    result.ends.append(ended - slowest[-1])
    result.cpu.append(_used() - used)


def _used() -> float:
    """Seconds of processors that children of this process took, and theirs, which have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def libmpi(mpiexec: str) -> str | None:
    """The library beside a launcher."""
    for folder in (Path(mpiexec).resolve().parents[1] / "lib", Path(mpiexec).parents[1] / "lib"):
        for name in ("libmpi.so.40", "libmpi.so.12", "libmpi.so"):
            if (folder / name).exists():
                return str(folder / name)
    return None


def mpi(kind: str, title: str, size: int, options: Sequence[str], before: Sequence[str] = ()) -> list[Contender]:
    """The contenders with an MPI launcher, if it is there: our program, and one that uses MPI."""
    path = real.mpiexec(kind)
    if path is None:
        print(f"{title}: not found", file=sys.stderr)
        return []
    many = ["--oversubscribe"] if kind == "openmpi" and not options else []
    words = [*before, path, *options, "-np", str(size), *many, sys.executable, "-c"]
    found = [Contender(f"{title}, ronde.init", lambda: [[*words, _OURS]])]
    library = libmpi(path)
    if library is not None:
        found.append(Contender(f"{title}, MPI_Init", lambda: [[*words, _MPI, library]]))
    return found


def here(size: int) -> list[Contender]:
    """The contenders on this machine."""
    python = [sys.executable, "-c"]
    return [
        Contender("ronde run", lambda: [[*RONDE, "-np", str(size), *python, _OURS]]),
        *mpi("openmpi", "mpirun", size, []),
        *mpi("mpich", "mpiexec (MPICH)", size, []),
        Contender("the imports alone", lambda: [[*python, _NOTHING]] * size),
    ]


def over_ssh(made: Cluster, each: int) -> list[Contender]:
    """The contenders over the hosts of a cluster, started on the first."""
    hosts, size = list(made.hosts.values()), each * len(made.hosts)
    first = hosts[0].command()
    exports = ["-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS"]
    listed = ",".join(f"{host.name}:{each}" for host in hosts)
    python = [sys.executable, "-c"]

    def ssh_per_rank() -> Sequence[Sequence[str]]:
        common = {"RONDE_SIZE": str(size), "RONDE_STORE": f"tcp://{hosts[0].address}:{next(ports)}"}
        common |= {"RONDE_SECRET": secrets.token_hex(32), "PYTHONPATH": str(real.ROOT), "OMP_NUM_THREADS": "1"}
        commands = []
        for rank in range(size):
            variables = [f"{name}={value}" for name, value in (common | {"RONDE_RANK": str(rank)}).items()]
            remote = shlex.join(["cd", str(real.ROOT)]) + " && " + shlex.join(["env", *variables, *python, _OURS])
            commands.append([*first, "ssh", "-T", "-o", "BatchMode=yes", hosts[rank // each].name, remote])
        return commands

    ports = iter(range(20000, 30000))
    return [
        Contender("ronde run -H", lambda: [[*first, *RONDE, "-H", listed, *python, _OURS]]),
        Contender("ssh per rank", ssh_per_rank),
        *mpi("openmpi", "mpirun", size, ["--host", listed, "--bind-to", "none", *exports], first),
        *mpi("mpich", "mpiexec (MPICH)", size, ["-hosts", listed], first),
    ]


def compare(title: str, contenders: Sequence[Contender], size: int, rounds: int, *, local: bool) -> dict[str, Result]:
    """Run all contenders in turns, and print their medians. The first round is not counted: files become cached."""
    results = {contender.name: Result() for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders:
            measure(contender, size, results[contender.name] if number else Result())
    width = max(len(name) for name in results)
    print(f"\n{title}; seconds, medians of {rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    heads = ["total", "fastest", *PARTS, "end", *(["cpu"] if local else [])]
    print(" " * width + "".join(f"{head:>9}" for head in heads))
    for name, result in results.items():
        figures = [statistics.median(result.seconds), min(result.seconds)]
        figures += [statistics.median(part) for part in zip(*result.parts, strict=True)]
        figures += [statistics.median(result.ends)]
        figures += [statistics.median(result.cpu)] if local else []
        print(f"{name:<{width}}" + "".join(f"{figure:>9.2f}" for figure in figures), flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the starts; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=4, metavar="N", help="ranks here, and of each host (default: 4)")
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="hosts with sshd (default: 2; 0: none)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args(arguments)
    found = {
        "here": compare(f"{options.np} ranks on this machine", here(options.np), options.np, options.rounds, local=True)
    }
    reason = network.obstacle() or cluster.obstacle()
    if options.hosts and reason is not None:
        print(f"\nno hosts: {reason}", file=sys.stderr)
    elif options.hosts:
        with Cluster([f"host{number}" for number in range(options.hosts)]) as made:
            title, size = f"{options.hosts} hosts x {options.np} ranks over ssh", options.hosts * options.np
            found["ssh"] = compare(title, over_ssh(made, options.np), size, options.rounds, local=False)
    if options.json is not None:
        values = {
            where: {name: dataclasses.asdict(result) for name, result in results.items()}
            for where, results in found.items()
        }
        text = json.dumps({"machine": machine(), "parts": PARTS, **values}, indent=1)
        options.json.write_text(f"{text}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
