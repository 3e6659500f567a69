"""An epoch of examples/torch_ddp_digits.py on the backend `ronde`, beside one on torch's gloo.

    python benchmarks/torch_epoch.py
    python benchmarks/torch_epoch.py --pairs 11 --json benchmarks/results/torch-epoch-2-ranks-shm.json

The example is run as it is, on one backend and then on the other, in changing order, `--pairs` times. A run's time is
the median of its epochs but the first, in which DistributedDataParallel makes its buckets. The ratio is the median over
the pairs of gloo's time divided by ronde's: above 1, ronde is faster. The network is small (5 thousand parameters, 50
rows in a batch), so this measures the fixed cost of a step; torch_step.py measures the cost of the bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from compare import time_text

from frontends.command_line.bench import machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "torch_ddp_digits.py"
BACKENDS = ("ronde", "gloo")
RUN_LIMIT = 300.0


def run(backend: str, options: argparse.Namespace) -> float:
    """Run the example; returns its median seconds per epoch."""
    command = [sys.executable, EXAMPLE, "--spawn", options.np, "--backend", backend, "--epochs", options.epochs]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RONDE_TRANSPORT": options.transport}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=RUN_LIMIT, check=False
    )
    seconds = [float(text) for text in re.findall(r"^epoch \d+: .* ([\d.]+) s$", done.stdout, re.MULTILINE)]
    if len(seconds) != options.epochs:
        text = f"the example ended with {done.returncode} on {backend}, after {len(seconds)} epochs"
        raise RuntimeError(f"{text}:\n{done.stdout}{done.stderr}")
    if done.returncode != 0:  # torch's gloo aborts now and then when the process ends
        print(f"{backend}: ended with {done.returncode}, after its last epoch", file=sys.stderr)
    return float(np.median(seconds[1:]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-np", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--transport", default="auto", help="Ronde's (default: auto, which is shm on one machine)")
    parser.add_argument("--epochs", type=int, default=30, help="of a run (default: 30)")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each backend (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args(arguments)
    if options.np < 2 or options.epochs < 2 or options.pairs < 1:
        parser.error("-np and --epochs must be 2 or more, --pairs 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    import torch

    options = parse(arguments)
    facts = machine() | {"torch": torch.__version__}
    print(f"{options.np} ranks, {options.transport}, {facts['cores']} x {facts['cpu']}, load {facts['load']}")
    print(f"ronde on Python {facts['python']}, NumPy {facts['numpy']}; torch {facts['torch']}\n", flush=True)
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for index in range(options.pairs):
        for backend in BACKENDS if index % 2 else BACKENDS[::-1]:
            times[backend].append(run(backend, options))
        print("   ".join(f"{name} {time_text(found[-1]):>8}" for name, found in times.items()), flush=True)
    ratio = float(np.median(np.array(times["gloo"]) / np.array(times["ronde"])))
    print(f"\ngloo / ronde  {ratio:.2f}")
    if options.json is not None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        report = {"machine": facts, "settings": settings, "seconds": times, "ratio": ratio}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
