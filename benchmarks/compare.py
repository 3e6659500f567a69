"""Compares Ronde with its peers: the same calls on the same arrays, in turns, every result checked.

    python benchmarks/compare.py                                  all collectives on two ranks over shared memory
    python benchmarks/compare.py allreduce --windows              on arrays that its ranks share (peers': private)
    python benchmarks/compare.py allreduce --plans                calls that Ronde plans once
    python benchmarks/compare.py allreduce --asynchronous         calls that return a handle (Communicator.*_async)
    python benchmarks/compare.py allreduce -np 2 --link tcp --max 1M
    python benchmarks/compare.py --peers --before OTHER/.venv/bin/python     another checkout of Ronde
    python benchmarks/compare.py --series benchmarks/results      the tables of docs/performance.md (3 to 15 minutes)

Every contender is a job of its own, started by its own launcher. It stays alive, and blocked between its turns. For
each collective and size the contenders take turns, in changing order, `--rounds` times. A turn is some batches of calls
back to back; its time is the median over the batches of the slowest rank's seconds per call. The table shows the peer's
time divided by Ronde's in the same round, as the median over the rounds: above 1, Ronde is faster.

The last column lists the algorithms by which Ronde ran the calls. A second table shows how steady each contender is:
the median and the 99th percentile of single calls (of the slowest rank), timed one by one at the end of the line, and
the share of rounds that took more than twice the contender's median.

Peers are installed by pip into virtual environments under --venvs at the first use. --before is an existing interpreter
that imports the other checkout's Ronde, with `ronde` in the same folder.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectives.config import Config
from collectives.execution import machine_code
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine
from frontends.command_line.measuring import progress
from frontends.command_line.plots import Curves, plot_sizes

HERE = Path(__file__).resolve().parent
WORKER = HERE / "contender.py"
COLLECTIVES = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall")
SIZES = (4, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
START_SECONDS = 120.0
TURN_LIMIT = 120.0
TURN_SECONDS = 0.02
"""Intended seconds of a turn."""
MAX_BATCHES = 20
WARM_UPS = 4
SINGLE_TURNS = 5
"""Number of turns whose calls are timed one by one."""
OURS = "ronde"


@dataclass(frozen=True)
class Contender:
    """A library over a link. `packages`: installed for it by pip. `command`: starts `np` ranks of it.
    `python`: its interpreter, if there is one already.
    """

    name: str
    library: str
    packages: tuple[str, ...]
    python: Path | None = None

    def command(self, python: Path, np: int, link: str) -> list[list[str]]:
        """The processes to start, each as a command; more than one if the library has no launcher."""
        bin_ = python.parent
        worker = [str(python), str(WORKER), self.library]
        if self.library.startswith(OURS):
            return [[str(bin_ / "ronde"), "run", "-np", str(np), "--transport", link, *worker]]
        if self.name == "openmpi":
            few = np <= (os.cpu_count() or 1)
            options = [] if few else ["--map-by", ":OVERSUBSCRIBE"]
            if link == "tcp":
                options += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
            root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            return [[str(bin_ / "mpirun"), *root, *options, "-np", str(np), *worker]]
        if self.name == "mpich":
            return [[str(bin_ / "mpiexec"), "-np", str(np), *worker]]
        return [worker] * np


PEERS = {
    "openmpi": Contender("openmpi", "mpi", ("mpi4py", "openmpi")),
    "mpich": Contender("mpich", "mpi", ("mpi4py", "mpich")),
    "gloo": Contender("gloo", "gloo", ("torch==2.13.0",)),
}
LINKS = {"shm": ("openmpi", "mpich"), "tcp": ("openmpi", "gloo")}
"""The peers that use the same kind of link."""
BEFORE = "before"
"""The name of another checkout of Ronde."""
SERIES = {
    "shm-2": [],
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


class Job:
    """The ranks of a contender, which wait for requests."""

    def __init__(self, contender: Contender, python: Path, np: int, link: str, directory: Path) -> None:
        self.name = contender.name
        self.version = ""
        self.algorithms: list[str] = []
        """The algorithms of the last turn's calls; empty if the library does not report them."""
        self.algorithm: str | None = None
        """The algorithm of Ronde's allreduces that `prepare` asks for; None for Ronde's own choice."""
        self._ranks: list[Any] = []
        self._links: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        path = directory / f"{contender.name}.socket"
        log = directory / f"{contender.name}.log"
        with socket.socket(socket.AF_UNIX) as listener, open(log, "wb") as output:
            listener.bind(str(path))
            listener.listen(np)
            listener.settimeout(1.0)
            environment = os.environ | {"OMP_NUM_THREADS": "1", "COMPARE_MEETING": f"file://{directory}/meeting-{np}"}
            for rank, command in enumerate(contender.command(python, np, link)):
                ranks = {} if contender.library != "gloo" else {"RONDE_RANK": str(rank), "RONDE_SIZE": str(np)}
                self._processes.append(
                    subprocess.Popen(
                        [*command, str(path)],
                        env=environment | ranks,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
            try:
                self._accept_ranks(listener, np)
            except BaseException:
                self.close()
                sys.stderr.write(log.read_text(errors="replace"))
                raise

    def _accept_ranks(self, listener: socket.socket, np: int) -> None:
        until = time.monotonic() + START_SECONDS
        while len(self._links) < np:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                ended = [process for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > until:
                    raise RuntimeError(f"{self.name} did not start {np} ranks; its output follows") from None
                continue
            link.settimeout(TURN_LIMIT)
            self._links.append(link)
        self._ranks = [link.makefile("rw") for link in self._links]
        self.version = self._read_answers()[0]["version"]

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Send a request to every rank and return their answers."""
        for rank in self._ranks:
            rank.write(json.dumps(request) + "\n")
            rank.flush()
        return self._read_answers()

    def _read_answers(self) -> list[dict[str, Any]]:
        lines = [rank.readline() for rank in self._ranks]
        if not all(lines):
            raise RuntimeError(f"{self.name}: a rank has ended")
        return [json.loads(line) for line in lines]

    def prepare(self, collective: str, nbytes: int) -> int:
        """Make the arrays; returns the maximum number of calls in a batch."""
        answers = self.ask(do="prepare", collective=collective, bytes=nbytes, algorithm=self.algorithm)
        return int(min(answer["longest"] for answer in answers))

    def turn(self, calls: int, batches: int) -> tuple[float, int]:
        """Seconds per call of the slowest rank, and wrong elements on all ranks."""
        answers = self.ask(do="turn", calls=calls, batches=batches)
        self.algorithms = sorted({name for answer in answers for name in answer["algorithms"]})
        return max(answer["seconds"] for answer in answers), sum(answer["wrong"] for answer in answers)

    def singles(self, calls: int, batches: int) -> list[float]:
        """Seconds of the slowest rank for each of the calls."""
        answers = self.ask(do="singles", calls=calls, batches=batches)
        return [max(seconds) for seconds in zip(*(answer["seconds"] for answer in answers), strict=True)]

    def close(self) -> None:
        """End the ranks; kill processes that do not end in time."""
        for file in [*self._ranks, *self._links]:
            with contextlib.suppress(OSError):  # the rank may have ended
                file.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclass
class Line:
    """One collective at one size. Times in seconds: contender -> round -> time. Algorithms: those used in any round, by
    contender. Percentiles: contender -> median and 99th percentile of the seconds of single calls.
    """

    collective: str
    size: int
    ranks: int
    times: dict[str, list[float]]
    wrong: int
    algorithms: dict[str, list[str]]
    percentiles: dict[str, tuple[float, float]]

    def median(self, name: str) -> float:
        return float(np.median(self.times[name]))

    def ratio(self, peer: str) -> float:
        """Median over the rounds of the peer's time divided by ours."""
        return float(np.median(np.array(self.times[peer]) / np.array(self.times[OURS])))

    def slow(self, name: str) -> float:
        """Share of the rounds that took more than twice the median."""
        return float(np.mean(np.array(self.times[name]) > 2 * self.median(name)))


def measure(jobs: Sequence[Job], collective: str, size: int, ranks: int, rounds: int) -> Line:
    """One line: warm up, then take turns."""
    longest = min(job.prepare(collective, size) for job in jobs)
    plan: dict[str, tuple[int, int]] = {}
    wrong = 0
    for job in jobs:
        calls, batches = min(longest, 3), 1
        for _ in range(WARM_UPS):  # the first calls are slow, and would give a wrong number of calls for a turn
            seconds, bad = job.turn(calls, batches)
            calls = max(1, min(longest, int(TURN_SECONDS / seconds)))
            batches = max(1, min(MAX_BATCHES, int(TURN_SECONDS / (calls * seconds))))
            wrong += bad
        plan[job.name] = calls, batches
    # The same calls for all, so that refilled arrays are equally warm in the caches.
    calls = min(calls for calls, _ in plan.values())
    times: dict[str, list[float]] = {job.name: [] for job in jobs}
    algorithms: dict[str, set[str]] = {job.name: set() for job in jobs}
    for index in range(rounds):
        shift = index % len(jobs)
        for job in [*jobs[shift:], *jobs[:shift]]:
            seconds, bad = job.turn(calls, plan[job.name][1])
            times[job.name].append(seconds)
            algorithms[job.name].update(job.algorithms)
            wrong += bad
    percentiles = {}
    for job in jobs:
        single = job.singles(max(2, calls), SINGLE_TURNS * plan[job.name][1])
        percentiles[job.name] = float(np.median(single)), float(np.percentile(single, 99))
    used = {name: sorted(mine) for name, mine in algorithms.items()}
    return Line(collective, size, ranks, times, wrong, used, percentiles)


def python_of(contender: Contender, venvs: Path) -> Path:
    """The interpreter of a contender. Its environment is made at the first use."""
    if contender.python is not None:
        return contender.python
    python = venvs / contender.name / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(contender.packages)} into {venvs / contender.name}", file=sys.stderr)
        venv.create(venvs / contender.name, with_pip=True, clear=True)
        try:
            subprocess.run([python, "-m", "pip", "install", "-q", "numpy", *contender.packages], check=True)
        except BaseException:
            shutil.rmtree(venvs / contender.name, ignore_errors=True)
            raise
    return python


@contextlib.contextmanager
def started(contenders: Sequence[Contender], venvs: Path, np: int, link: str) -> Iterator[list[Job]]:
    """The jobs of all contenders."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-compare-")))
        jobs = []
        for contender in contenders:
            jobs.append(Job(contender, python_of(contender, venvs), np, link, directory))
            stack.callback(jobs[-1].close)
        yield jobs


def size_text(size: int) -> str:
    """'64 KiB'."""
    for unit, text in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {text}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    """Three digits, in us or ms."""
    value, unit = (seconds * 1e6, "us") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:.{max(0, 2 - int(math.log10(value)) if value >= 1 else 2)}f} {unit}"


def print_table(lines: Sequence[Line], names: Sequence[str]) -> None:
    """The table of one collective."""
    peers = [name for name in names if name != OURS]
    head = f"{lines[0].collective:>15}" + "".join(f"{name:>11}" for name in names)
    print(head + "".join(f"{name + ' / ' + OURS:>18}" for name in peers) + f"{'wrong':>8}  algorithm")
    for line in lines:
        used = ", ".join(line.algorithms[OURS])
        row = f"{size_text(line.size):>15}" + "".join(f"{time_text(line.median(name)):>11}" for name in names)
        print(row + "".join(f"{line.ratio(peer):>18.2f}" for peer in peers) + f"{line.wrong:>8}  {used}")
    print(flush=True)


def print_steadiness(lines: Sequence[Line], names: Sequence[str]) -> None:
    """The second table of one collective."""
    print(f"{lines[0].collective:>15}" + "".join(f"{f'{name}: p50, p99, slow rounds':>38}" for name in names))
    for line in lines:
        row = f"{size_text(line.size):>15}"
        for name in names:
            middle, high = line.percentiles[name]
            row += f"{time_text(middle):>20}{time_text(high):>11}{line.slow(name):>7.0%}"
        print(row)
    print(flush=True)


def print_growth(lines: Sequence[Line], names: Sequence[str]) -> None:
    """Time by number of ranks."""
    print(f"{'allreduce':>15}{'ranks':>7}" + "".join(f"{name:>11}" for name in names))
    for size in GROWTH_SIZES:
        for line in sorted((line for line in lines if line.size == size), key=lambda line: line.ranks):
            times = "".join(f"{time_text(line.median(name)):>11}" for name in names)
            print(f"{size_text(size):>15}{line.ranks:>7}{times}")
    print(flush=True)


def plot(lines: Sequence[Line], names: Sequence[str], title: str, path: Path) -> None:
    """Time and bandwidth against size."""
    curves: dict[str, Curves] = {}
    for line in lines:
        for name in names:
            curves.setdefault(line.collective, {}).setdefault(name, []).append((line.size, line.median(name)))
    plot_sizes(path, title, curves)


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
    ours = Contender(OURS, "-".join([OURS, *kinds]), (), Path(sys.executable))
    contenders = [ours, *(PEERS[name] for name in names[1:])]
    if options.before is not None:
        names.append(BEFORE)
        contenders.append(dataclasses.replace(ours, name=BEFORE, python=options.before.absolute()))
    sizes = [size for size in SIZES if options.min <= size <= options.max]
    lines: list[Line] = []
    facts = machine()
    with started(contenders, options.venvs, options.np, options.link) as jobs:
        versions = {job.name: job.version for job in jobs}
        title = f"{options.np} ranks, {options.link}, {facts['cores']} x {facts['cpu']}, {facts['date']}"
        print(title)
        print("; ".join(versions.values()), end="\n\n", flush=True)
        chosen = options.collectives or COLLECTIVES
        with progress("compare", len(chosen) * len(sizes)) as done:
            for collective in chosen:
                mine = []
                for size in sizes:
                    mine.append(measure(jobs, collective, size, options.np, options.rounds))
                    done(f"{collective} {size_text(size)}")
                print_table(mine, names)
                print_steadiness(mine, names)
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
