"""`ronde tune`: measure which algorithms are fastest on this machine, and write a rule table that chooses them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from collectives.algorithms import algorithms
from collectives.communicator import Communicator
from collectives.planning import NO_LIMIT, CopyKernel, Costs, Rule, Rules
from frontends.command_line.arguments import add_sizes, output_file, positive, sizes_of, writing
from frontends.command_line.bench import machine
from frontends.command_line.measuring import add_ranks, measure_on_ranks, no_progress, progress, size_of
from frontends.command_line.plots import Curves, add_plot, plot_sizes
from transports import copying

COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "reduce", "reduce_scatter", "alltoall")
DESCRIPTION: Final = "Measure which algorithms are fastest on this machine, and write a rule table that chooses them."
EXAMPLES: Final = """\
examples:
  ronde tune -np 4                                    all collectives, into ronde-rules.toml (some minutes)
  ronde tune allreduce -np 8 --transport tcp -o tcp-8.toml
  RONDE_RULES=ronde-rules.toml ronde run -np 4 train.py
  ronde tune allreduce -H h1:4,h2:4                   on two hosts; the table is written on the first
  srun ronde tune allreduce                           on the ranks of another launcher; rank 0 writes the table

Every usable algorithm takes turns with the default choice. If it saves 5 % of the time or more, the table gets a rule
for that number of ranks and that transport. The table also contains the figures of the cost model, which decides
where no rule fits: alpha (seconds per message), beta (per byte sent), gamma (per byte combined), copy (per byte
copied); and the calibration of these ranks, so that jobs with this table do not measure it again. Run nothing else on
the machine meanwhile: other work makes the table useless.
"""
ROUNDS: Final = 7
"""Turns (blocks of timed calls) of each algorithm."""
HOPELESS: Final = 3.0
"""An algorithm that takes so many times as long as the best one in its first turn gets no other turn."""
WORTH: Final = 0.95
"""An algorithm gets a rule if it takes at most this share of the time of the default choice."""
_GRAIN: Final = 1 << 18
"""Bytes of the arrays on which combining and copying are timed; small enough for the cache."""


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments of one `ronde tune`. Sizes are in bytes, as rules count them."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """Result for one collective at one size: seconds by default, and the fastest algorithm with its seconds."""

    collective: str
    size: int
    default: float
    algorithm: str
    seconds: float

    @property
    def preferred(self) -> str:
        """Name of the algorithm that deserves a rule; empty if the default choice is good enough."""
        return self.algorithm if self.seconds <= WORTH * self.default else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument(
        "collectives",
        nargs="*",
        metavar="collective",
        type=_collective,
        help=f"collectives to measure (default: {' '.join(COLLECTIVES)})",
    )
    add_ranks(parser)
    add_sizes(parser, "1K", "16M")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=0.1,
        metavar="S",
        help="seconds of measuring for each algorithm and size (default: 0.1)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        default="ronde-rules.toml",
        metavar="FILE",
        help="file of the rule table (default: %(default)s)",
    )
    add_plot(parser)


def _collective(text: str) -> str:
    """A collective, for argparse. (With `choices` it would not allow that there is none.)"""
    if text not in COLLECTIVES:
        raise argparse.ArgumentTypeError(f"{text!r}: must be among {', '.join(COLLECTIVES)}")
    return text


def main(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit status."""
    chosen = tuple(arguments.collectives) or COLLECTIVES
    if size_of(arguments) < 2:
        arguments.parser.error(f"-np {size_of(arguments)}: must be 2 or more")
    task = Task(chosen, sizes_of(arguments), arguments.seconds)
    measured = measure_on_ranks(measure, task, arguments, timeout=3600)
    if isinstance(measured, int):
        return measured
    if not measured.first:
        return 0
    table, found = measured.value
    (costs,) = table.costs
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    words = " ".join(["ronde tune", *chosen, f"-np {measured.size} --transport {costs.transport}"])
    with writing(arguments.output, "--output"):
        table.write(arguments.output, f"Written by: {words}\n{about}")
    if arguments.plot is not None:
        charts: dict[str, Curves] = {}
        for one in found:
            curves = charts.setdefault(one.collective, {"by default": [], "fastest": []})
            curves["by default"].append((one.size, one.default))
            curves["fastest"].append((one.size, one.seconds))
        plot_sizes(arguments.plot, words, charts)
    print(  # noqa: T201
        f"{len(table.rules)} rules in {arguments.output}; use them with RONDE_RULES={arguments.output}, or "
        f"rules = {str(arguments.output)!r} in ronde.toml"
    )
    return 0


def rules(found: Sequence[Found], size: int, transport: str) -> Iterator[Rule]:
    """Yield the rules that choose the preferred algorithms. A rule ends at the geometric mean of two measured sizes."""
    for collective in dict.fromkeys(one.collective for one in found):
        mine = [one for one in found if one.collective == collective]
        bounds = [0, *(math.isqrt(a.size * b.size) for a, b in pairwise(mine)), NO_LIMIT]
        at = 0
        while at < len(mine):
            end = at + 1
            while end < len(mine) and mine[end].preferred == mine[at].preferred:
                end += 1
            if mine[at].preferred:
                low = bounds[at] + 1 if at else 0
                yield Rule(collective, mine[at].preferred, low, bounds[end], size, size, transport)
            at = end


def calibration() -> Rules:
    """Return the calibration that the ranks made in `init`, as rows of a table."""
    kernels = copying.kernel_table()
    copies = (
        []
        if kernels is None
        else [CopyKernel("vector", kind.nbytes, kind.fetched, kind.large) for kind in sorted(kernels.vector)]
    )
    if kernels is not None and not copies:
        copies = [CopyKernel("memcpy")]
    return Rules(copy_kernels=tuple(copies))


def measure(task: Task) -> tuple[Rules, list[Found]]:
    """Measure everything, on every rank of the world; rank 0 prints results. Returns the table
    and what was found."""
    from collectives.world_communicator import world

    comm = world()
    costs = terms(comm)
    say = print if comm.rank == 0 else _silent
    say(", ".join(f"{name} {value:.3g} s" for name, value in costs.terms().items()), flush=True)
    say(f"{'collective':>15}{'bytes':>12}{'by default':>14}{'fastest':>14}  algorithm", flush=True)
    found = []
    pairs = [(collective, size) for collective in task.collectives for size in task.sizes]
    with progress("tune", len(pairs)) if comm.rank == 0 else contextlib.nullcontext(no_progress) as done:
        for collective, size in pairs:
            one = fastest(comm, collective, size, task.seconds)
            found.append(one)
            mark = one.algorithm if one.preferred else "as by default"
            times = f"{one.default * 1e6:>11.1f} us{one.seconds * 1e6:>11.1f} us"
            say(f"{collective:>15}{size:>12}{times}  {mark}", flush=True)
            done(f"{collective} {size}")
    table = dataclasses.replace(calibration(), rules=tuple(rules(found, comm.size, costs.transport)), costs=(costs,))
    return table, found


def _silent(*_: object, **__: object) -> None:
    """Print nothing, on ranks other than 0."""


def fastest(comm: Communicator, collective: str, size: int, seconds: float) -> Found:
    """Time all algorithms that can do a collective on `size` bytes. The same on every rank."""
    calls: dict[str, Callable[[], object]] = {"": call(comm, collective, size, None)}
    for name in algorithms(collective):
        one = call(comm, collective, size, name)
        try:
            one()
        except ValueError:  # not usable here; all ranks find out before anything is sent
            continue
        calls[name] = one
    first = {name: _turn(comm, one, seconds / ROUNDS) for name, one in calls.items()}
    limit, leader = HOPELESS * min(first.values()), min((name for name in first if name), key=first.__getitem__)
    times = {name: [taken] for name, taken in first.items() if taken <= limit or name in ("", leader)}
    for _ in range(ROUNDS - 1):
        for name, taken in times.items():
            taken.append(_turn(comm, calls[name], seconds / ROUNDS))
    medians = {name: float(np.median(taken)) for name, taken in times.items()}
    best = min((name for name in medians if name), key=medians.__getitem__)
    return Found(collective, size, medians[""], best, medians[best])


def call(comm: Communicator, collective: str, size: int, algorithm: str | None) -> Callable[[], object]:
    """One call on `size` bytes in all blocks together (alltoall: in a rank's row)."""
    count = max(1, size // 4 // comm.size) * comm.size
    options: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}
    method = getattr(comm, collective)
    x = np.zeros(count // comm.size if collective == "allgather" else count, np.float32)
    out = np.zeros({"allgather": count, "reduce_scatter": count // comm.size}.get(collective, count), np.float32)
    if collective in ("allreduce", "broadcast"):
        return lambda: method(x, out=x, **options)
    return lambda: method(x, out=out, **options)


def _turn(comm: Communicator, one: Callable[[], object], seconds: float) -> float:
    """Return the seconds of a call that all ranks begin together: the median over a turn, of the slowest rank. The turn
    takes about `seconds`, with the barriers."""

    def times(count: int) -> tuple[float, float]:
        """The median of so many calls, and the seconds of one with its barrier."""
        taken, start = np.empty(count), time.perf_counter()
        for number in range(count):
            comm.barrier()
            began = time.perf_counter()
            one()
            taken[number] = time.perf_counter() - began
        median, whole = comm.allreduce(np.array([np.median(taken), time.perf_counter() - start]), "max").tolist()
        return median, whole / count

    _, once = times(2)
    return times(int(np.clip(seconds / max(once, 1e-7), 1, 1000)))[0]


def terms(comm: Communicator) -> Costs:
    """Measure the terms of the cost model between two ranks of this host. The same on every rank."""

    def exchange(nbytes: int) -> float:
        x, out = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        peer = comm.rank ^ 1

        def both() -> None:
            if peer < comm.size:
                comm.sendrecv(x, peer, peer, out=out)

        return float(np.median([_turn(comm, both, 0.02) for _ in range(5)]))

    def alone(work: Callable[[], object]) -> float:
        taken = float(np.median([_turn(comm, work, 0.01) for _ in range(5)]))
        return taken / _GRAIN

    a, b = np.zeros(_GRAIN // 4, np.float32), np.ones(_GRAIN // 4, np.float32)
    small, large = exchange(4), exchange(1 << 22)
    return Costs(
        comm.transport.name,
        alpha=small,
        beta=max(large - small, 1e-9) / (1 << 22),
        gamma=alone(lambda: np.add(a, b, out=a)),
        copy=alone(lambda: np.copyto(a, b)),
    )
