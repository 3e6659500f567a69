"""`ronde bench`: time collectives and check every result, in the columns of nccl-tests."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from collectives.algorithms import algorithms
from collectives.arrays import UFUNCS, Array, check_dtype, check_op, named_dtype
from collectives.communicator import Communicator
from collectives.config import Config
from collectives.gpu import cuda
from frontends.command_line.arguments import (
    add_sizes,
    check_use,
    count,
    output_file,
    positive,
    sizes_of,
    whole,
    writing,
)
from frontends.command_line.beside import COLLECTIVES as BESIDE
from frontends.command_line.beside import (
    LIBRARIES,
    OURS,
    Contender,
    contender_here,
    plot,
    started,
    steadiness,
    table,
)
from frontends.command_line.beside import measure as measure_line
from frontends.command_line.measuring import add_ranks, measure_on_ranks, no_progress, progress, size_of
from frontends.command_line.plots import add_plot, plot_sizes
from transports.core_count import usable_cores
from transports.errors import RondeError

COLLECTIVES: Final = (
    "allreduce",
    "allgather",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
)
DESCRIPTION: Final = "Time collectives and check every result. The columns are those of nccl-tests."
EXAMPLES: Final = """\
examples:
  ronde bench -np 2                                  allreduce, 4 B to 16 MiB, on the configured transport
  ronde bench allgather -np 4 --transport tcp
  ronde bench --min 1M --max 64M --json out.json     results with machine and versions, as JSON
  ronde bench -np 8 --device cuda                    arrays on GPUs, one GPU per rank if there are enough
  ronde bench -H h1:4,h2:4                           on two hosts, as ronde run starts ranks there
  mpirun -np 4 ronde bench                           on the ranks of another launcher; rank 0 prints
  ronde bench --beside mpi4py --plot out.svg         the MPI of this environment and Ronde in turns; or gloo (torch)

time: the median over the repeats, of the slowest rank. algbw = size / time. busbw:
algbw times the share of the data that the busiest link must carry, 2(n-1)/n for allreduce, (n-1)/n for allgather,
gather, scatter, reduce_scatter and alltoall, 1 for the others. #wrong: wrong elements on all ranks; exit status 1 if
there are any. On GPUs, events around several calls in a row measure the time. "bare" is the time of the transport's own
allreduce (NCCL) alone.

--beside: both are started as jobs of their own, by their own launchers, and take turns with the same calls on the same
arrays of float32; every result is checked. The last column but two is the other library's time divided by Ronde's in
the same round, as the median over the rounds: above 1, Ronde is faster. Gloo has sockets alone: give --transport tcp
to compare it over TCP.
"""


_IN_A_ROW: Final = 10
"""Calls that are timed together on a GPU, since the GPU runs them asynchronously."""
_LEAST_CALLS: Final = 3
_MOST_CALLS: Final = 20000
_ROUNDS: Final = 21


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments of one `ronde bench`."""

    collective: str
    sizes: tuple[int, ...]
    dtype: str
    op: str
    root: int
    algorithm: str | None
    seconds: float
    warmup: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times in microseconds, bandwidths in GB/s."""

    size: int
    count: int
    dtype: str
    op: str
    root: int
    time: float
    algbw: float
    busbw: float
    wrong: int
    inplace_time: float
    inplace_algbw: float
    inplace_busbw: float
    inplace_wrong: int
    bare_time: float | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument(
        "collective", nargs="?", default="allreduce", choices=COLLECTIVES, help="the collective (default: allreduce)"
    )
    add_ranks(parser)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device of the arrays (default: cpu)")
    add_sizes(parser, "4", "16M")
    parser.add_argument("--dtype", type=_dtype, default="float32", help="NumPy dtype, or bfloat16 (default: float32)")
    parser.add_argument("--op", default="sum", choices=tuple(UFUNCS), help="reduction (default: sum)")
    parser.add_argument("--root", type=whole, default=0, metavar="R", help="root of rooted collectives (default: 0)")
    parser.add_argument("--algorithm", help="name of the algorithm (default: Ronde's choice)")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=0.2,
        metavar="S",
        help="seconds of measuring for each size, out of place and in place; 3 calls at least (default: 0.2)",
    )
    parser.add_argument(
        "--warmup",
        type=whole,
        default=5,
        metavar="N",
        help="calls before the timed ones, and for --seconds at most (default: 5)",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--beside", choices=LIBRARIES, help="compare with this library of this environment, in turns")
    parser.add_argument(
        "--rounds", type=count, metavar="N", help=f"with --beside: turns of each for a size (default: {_ROUNDS})"
    )
    add_plot(parser)


def _dtype(text: str) -> np.dtype[Any]:
    """A dtype that can be communicated, for argparse."""
    try:
        dtype = named_dtype(text)
        check_dtype(dtype, repr(text))
    except (TypeError, ModuleNotFoundError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return dtype


def main(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit status."""
    try:
        return _main(arguments)
    except (TypeError, ValueError) as error:  # an argument that only the runtime can check
        if isinstance(error, RondeError):
            raise
        print(f"ronde bench: error: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _main(arguments: argparse.Namespace) -> int:
    check_op(arguments.op, arguments.dtype)
    known, ranks = algorithms(arguments.collective), size_of(arguments)
    if arguments.algorithm is not None and arguments.algorithm not in known:
        text = f"for {arguments.collective} it must be one of {', '.join(known)}"
        arguments.parser.error(f"--algorithm {arguments.algorithm}: {text}")
    if arguments.root >= ranks:
        arguments.parser.error(f"--root {arguments.root}: must be a rank, 0 to {ranks - 1}")
    check_use(arguments, "--rounds", arguments.rounds, "--beside", arguments.beside)
    if arguments.beside is not None:
        return _compare(arguments, ranks)
    task = Task(
        arguments.collective,
        sizes_of(arguments),
        arguments.dtype.name,
        arguments.op,
        arguments.root,
        arguments.algorithm,
        arguments.seconds,
        arguments.warmup,
        arguments.device,
    )
    measured = measure_on_ranks(measure, task, arguments)
    if isinstance(measured, int):
        return measured
    rows = measured.value
    if arguments.json is not None and measured.first:
        transport = Config.load({"transport": arguments.transport} if arguments.transport else {}).transport
        about = machine() | (cuda().facts() if arguments.device == "cuda" else {})
        report = {"task": asdict(task), "ranks": measured.size, "transport": transport, "machine": about}
        with writing(arguments.json, "--json"):
            arguments.json.write_text(json.dumps(report | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if arguments.plot is not None and measured.first:
        times = {
            "out of place": [(row.size, row.time / 1e6) for row in rows],
            "in place": [(row.size, row.inplace_time / 1e6) for row in rows],
        }
        plot_sizes(arguments.plot, f"ronde bench, {measured.size} ranks", {task.collective: times})
    return 1 if any(row.wrong or row.inplace_wrong for row in rows) else 0


def _compare(arguments: argparse.Namespace, ranks: int) -> int:
    """`ronde bench --beside`."""
    usual = arguments.parser.parse_args([])
    for name in ("device", "dtype", "op", "root", "algorithm", "hosts", "hostfile"):
        if getattr(arguments, name) != getattr(usual, name):
            arguments.parser.error(f"--{name}: is not for --beside")
    if arguments.collective not in BESIDE:
        arguments.parser.error(f"{arguments.collective}: with --beside it must be one of {', '.join(BESIDE)}")
    if ranks < 2:
        arguments.parser.error(f"-np {ranks}: must be 2 or more with --beside")
    sizes, rounds = sizes_of(arguments), arguments.rounds or _ROUNDS
    transport = Config.load({"transport": arguments.transport} if arguments.transport else {}).transport
    contenders = [Contender(OURS, OURS, Path(sys.executable)), contender_here(arguments.beside)]
    names, lines = [contender.name for contender in contenders], []
    with started(contenders, ranks, transport) as jobs:
        versions = {job.name: job.version for job in jobs}
        print("; ".join(versions.values()), flush=True)  # noqa: T201
        with progress("bench", len(sizes)) as done:
            for size in sizes:
                lines.append(measure_line(jobs, arguments.collective, size, ranks, rounds))
                done(f"{size} bytes")
    print(table(lines, names), flush=True)  # noqa: T201
    print(steadiness(lines, names), flush=True)  # noqa: T201
    if arguments.json is not None:
        report = {"machine": machine(), "ranks": ranks, "transport": transport, "versions": versions}
        report["lines"] = [asdict(line) for line in lines]
        with writing(arguments.json, "--json"):
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot is not None:
        plot(lines, names, f"{ranks} ranks, {transport}", arguments.plot)
    return 1 if any(line.wrong for line in lines) else 0


def machine() -> dict[str, Any]:
    """Return the facts of the machine that results depend on."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def measure(task: Task) -> list[Row]:
    """Measure all sizes on every rank of the world; rank 0 prints the table as it goes."""
    from collectives.world_communicator import world

    comm = world()
    where = device(task.device, comm)
    if comm.rank == 0:
        _print_head(task, comm)
    rows = []
    with progress("bench", len(task.sizes)) if comm.rank == 0 else contextlib.nullcontext(no_progress) as done:
        for size in task.sizes:
            row = _measure_size(task, comm, where, size)
            rows.append(row)
            if comm.rank == 0:
                print(_line(row), flush=True)  # noqa: T201
            done(f"{size} bytes")
    if comm.rank == 0:
        wrong = sum(row.wrong + row.inplace_wrong for row in rows)
        busbw = sum(row.busbw + row.inplace_busbw for row in rows) / (2 * len(rows))
        print(f"# wrong elements: {wrong}    average busbw: {busbw:.2f} GB/s", flush=True)  # noqa: T201
    return rows


def _measure_size(task: Task, comm: Communicator, where: Device, size: int) -> Row:
    dtype = np.dtype(task.dtype)
    count = max(1, size // dtype.itemsize)
    if task.collective not in ("allreduce", "broadcast", "reduce"):
        count = max(comm.size, count // comm.size * comm.size)
    case = _Case(task, comm, where, count, dtype)
    results = []
    for inplace in (False, True):
        seconds = _median_time(task, comm, where, case.call(inplace))
        wrong = int(comm.allreduce(np.array(case.wrong(inplace), np.int64)))
        algbw = count * dtype.itemsize / seconds / 1e9
        results.append((seconds * 1e6, algbw, algbw * bus_factor(task.collective, comm.size), wrong))
    bare = case.bare() if task.collective == "allreduce" else None
    bare_time = None if bare is None else 1e6 * _median_time(task, comm, where, bare)
    return Row(count * dtype.itemsize, count, dtype.name, task.op, task.root, *results[0], *results[1], bare_time)


def bus_factor(collective: str, size: int) -> float:
    """Return busbw / algbw, as nccl-tests defines it (its doc/PERFORMANCE.md)."""
    if collective == "allreduce":
        return 2 * (size - 1) / size
    if collective in ("allgather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return (size - 1) / size
    return 1.0


class _Case:
    """The arrays of one line and the expected result. They hold small whole numbers, so that every sum is exact."""

    def __init__(self, task: Task, comm: Communicator, where: Device, count: int, dtype: np.dtype[Any]) -> None:
        self._task, self._comm, self._where = task, comm, where
        pattern = np.arange(count) % 3 + 1
        whole = [((pattern + rank) % 4).astype(dtype) for rank in range(comm.size)]
        part = count // comm.size
        name, rank, here = task.collective, comm.rank, comm.rank == task.root
        mine = slice(rank * part, (rank + 1) * part)
        if name in ("allreduce", "reduce", "reduce_scatter"):
            total = _combine(task.op, whole)
            x = whole[rank]
            self.expected = total[mine] if name == "reduce_scatter" else total if name == "allreduce" or here else None
        elif name in ("allgather", "gather"):
            x = whole[rank][:part]
            self.expected = np.concatenate([w[:part] for w in whole]) if name == "allgather" or here else None
        elif name == "alltoall":
            x = whole[rank]
            self.expected = np.concatenate([w[mine] for w in whole])
        else:
            x = whole[task.root] if here or name == "scatter" else np.zeros(count, dtype)
            self.expected = whole[task.root] if name == "broadcast" else whole[task.root][mine]
        self._x = where.put(x)
        self._out = None if self.expected is None else where.put(np.zeros_like(self.expected))

    def call(self, inplace: bool) -> Callable[[], object]:
        """Return the call to time. In place means out=x if the result has x's shape, else a given `out`."""
        task = self._task
        method = getattr(self._comm, task.collective)
        options: dict[str, Any] = {} if task.algorithm is None else {"algorithm": task.algorithm}
        if task.collective in ("allreduce", "reduce", "reduce_scatter"):
            options["op"] = task.op
        if task.collective in ("reduce", "broadcast", "gather", "scatter"):
            options["root"] = task.root
        if inplace and self._out is not None and self._out.shape == self._x.shape and task.collective != "alltoall":
            self._out[:] = self._x
            return lambda: method(self._out, out=self._out, **options)
        return lambda: method(self._x, out=self._out, **options)

    def bare(self) -> Callable[[], object] | None:
        """Return the transport's own call; see Device.bare."""
        return self._where.bare(self._comm, self._task.op, self._x, self._out)

    def wrong(self, inplace: bool) -> int:
        """Return the number of elements in which a single fresh call differs from the expected result."""
        if self._out is not None:
            self._out.fill(0)
        self.call(inplace)()
        if self.expected is None or self._out is None:
            return 0
        return int(np.count_nonzero(self._where.get(self._out) != self.expected))


def _combine(op: str, parts: list[Array]) -> Array:
    if op == "average":
        return (sum(part.astype(np.float64) for part in parts) / len(parts)).astype(parts[0].dtype)  # type: ignore[union-attr]
    total = parts[0]
    for part in parts[1:]:
        total = UFUNCS[op](total, part)
    return total.astype(parts[0].dtype)


def _median_time(task: Task, comm: Communicator, where: Device, call: Callable[[], object]) -> float:
    """Return the seconds of one call: the median over the repeats, of the slowest rank."""

    def block(repeats: int, times: list[Array]) -> float:
        """Time a number of calls that all ranks begin together; the seconds of the slowest rank."""
        comm.barrier()
        began = time.perf_counter()
        times.append(where.times(call, repeats))
        return float(comm.allreduce(np.array(time.perf_counter() - began), "max"))

    once = block(1, [])
    for _ in range(min(task.warmup - 1, int(task.seconds / once))):
        call()
    times: list[Array] = []
    spent, calls, repeats = 0.0, 0, 1
    while calls < _LEAST_CALLS or (spent < task.seconds and calls < _MOST_CALLS):
        spent += block(repeats, times)
        calls += repeats
        repeats = int(np.clip((task.seconds - spent) / (spent / calls), 1, calls))  # at most twice as many in all
    return float(comm.allreduce(np.array(np.median(np.concatenate(times))), "max"))


def _print_head(task: Task, comm: Communicator) -> None:
    inplace = "in-place" if task.collective in ("allreduce", "reduce", "broadcast") else "ready out"
    lines = [
        f"# {task.collective}, {comm.size} ranks over {comm.transport.name}, arrays on {task.device}, "
        f"{platform.node()}, python {platform.python_version()}, numpy {np.__version__}",
        f"#{'':47}{'out-of-place':^37}{inplace:^37}",
        f"#{'size':>11}{'count':>12}{'type':>10}{'redop':>8}{'root':>6}"
        + f"{'time':>10}{'algbw':>9}{'busbw':>9}{'#wrong':>9}" * 2
        + (f"{'bare':>10}" if task.device == "cuda" else ""),
        f"#{'(B)':>11}{'(elements)':>12}{'':24}" + f"{'(us)':>10}{'(GB/s)':>9}{'(GB/s)':>9}{'':9}" * 2,
    ]
    print("\n".join(lines), flush=True)  # noqa: T201


def _line(row: Row) -> str:
    def half(cells: Iterable[float], wrong: int) -> str:
        time_us, algbw, busbw = cells
        return f"{time_us:>10.{1 if time_us < 10000 else 0}f}{algbw:>9.2f}{busbw:>9.2f}{wrong:>9}"

    return (
        f"{row.size:>12}{row.count:>12}{row.dtype:>10}{row.op:>8}{row.root:>6}"
        + half((row.time, row.algbw, row.busbw), row.wrong)
        + half((row.inplace_time, row.inplace_algbw, row.inplace_busbw), row.inplace_wrong)
        + ("" if row.bare_time is None else f"{row.bare_time:>10.1f}")
    )


class Device(ABC):
    """Memory for arrays, and a clock for calls on them."""

    @abstractmethod
    def put(self, array: Array) -> Any:
        """Copy an array to the device."""

    @abstractmethod
    def get(self, array: Any) -> Array:
        """Copy an array from the device."""

    @abstractmethod
    def times(self, call: Callable[[], object], repeats: int) -> Array:
        """Measure a call `repeats` times; returns the seconds of each."""

    @abstractmethod
    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> Callable[[], object] | None:
        """Return a call of the transport's own allreduce alone; None if it has none."""


class HostMemory(Device):
    """Host memory."""

    def put(self, array: Array) -> Any:
        return array

    def get(self, array: Any) -> Array:
        found: Array = array
        return found

    def times(self, call: Callable[[], object], repeats: int) -> Array:
        seconds = np.empty(repeats)
        for index in range(repeats):
            began = time.perf_counter()
            call()
            seconds[index] = time.perf_counter() - began
        return seconds

    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> None:
        return None


class Gpu(Device):
    """The GPU with this rank's local rank; ranks share GPUs if there are fewer. Calls are timed by GPU events, several
    in a row."""

    def __init__(self, local_rank: int, timeout: float) -> None:
        self._timeout = timeout
        cuda().use(local_rank % cuda().count)

    def put(self, array: Array) -> Any:
        place = cuda().here()
        made = place.cuda.empty(array.shape, array.dtype)
        place.cuda.fill(made, array)
        return made

    def get(self, array: Any) -> Array:
        found: Array = array.get()
        return found

    def times(self, call: Callable[[], object], repeats: int) -> Array:
        rounds = max(3, repeats // _IN_A_ROW)
        return np.array([cuda().time(call, _IN_A_ROW, time.monotonic() + self._timeout) for _ in range(rounds)])

    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> Callable[[], object] | None:
        return comm.devices.bare_allreduce(x, out, op)


def device(name: str, comm: Communicator) -> Device:
    """Return the device called `name`: cpu or cuda. Raises ConfigError if CuPy is missing."""
    return Gpu(comm.local_rank, comm.config.timeout) if name == "cuda" else HostMemory()
