"""The same calls on the same arrays, in turns, every result checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from frontends.command_line.beside.jobs import OURS, Job
from frontends.command_line.plots import Curves, plot_sizes

COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall")
TURN_SECONDS: Final = 0.02
"""Intended seconds of a turn."""
MAX_BATCHES: Final = 20
WARM_UPS: Final = 4
SINGLE_TURNS: Final = 5
"""Number of turns whose calls are timed one by one."""


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


def measure(
    jobs: Sequence[Job],
    collective: str,
    size: int,
    ranks: int,
    rounds: int,
    *,
    fresh: bool = False,
    turn: float = TURN_SECONDS,
) -> Line:
    """One line: warm up, then take turns of about `turn` seconds. `fresh`: see library.Trial."""
    longest = min(job.prepare(collective, size, fresh=fresh) for job in jobs)
    plan: dict[str, tuple[int, int]] = {}
    wrong = 0
    for job in jobs:
        calls, batches = min(longest, 3), 1
        for _ in range(WARM_UPS):  # the first calls are slow, and would give a wrong number of calls for a turn
            seconds, bad = job.turn(calls, batches)
            calls = max(1, min(longest, int(turn / seconds)))
            batches = max(1, min(MAX_BATCHES, int(turn / (calls * seconds))))
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


def table(lines: Sequence[Line], names: Sequence[str]) -> str:
    """The table of one collective."""
    peers = [name for name in names if name != OURS]
    head = f"{lines[0].collective:>15}" + "".join(f"{name:>11}" for name in names)
    rows = [head + "".join(f"{name + ' / ' + OURS:>18}" for name in peers) + f"{'wrong':>8}  algorithm"]
    for line in lines:
        used = ", ".join(line.algorithms[OURS])
        row = f"{size_text(line.size):>15}" + "".join(f"{time_text(line.median(name)):>11}" for name in names)
        rows.append(row + "".join(f"{line.ratio(peer):>18.2f}" for peer in peers) + f"{line.wrong:>8}  {used}")
    return "\n".join(rows) + "\n"


def steadiness(lines: Sequence[Line], names: Sequence[str]) -> str:
    """The second table of one collective."""
    rows = [f"{lines[0].collective:>15}" + "".join(f"{f'{name}: p50, p99, slow rounds':>38}" for name in names)]
    for line in lines:
        row = f"{size_text(line.size):>15}"
        for name in names:
            middle, high = line.percentiles[name]
            row += f"{time_text(middle):>20}{time_text(high):>11}{line.slow(name):>7.0%}"
        rows.append(row)
    return "\n".join(rows) + "\n"


def plot(lines: Sequence[Line], names: Sequence[str], title: str, path: Path) -> None:
    """Time and bandwidth against size."""
    curves: dict[str, Curves] = {}
    for line in lines:
        for name in names:
            curves.setdefault(line.collective, {}).setdefault(name, []).append((line.size, line.median(name)))
    plot_sizes(path, title, curves)
