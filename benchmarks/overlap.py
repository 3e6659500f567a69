"""Times of asynchronous allreduces during computation, and of a small one during a busy Python loop.

    ronde run -np 2 python benchmarks/overlap.py [--json FILE]

Three times are compared in turns: a NumPy matrix product, about as long as the allreduce; an allreduce of `--bytes`
alone; both together. If a rank has a core for its computation and another for its communication, "both / longer" should
be near 1. With one core for each rank this is impossible, since the allreduce uses the CPU too: the best result is
"both / sum" of at most 1. Set OMP_NUM_THREADS=1 (or the equivalent for your BLAS): a product on all cores leaves none
for the allreduce.

Then an allreduce of 4 bytes, and one of 64 KiB, is begun, and the main thread runs plain Python until it has ended:
median, and the time that one in ten exceeds. Without the compiled interpreter (`RONDE_COMPILED=off`) that is up to the
switch interval of Python (5 ms by default; `--switch` sets it) and more, because its thread needs Python's lock. The
latency of an immediate `wait()` is printed for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import collectives as ronde
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine


def slowest(world: ronde.Communicator, call: Callable[[], object]) -> float:
    """Seconds of a call on the slowest rank."""
    world.barrier()
    began = time.perf_counter()
    call()
    return float(world.allreduce(time.perf_counter() - began, "max"))


def overlap(world: ronde.Communicator, nbytes: int, rounds: int) -> dict[str, float]:
    """Medians of the times in seconds, and of the ratios of each round."""
    x = np.zeros(nbytes // 4, np.float32)
    a = np.ones((512, 512), np.float32)

    def communicate() -> None:
        world.allreduce(x, out=x)

    def multiply(times: int) -> None:
        for _ in range(times):
            a @ a

    communicate()
    alone = float(np.median([slowest(world, communicate) for _ in range(3)]))
    once = float(np.median([slowest(world, lambda: multiply(4)) for _ in range(3)])) / 4
    times = max(1, round(alone / once))

    def both() -> None:
        work = world.allreduce_async(x, out=x)
        multiply(times)
        work.wait()

    both()
    table = np.array(
        [[slowest(world, one) for one in (lambda: multiply(times), communicate, both)] for _ in range(rounds)]
    )
    computing, communicating, together = table.T
    return {
        "compute": float(np.median(computing)),
        "allreduce": float(np.median(communicating)),
        "both": float(np.median(together)),
        "both / longer": float(np.median(together / np.maximum(computing, communicating))),
        "both / sum": float(np.median(together / (computing + communicating))),
    }


def latency(world: ronde.Communicator, nbytes: int, rounds: int) -> dict[str, float]:
    """Seconds from the beginning to the end of an allreduce."""
    x = np.zeros(nbytes // 4, np.float32)
    busy, waiting = [], []
    for _ in range(rounds):
        world.barrier()
        began = time.perf_counter()
        work = world.allreduce_async(x, out=x)
        count = 0
        while not work.test():
            for number in range(100):
                count += number
        busy.append(time.perf_counter() - began)
        world.barrier()
        began = time.perf_counter()
        world.allreduce_async(x, out=x).wait()
        waiting.append(time.perf_counter() - began)
    return {
        "beside a busy loop": float(np.median(busy)),
        "one in ten": float(np.percentile(busy, 90)),
        "waited for": float(np.median(waiting)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=byte_count, default=1 << 26, metavar="SIZE", help="(default: 64M)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--switch", type=float, default=5.0, metavar="MS", help="switch interval (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    sys.setswitchinterval(options.switch / 1e3)
    world = ronde.init()
    facts = {
        "ranks": world.size,
        "transport": world.transport.name,
        "switch_ms": options.switch,
        "bytes": options.bytes,
    }
    both = overlap(world, options.bytes, options.rounds)
    late = {nbytes: latency(world, nbytes, 20 * options.rounds) for nbytes in (4, 1 << 16)}
    if world.rank == 0:
        print(", ".join(f"{name} {value}" for name, value in facts.items()), f"cores {os.cpu_count()}", sep=", ")
        for name, value in both.items():
            text = f"{value:.2f}" if "/" in name else f"{value * 1e3:.3f} ms"
            print(f"{name:>20}  {text}")
        for nbytes, part in late.items():
            print(f"an allreduce of {nbytes} bytes")
            for name, value in part.items():
                print(f"{name:>20}  {value * 1e3:.3f} ms")
        if options.json is not None:
            report = {"machine": machine(), **facts, "overlap": both, "latency": late}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    ronde.shutdown()


if __name__ == "__main__":
    main()
