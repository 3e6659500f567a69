"""The overhead of JAX: a jitted step that averages gradients, against the collective alone on NumPy arrays.

    python benchmarks/jax_step.py -np 2 --transport shm --json benchmarks/results/jax-step-2-ranks-shm.json

Both average the same numbers of float32 arrays and elements (by default 100 arrays with 25 million elements together),
in turns with changing order; the result is the median over the turns of the ratio within a turn. The variants of a
step:

    step     gradients are made and used within the program, as in training
    donated  gradients come from outside and need not be kept
    jax.jit  the same, dispatched by jax.jit; the others are by hvd.jit
    kept     gradients come from outside and are kept: the results are new arrays
    eager    no jit

The rest of the step (making and using the arrays) is timed without the collective, and subtracted.

New arrays cause page faults if the C library returns freed memory to the system, and those of 100 MB take longer than
the collective. MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=33554432 before the command prevent this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import collectives as ronde


def measure(arrays: int, elements: int, turns: int, path: str) -> dict[str, Any]:
    """The figures of this rank, in milliseconds."""
    os.environ["RONDE_JAX_PATH"] = path
    import jax
    import jax.numpy as jnp

    import frontends.jax as hvd

    comm = ronde.world()
    count = elements // arrays
    sources = [np.full(count, index + comm.rank, np.float32) for index in range(arrays)]
    targets = [np.empty_like(source) for source in sources]
    given = [jnp.asarray(source) for source in sources]

    def bare(out: list[np.ndarray[Any, Any]]) -> None:
        comm.grouped_allreduce_async(sources if out is targets else out, "average", out=out, name="bare").wait()

    def make(x: jax.Array) -> list[jax.Array]:
        return [jnp.full((count,), index, jnp.float32) + x for index in range(arrays)]

    combine = hvd.jit(hvd.grouped_allreduce)
    combine_donated = hvd.jit(hvd.grouped_allreduce, donate_argnums=0)
    combine_slowly = jax.jit(hvd.grouped_allreduce, donate_argnums=0)
    without = jax.jit(lambda x: sum(jnp.sum(one) for one in jax.lax.optimization_barrier(make(x))))
    within = hvd.jit(lambda x: sum(jnp.sum(one) for one in hvd.grouped_allreduce(make(x))))
    rank = jnp.float32(comm.rank)
    donated = [[jnp.array(one) for one in given]]

    def donate(combine: Callable[[list[jax.Array]], list[jax.Array]]) -> None:
        donated[0] = jax.block_until_ready(combine(donated[0]))

    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(targets),
        "bare in place": lambda: bare(sources),
        "without": lambda: jax.block_until_ready(without(rank)),
        "step": lambda: jax.block_until_ready(within(rank)),
        "donated": lambda: donate(combine_donated),
        "jax.jit": lambda: donate(combine_slowly),
        "kept": lambda: jax.block_until_ready(combine(given)),
        "eager": lambda: jax.block_until_ready(hvd.grouped_allreduce(given)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    expected = count * sum(index + (comm.size - 1) / 2 for index in range(arrays))
    if not np.isclose(float(within(rank)), expected, rtol=1e-3):
        raise SystemExit(f"wrong: {float(within(rank))}, not {expected}")
    for turn in range(turns + 2):
        for name in random.Random(turn).sample(list(ways), len(ways)):  # in a random order, the same on all ranks
            comm.barrier()
            began = time.perf_counter()
            ways[name]()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - began))
    hvd.barrier()
    return {"path": hvd.path(), "times": times}


def overheads(times: dict[str, list[float]]) -> dict[str, float]:
    """Overhead of each variant as a fraction of the bare collective's time: medians over the turns."""
    bases = {"kept": "bare", "eager": "bare"} | dict.fromkeys(("step", "donated", "jax.jit"), "bare in place")
    spent = dict(times)
    spent["step"] = [a - b for a, b in zip(times["step"], times["without"], strict=True)]
    return {
        way: statistics.median(a / b for a, b in zip(spent[way], times[base], strict=True)) - 1
        for way, base in bases.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--transport", default="shm", help="shm, tcp, ... (default shm)")
    parser.add_argument("--path", default="auto", choices=["auto", "ffi", "callback"], help="how programs call Ronde")
    parser.add_argument("--arrays", type=int, default=100)
    parser.add_argument("--elements", type=int, default=25_000_000, help="of all arrays together")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args()
    args = options.arrays, options.elements, options.turns, options.path
    ranks = ronde.run(measure, np=options.np, args=args, transport=options.transport)
    slowest = {
        name: [max(row) for row in zip(*(r["times"][name] for r in ranks), strict=True)] for name in ranks[0]["times"]
    }
    found = overheads(slowest)
    print(
        f"{options.arrays} arrays, {4 * options.elements / 1e6:.0f} MB, {options.np} ranks, {options.transport}, "
        f"{ranks[0]['path']}"
    )
    for name, milliseconds in slowest.items():
        more = f"   {100 * found[name]:+6.1f} %" if name in found else ""
        print(f"  {name:14} {statistics.median(milliseconds):8.2f} ms{more}")
    if options.json is not None:
        report = {
            "date": date.today().isoformat(),
            "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "options": {
                "np": options.np,
                "transport": options.transport,
                "arrays": options.arrays,
                "elements": options.elements,
                "path": ranks[0]["path"],
            },
            "overheads": found,
            "milliseconds": slowest,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
