"""The time of a first call: the processor time that a call of a new shape takes beyond a later one of the same shape.

    python -m benchmarks.first_calls                               # 2 ranks; shm, tcp and local; with jit and without
    python -m benchmarks.first_calls -np 4 --transports shm --compiled off --collectives allreduce

Each figure is the median over many new shapes on rank 0, in microseconds of the calling thread, and so the load of the
machine disturbs it little. The parts:

    choose   of an algorithm, by rules and by cost
    plan     the rest of the plan: the program with its offsets, its digest, its description in the flight record
    table    the words for the compiled interpreter
    rows     the functions of Python
    else     checks of the arguments, the planned call, and the exchange as far as it takes longer than a later one
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import numpy as np

import collectives as ronde
from collectives.execution.executor import Executor
from collectives.execution.rows import BoundPlan
from collectives.planning import Planner, Selector

PARTS: Final = {
    "choose": (Selector, "choose"),
    "plan": (Planner, "plan"),
    "table": (Executor, "table"),
    "rows": (BoundPlan, "__init__"),
}
"""Part -> the function that does it. A function that another one calls does not count as the time of that one."""
COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall")
NBYTES: Final = (1 << 8, 1 << 14, 1 << 20)
"""Sizes of the arrays, about."""
SHAPES: Final = 60
_LATER: Final = 3
"""Later calls of each shape, of which the fastest counts."""

clock: Final = time.thread_time_ns


class Stopwatch:
    """The nanoseconds that this thread spends in some functions, each without those that it calls."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0)
        self._inner = [0]

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed as a part."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent = clock() - began
                self.spent[part] += spent - self._inner.pop()
                self._inner[-1] += spent

        return timed

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Time the parts meanwhile."""
        patches = [
            mock.patch.object(owner, name, self.around(part, getattr(owner, name)))
            for part, (owner, name) in PARTS.items()
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()


def spent_in(function: Callable[..., object], *args: Any) -> int:
    """The processor time of this thread for a call, in nanoseconds."""
    began = clock()
    function(*args)
    return clock() - began


def probe(collectives: Sequence[str]) -> dict[tuple[str, int], dict[str, float]]:
    """The figures of this rank: (collective, bytes) -> part -> microseconds."""
    world, found = ronde.world(), {}
    for collective in collectives:
        method = getattr(world, collective)
        for nbytes in NBYTES:
            length = max(1, nbytes // 4 // world.size) * world.size
            figures: dict[str, list[float]] = {}
            for index in range(SHAPES + 2):
                x = np.ones(length + index * world.size, np.float32)
                watch = Stopwatch()
                world.barrier()
                whole = spent_in(method, x)
                later = min(spent_in(method, x) for _ in range(_LATER))
                y = np.ones(length + (SHAPES + 2 + index) * world.size, np.float32)
                world.barrier()
                if world.rank == 0:  # as threads, the ranks share the functions
                    with watch.attached():
                        method(y)
                else:
                    method(y)
                if index >= 2:
                    spent = {"all": whole - later, **watch.spent}
                    for part, nanoseconds in spent.items():
                        figures.setdefault(part, []).append(nanoseconds / 1000)
            found[collective, nbytes] = {part: float(np.median(values)) for part, values in figures.items()}
    return found


def lines(found: dict[tuple[str, int], dict[str, float]], setting: str) -> Iterator[str]:
    """The rows of the table for one setting."""
    for (collective, nbytes), figures in found.items():
        rest = figures["all"] - sum(figures[part] for part in PARTS)
        cells = [f"{figures['all']:.0f}", *(f"{figures[part]:.0f}" for part in PARTS), f"{rest:.0f}"]
        yield f"| {setting} | {collective} | {nbytes} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-np", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument("--transports", nargs="+", default=["shm", "tcp", "local"], metavar="NAME")
    parser.add_argument("--compiled", nargs="+", choices=["on", "off"], default=["on", "off"])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    options = parser.parse_args(arguments)
    print(f"| {options.np} ranks | collective | bytes | us | {' | '.join(PARTS)} | else |")
    print("|---|---|---|---|" + "---|" * (len(PARTS) + 1), flush=True)
    os.environ["RONDE_CALIBRATE"] = "0"
    for transport in options.transports:
        for compiled in options.compiled:
            os.environ["RONDE_COMPILED"] = compiled
            found = ronde.run(probe, np=options.np, args=(options.collectives,), transport=transport, timeout=600)
            setting = f"{transport}{', jit' if compiled == 'on' else ''}"
            print("\n".join(lines(found[0], setting)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
