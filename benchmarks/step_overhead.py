"""Breakdown of the time of a 4-byte allreduce on 2 ranks: the exchange itself, the executor, the public call.

    python benchmarks/step_overhead.py [transport ...]

Each figure is the median over repeats on rank 0, in microseconds, and includes the figures before it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import collectives as ronde
from collectives.planning.plan import Call
from transports.onesided import OneSided

REPEATS = 20_000


def median_us(world: ronde.Communicator, call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    times = np.empty(REPEATS)
    world.barrier()
    for index in range(REPEATS):
        began = time.perf_counter()
        call()
        times[index] = time.perf_counter() - began
    return float(np.median(times)) * 1e6


def measure() -> dict[str, float]:
    """The figures of this rank."""
    world = ronde.world()
    x = np.ones(1, np.float32)
    found = {}
    onesided = world.transport.ability(OneSided)
    if onesided is not None:
        window = onesided.expose("overhead", (0, 1), 4096, time.monotonic() + 30)
        epochs = iter(range(1, 1 << 62))

        def meet() -> None:
            epoch = next(epochs)
            window.publish(epoch, 7)
            window.wait(1 - world.rank, epoch, time.monotonic() + 30, 7)

        found["publish and wait"] = median_us(world, meet)
        window.close()
    executor = world._executor
    plan = executor.planner.plan(Call("allreduce", x.dtype, (1,), "max", 0, 0))
    found["executor"] = median_us(world, lambda: executor.run(plan, x, x, time.monotonic() + 30))
    planned = world.plan("allreduce", x, "max", out=x)
    found["plan(x, out=x).run()"] = median_us(world, planned.run)
    found["allreduce(x, out=x)"] = median_us(world, lambda: world.allreduce(x, "max", out=x))
    found["allreduce(x)"] = median_us(world, lambda: world.allreduce(x, "max"))
    found["with an option"] = median_us(world, lambda: world.allreduce(x, "max", out=x, timeout=30))
    return found


if __name__ == "__main__":
    for transport in sys.argv[1:] or ["shm", "tcp"]:
        print(transport)
        for name, microseconds in ronde.run(measure, np=2, transport=transport)[0].items():
            print(f"  {name:20} {microseconds:8.2f} us")
