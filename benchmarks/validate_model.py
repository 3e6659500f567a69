"""The predictions of `ronde simulate` beside measured allreduces, over network namespaces with slow links.

    python -m benchmarks.validate_model --json FILE                 all cells; those in FILE are kept
    python -m benchmarks.validate_model --json FILE --worlds 4x1 --rates 50mbit --max 1M
    python -m benchmarks.validate_model --json FILE --worlds        only print the table of FILE

A cell is a world (hosts x ranks), a rate of the links, one host at a quarter of the rate or none, and a size. In each
of them every algorithm is measured, and predicted by the exact engine. The model knows nothing of the cell's times: its
latencies and rates come from exchanges of two ranks, between two hosts at each rate and inside one host. `chosen` is
the one of these algorithms that the cost model selects on the network of this calibration; it is computed again for
kept cells. The program needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.compare_hosts import bits_per_second, world
from collectives.proof import Network, Topology, simulate_on
from collectives.simulation import choices
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine
from frontends.command_line.beside import OURS, Job, size_text, time_text
from tests.netns.network import obstacle

WORLDS: Final = ("4x1", "8x1", "4x2", "2x4")
RATES: Final = ("200mbit", "50mbit")
SIZES: Final = (1 << 16, 1 << 20, 1 << 24)
ALGORITHMS: Final = (
    "ring",
    "halving_doubling",
    "recursive_doubling",
    "hierarchical",
    "tree",
    "double_tree",
    "circulant",
)
BURST: Final = "16kb"
"""A larger one lets a small array pass at once, which no cable does."""
CONGESTION: Final = "reno"
"""TCP's congestion control on the hosts. It and cubic, the default of Linux, send at the link's rate at once. BBR, the
default of some machines, paces each connection by its own estimate: one that is used in turns is slower than its link
(docs/evidence.md has figures)."""
SMALL: Final = 8
LARGE: Final = 1 << 22
NEAR_LARGE: Final = 1 << 20
TURN: Final = 0.3
"""Seconds of a turn of calls that take less."""
CLOSE: Final = 1.1
"""The time of the algorithm chosen, by that of the best, up to which the choice is right."""


@dataclass(frozen=True)
class Calibration:
    """The exchanges of two ranks between hosts, and inside one: seconds of the smallest one, and bytes per second."""

    latency: float
    rate: float
    near_latency: float
    near_rate: float

    def network(self, shape: str, rate: str, quarter: bool) -> Network:
        """The network of a world whose links have the rate, the last host's a quarter of it if `quarter`."""
        hosts, ranks = (int(number) for number in shape.split("x"))
        bits = bits_per_second(rate)
        efficiency = min(1.0, self.rate * 8 / bits)
        made = Topology().change(
            (
                f"ranks={ranks}",
                f"far.latency={self.latency * 1e6:.3f}us",
                f"far.overhead={self.latency * 5e5:.3f}us",
                f"far.efficiency={efficiency:.4f}",
                f"near.latency={self.near_latency * 1e6:.3f}us",
                f"near.rate={self.near_rate / 1e6:.3f}MB",
            )
        )
        few = made.change([f"count={hosts - quarter}", f"nic={bits / 1e6:g}Mbit"]).hosts
        slow = made.change(["count=1", f"nic={bits / 4e6:g}Mbit"]).hosts if quarter else ()
        topology = Topology((*few, *slow), made.far, made.near, made.switch, made.local, made.noise)
        return topology.network(hosts * ranks)


def seconds_of(job: Job, size: int, algorithm: str | None) -> tuple[float, list[str]]:
    """Median seconds of a call, and the algorithms by which it ran. Raises RuntimeError if a result is wrong."""
    job.algorithm = algorithm
    longest = job.prepare("allreduce", size)
    first, wrong = job.turn(1, 1)
    calls = max(1, min(longest, int(TURN / first)))
    times = []
    for _ in range(3 if first < 1 else 1):
        seconds, bad = job.turn(calls, 1)
        times.append(seconds)
        wrong += bad
    if wrong:
        raise RuntimeError(f"{wrong} wrong elements in an allreduce of {size} bytes by {algorithm}")
    return statistics.median(times), job.algorithms


@contextlib.contextmanager
def ronde(shape: str, rates: Sequence[str]) -> Iterator[Job]:
    """One job of Ronde in a world."""
    with world(shape, rates, [(OURS, OURS, ("RONDE_TRANSPORT=auto",))], burst=BURST, congestion=CONGESTION) as jobs:
        yield jobs[0]


def exchange(shape: str, rates: Sequence[str], large: int) -> tuple[float, float]:
    """Seconds of the smallest exchange of two ranks, and bytes per second of a large one."""
    with ronde(shape, rates) as job:
        small = seconds_of(job, SMALL, "recursive_doubling")[0]
        more = seconds_of(job, large, "recursive_doubling")[0]
    return small, large / max(more - small, 1e-9)


def predictions(network: Network, size: int) -> dict[str, float]:
    """The predicted seconds of all algorithms that are able."""
    able = {choice.algorithm.name: choice for choice in choices(network, "allreduce", size)}
    return {
        name: simulate_on(network, able[name].algorithm, size, segments=able[name].segments).seconds
        for name in ALGORITHMS
        if name in able
    }


def choose(network: Network, size: int) -> str:
    """The one of the measured algorithms that the cost model prefers. Of two with one time, as `ring` and
    `hierarchical` on hosts of one rank, it is the first of them."""
    able = {choice.algorithm.name: choice.seconds for choice in choices(network, "allreduce", size)}
    return min((name for name in ALGORITHMS if name in able), key=able.__getitem__)


def errors(cells: Sequence[Mapping[str, Any]]) -> list[float]:
    """The predicted times by the measured ones, less one, of all algorithms in all cells."""
    return [
        cell["predicted"][name] / seconds - 1
        for cell in cells
        for name, seconds in cell["measured"].items()
        if name in cell["predicted"]
    ]


def regret(cell: Mapping[str, Any]) -> float:
    """The measured time of the algorithm chosen, by that of the best; infinite if it was not measured."""
    return float(cell["measured"].get(cell["chosen"], math.inf) / min(cell["measured"].values()))


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """One line on some cells."""
    sizes = sorted(abs(error) for error in errors(cells))
    right = sum(regret(cell) <= CLOSE for cell in cells)
    return (
        f"{len(sizes)} times in {len(cells)} cells: median error {statistics.median(sizes):.1%}, "
        f"worst {sizes[-1]:.1%}; chosen within 10 % of the best in {right} cells ({right / len(cells):.0%})"
    )


def print_cell(cell: Mapping[str, Any]) -> None:
    """The rows of a cell."""
    hosts = ", one at a quarter" if cell["quarter"] else ""
    print(
        f"{cell['world']} at {cell['rate']}{hosts}, {size_text(cell['size'])}: chosen {cell['chosen']}, "
        f"{regret(cell):.2f} of the best; a job's own choice {', '.join(cell['own'])} {time_text(cell['own_seconds'])}"
    )
    for name, seconds in cell["measured"].items():
        foreseen = cell["predicted"][name]
        print(f"    {name:<20}{time_text(seconds):>10}{time_text(foreseen):>10}{foreseen / seconds - 1:>+9.1%}")
    sys.stdout.flush()


def measure_world(shape: str, rate: str, quarter: bool, sizes: Sequence[int], found: Calibration) -> Iterator[Any]:
    """Yield the cells of one world."""
    network = found.network(shape, rate, quarter)
    rates = [rate] * (max(network.hosts) + 1)
    if quarter:
        rates[-1] = f"{bits_per_second(rate) / 4e6:g}mbit"
    with ronde(shape, rates) as job:
        for size in sizes:
            predicted = predictions(network, size)
            measured = {name: seconds_of(job, size, name)[0] for name in predicted}
            own_seconds, own = seconds_of(job, size, None)
            yield {
                "world": shape,
                "rate": rate,
                "quarter": quarter,
                "size": size,
                "chosen": choose(network, size),
                "measured": measured,
                "predicted": predicted,
                "own": own,
                "own_seconds": own_seconds,
                "load": machine()["load"],
            }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="cells; continued if it exists")
    parser.add_argument("--worlds", nargs="*", choices=WORLDS, default=WORLDS, metavar="HxR", help=", ".join(WORLDS))
    parser.add_argument("--rates", nargs="+", choices=RATES, default=RATES, metavar="RATE", help=", ".join(RATES))
    parser.add_argument("--quarter", choices=("yes", "no", "both"), default="both", help="one host at a quarter")
    parser.add_argument("--min", type=byte_count, default=SIZES[0], metavar="SIZE", help="smallest size")
    parser.add_argument("--max", type=byte_count, default=SIZES[-1], metavar="SIZE", help="largest size")
    return parser.parse_args(arguments)


def calibrate(kept: dict[str, Any], rate: str) -> Calibration:
    """The calibration for a rate, measured unless it is kept."""
    found = kept["calibration"]
    if "near" not in found:
        found["near"] = exchange("1x2", [rate], NEAR_LARGE)
    if rate not in found:
        found[rate] = exchange("2x1", [rate] * 2, LARGE)
    print(f"calibration at {rate}: far {found[rate]}, near {found['near']} (seconds, bytes per second)", flush=True)
    return Calibration(*found[rate], *found["near"])


def choose_again(kept: dict[str, Any]) -> None:
    """Put into all kept cells the algorithm that the cost model selects now."""
    near = kept["calibration"]["near"]
    for cell in kept["cells"]:
        found = Calibration(*kept["calibration"][cell["rate"]], *near)
        network = found.network(cell["world"], cell["rate"], cell["quarter"])
        cell["chosen"] = choose(network, cell["size"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate; 2 if there can be no network namespaces."""
    options = parse(arguments)
    reason = obstacle() if options.worlds else None
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    kept: dict[str, Any] = {
        "machine": machine(),
        "burst": BURST,
        "congestion": CONGESTION,
        "calibration": {},
        "cells": [],
    }
    if options.json.exists():
        kept = json.loads(options.json.read_text())
        choose_again(kept)
    key = ("world", "rate", "quarter", "size")
    sizes = [size for size in SIZES if options.min <= size <= options.max]
    for rate in options.rates if options.worlds else ():
        found = calibrate(kept, rate)
        for quarter in (False, True):
            if options.quarter == ("no" if quarter else "yes"):
                continue
            for shape in options.worlds:
                done = {tuple(cell[name] for name in key) for cell in kept["cells"]}
                missing = [size for size in sizes if (shape, rate, quarter, size) not in done]
                for cell in measure_world(shape, rate, quarter, missing, found) if missing else ():
                    print_cell(cell)
                    kept["cells"].append(cell)
                    options.json.write_text(json.dumps(kept, indent=1) + "\n")
    if not options.worlds:
        for cell in kept["cells"]:
            print_cell(cell)
    for title, some in (
        ("all", kept["cells"]),
        *((size_text(size), [cell for cell in kept["cells"] if cell["size"] == size]) for size in SIZES),
        ("equal hosts", [cell for cell in kept["cells"] if not cell["quarter"]]),
        ("one at a quarter", [cell for cell in kept["cells"] if cell["quarter"]]),
    ):
        if some:
            print(f"{title}: {summary(some)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
