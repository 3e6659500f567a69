"""Memory bandwidth of this machine's cores, and the fraction of it that an allreduce in windows reaches.

    ronde run -np 2 python benchmarks/limits.py [--json FILE]

All ranks work at the same time, as in a collective: bare NumPy copies and sums of 64 MiB of private float32, in bytes
read and written per second and rank; and copies of data that another core has just written, which show the distance of
the cores. (On a virtual machine it changes: while its cores are on different dies, such copies, and all staging, take
several times as long.) Then, in turns: an allreduce of 64 MiB in windows, and only the sums and copies that it needs,
on the same memory in the same pieces, without communication. The slowest rank of each turn counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import collectives as ronde
from collectives.planning.call import WindowOffset
from frontends.command_line.bench import machine

Array = np.ndarray[Any, Any]
NBYTES = 1 << 26
PIECE = 1 << 16
"""Elements of a piece, 256 KiB, as in the planner's segments."""
ROUNDS = 21


def slowest(world: ronde.Communicator, call: Callable[[], object]) -> float:
    """Seconds of a call on the slowest rank."""
    world.barrier()
    began = time.perf_counter()
    call()
    return float(world.allreduce(time.perf_counter() - began, "max"))


def medians(world: ronde.Communicator, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each call, run in turns."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(slowest(world, call))
    return {name: float(np.median(taken)) for name, taken in times.items()}


def read_fresh(world: ronde.Communicator, mine: Array, other: Array) -> float:
    """Seconds of a rank's copy of a piece that another rank has just written."""
    taken, private = [], np.empty_like(mine)
    for number in range(ROUNDS):
        mine[:] = number
        taken.append(slowest(world, lambda: np.copyto(private, other)))
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    world = ronde.init()
    rank, size, count = world.rank, world.size, NBYTES // 4
    a, b = np.zeros(count, np.float32), np.zeros(count, np.float32)
    shared = world.empty(count, np.float32)
    peers = [
        shared if peer == rank else world._windows.part(WindowOffset(1, 0), peer, 0, NBYTES).view(np.float32)
        for peer in range(size)
    ]
    share = count // size

    def bare() -> None:
        for start in range(rank * share, (rank + 1) * share, PIECE):
            piece = slice(start, min(start + PIECE, (rank + 1) * share))
            mine = peers[rank][piece]
            for peer in range(size):
                if peer != rank:
                    np.add(mine, peers[peer][piece], out=mine)
            for peer in range(size):
                if peer != rank:
                    np.copyto(peers[peer][piece], mine)

    fresh = read_fresh(world, peers[rank][:PIECE], peers[rank - 1][:PIECE])
    found = medians(
        world,
        {
            "copy": lambda: np.copyto(a, b),
            "add in place": lambda: np.add(a, b, out=a),
            "bare": bare,
            "allreduce in windows": lambda: world.allreduce(shared, out=shared),
            "allreduce of private arrays": lambda: world.allreduce(a, out=a),
        },
    )
    rates = {
        "copy": 2 * NBYTES / found["copy"],
        "add in place": 3 * NBYTES / found["add in place"],
        "copy of what is just written": 2 * 4 * PIECE / fresh,
    }
    if rank == 0:
        for name, rate in rates.items():
            print(f"{name:>28} {rate / 1e9:8.1f} GB/s per rank")
        for name in ("bare", "allreduce in windows", "allreduce of private arrays"):
            print(f"{name:>28} {found[name] * 1e3:8.2f} ms {found[name] / found['bare']:8.2f} times bare")
        if options.json is not None:
            report = {"machine": machine(), "ranks": size, "bytes": NBYTES, "seconds": found | {"fresh": fresh}}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    ronde.shutdown()


if __name__ == "__main__":
    main()
