"""Times the training of `examples/train_digits.py` with ranks that are threads of one process, and with ranks that are
processes, in turns.

    python -m tests.platforms.threads --ranks 4 --turns 5

The images are random numbers of the same shape as scikit-learn's, which has no wheels for every Python. A line for each
kind of ranks: the median time of an epoch, and the ratio of both.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any, Final

import numpy as np

import ronde

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "train_digits.py"
KINDS: Final = {"threads": "local", "processes": "shm"}
"""Kind of ranks -> the transport that has them."""


def example() -> Any:
    """The module of the example, which looks for scikit-learn."""
    sklearn = types.ModuleType("sklearn.datasets")
    sklearn.load_digits = None  # type: ignore[attr-defined]
    sys.modules.setdefault("sklearn", types.ModuleType("sklearn"))
    sys.modules.setdefault("sklearn.datasets", sklearn)
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def epoch_seconds(epochs: int) -> float:
    """The seconds of an epoch on this rank, after a first one."""
    digits, world, random = example(), ronde.world(), np.random.default_rng(0)
    x, y = random.random((1437, 64)), random.integers(0, 10, 1437)
    network = digits.Network(seed=0)
    digits.train(network, x, y, 1, world)
    world.barrier()
    began = time.perf_counter()
    digits.train(network, x, y, epochs, world)
    return (time.perf_counter() - began) / epochs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.platforms.threads")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args(arguments)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.turns):
        for kind, transport in KINDS.items():
            found[kind].append(max(ronde.run(epoch_seconds, given.ranks, (given.epochs,), transport=transport)))
    for kind, seconds in found.items():
        print(f"{given.ranks} {kind}: {1e3 * statistics.median(seconds):.1f} ms an epoch")
    ratios = [processes / threads for threads, processes in zip(found["threads"], found["processes"], strict=True)]
    print(f"processes / threads: {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
