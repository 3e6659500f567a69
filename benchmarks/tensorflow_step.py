"""The overhead of frontends.tensorflow per step, compared with the bare collective.

    ronde run -np 2 python benchmarks/tensorflow_step.py                    the figures of docs/performance.md
    ronde run -np 2 python benchmarks/tensorflow_step.py --rounds 5 --no-write

A step combines the gradients of 100 tensors, 25 million float32 parameters together (100 MB): DistributedGradientTape
in a tf.function, and hvd.grouped_allreduce in eager mode. They run in turns with Communicator.grouped_allreduce on
NumPy arrays of the same sizes: the tape with a call in place; eager mode, which keeps the gradients, with a call that
makes new arrays. TensorFlow's own time for the gradients is measured too, and subtracted from the tape's time. The time
of a turn is that of the slowest rank; the result is the median over the rounds of time / bare time within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import collectives
import frontends.tensorflow as hvd

RESULTS = Path(__file__).resolve().parent / "results"
IN_PLACE, NEW = "bare, in place", "bare, new arrays"
TAPE, EAGER, ALONE = "DistributedGradientTape", "eager grouped_allreduce", "GradientTape"


def shapes(tensors: int, parameters: int) -> list[int]:
    """Sizes of `tensors` tensors with `parameters` elements together, a few large and many small, as in models."""
    weights = np.linspace(0.1, 2.0, tensors)
    sizes = np.maximum(1, weights / weights.sum() * parameters).astype(int)
    sizes[-1] += parameters - sizes.sum()
    return [int(size) for size in sizes]


def contenders(sizes: list[int]) -> dict[str, Callable[[], object]]:
    """The step of each contender, by name."""
    world = collectives.world()
    arrays = [np.ones(size, np.float32) for size in sizes]
    tensors = [tf.ones([size]) for size in sizes]
    variables = [tf.Variable(tensor) for tensor in tensors]
    factor = tf.Variable(1.0)

    def gradients(distributed: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * factor) for variable in variables])
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        found = tape.gradient(loss, variables)
        with tf.control_dependencies(found):  # all gradients in memory together, as in an optimizer
            return tf.add_n([gradient[0] for gradient in found])

    return {
        IN_PLACE: lambda: world.grouped_allreduce(arrays, "average", out=arrays),
        NEW: lambda: world.grouped_allreduce(arrays, "average"),
        EAGER: lambda: hvd.grouped_allreduce(tensors, op=hvd.Average),
        TAPE: tf.function(lambda: gradients(True)),
        ALONE: tf.function(lambda: gradients(False)),
    }


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank for every contender and round."""
    world = collectives.world()
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(-2, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            world.barrier()
            begin = time.perf_counter()
            steps[name]()
            spent = float(world.allreduce(np.array([time.perf_counter() - begin]), "max")[0])
            if number >= 0:
                times[name].append(spent)
    return times


def report(times: dict[str, list[float]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians in milliseconds, and medians of ratios."""
    compared = {IN_PLACE: IN_PLACE, NEW: NEW, EAGER: NEW, TAPE: IN_PLACE}
    rows = []
    for name, bare in compared.items():
        net = np.array(times[name]) - (np.array(times[ALONE]) if name == TAPE else 0.0)
        rows.append(
            {
                "step": name,
                "milliseconds": round(float(np.median(net)) * 1e3, 2),
                "ratio": round(float(np.median(net / times[bare])), 3),
            }
        )
    return {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "tensorflow": tf.__version__,
        "ranks": hvd.size(),
        "transport": collectives.world().config.transport,
        "tensors": options.tensors,
        "bytes": 4 * options.parameters,
        "rounds": options.rounds,
        "results": rows,
    }


def main() -> None:
    """Measure, print, and write to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=100, help="how many tensors")
    parser.add_argument("--parameters", type=int, default=25_000_000, help="how many elements they have together")
    parser.add_argument("--rounds", type=int, default=40, help="how often each takes its turn")
    parser.add_argument("--no-write", action="store_true", help="only print")
    options = parser.parse_args()
    hvd.init()
    steps = contenders(shapes(options.tensors, options.parameters))
    times = measure(steps, options.rounds)
    if hvd.rank() == 0:
        found = report(times, options)
        for row in found["results"]:
            print(f"{row['step']:24s} {row['milliseconds']:9.2f} ms   {row['ratio']:6.3f} x bare")
        if not options.no_write:
            path = RESULTS / f"tensorflow-step-{hvd.size()}-ranks-{found['transport']}.json"
            path.write_text(json.dumps(found, indent=2) + "\n")
            print(f"written to {path}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
