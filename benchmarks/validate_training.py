"""The prediction of a training step by `ronde simulate --trace` beside measured steps, over network namespaces.

    python -m benchmarks.validate_training --json FILE                 all steps; those in FILE are kept
    python -m benchmarks.validate_training --json FILE --rates 50mbit --worlds 4x1
    python -m benchmarks.validate_training --json FILE --worlds        only print the table of FILE

A step is recorded on two ranks of one host, and predicted for worlds of several hosts (hosts x ranks) by the function
behind `--trace`. Then the same step is measured there. Computation is a sleep, so that ranks which share cores compute
as long as they would on cores of their own. The network of the prediction comes from exchanges of two ranks alone, as
in benchmarks/validate_model.py. The quickest of the measured steps is told beside their median: other programs on the
machine make steps longer, never shorter. The program needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import collectives as ronde
from benchmarks.validate_model import BURST, CONGESTION, calibrate
from collectives.config import Config
from collectives.simulation import predict_step
from frontends.command_line.bench import machine
from frontends.command_line.training import read_trace
from tests.netns.network import Network, obstacle

STEPS: Final = {
    "few large": [(0.030, 1 << 20)] * 4,
    "many small": [(0.004, 1 << 16)] * 24,
    "hidden": [(0.050, 1 << 18)] * 6,
    "late large": [(0.005, 1 << 16)] * 10 + [(0.005, 1 << 22)],
}
"""Layers in the order of the backward pass: seconds of computation, and bytes of the gradient that follows it."""
FORWARD: Final = 0.02
REPEATED: Final = 12
WORLDS: Final = ("2x1", "4x1", "4x2")
RATES: Final = ("200mbit",)
LIMIT: Final = 120.0
"""Seconds that the ranks of a world may take."""


def train(name: str) -> None:
    """The program of a rank. Rank 0 prints the seconds of each step, and the algorithms by which it was reduced."""
    comm = ronde.init()
    layers = [(seconds, np.ones(nbytes // 4, np.float32)) for seconds, nbytes in STEPS[name]]
    lasted = []
    for _ in range(REPEATED):
        began = time.perf_counter()
        time.sleep(FORWARD)
        works = []
        for number, (seconds, gradient) in enumerate(layers):
            time.sleep(seconds)
            works.append(comm.allreduce_async(gradient, name=f"gradient {number}"))
        for work in works:
            work.wait()
        lasted.append(time.perf_counter() - began)
    if comm.rank == 0:
        counts = comm.metrics()["collectives"]["allreduce"]["algorithms"]
        print(json.dumps({"seconds": lasted[1:], "algorithms": counts}), flush=True)
    ronde.shutdown()


def run(shape: str, rate: str, name: str, timeline: Path | None = None) -> dict[str, Any]:
    """The output of rank 0 in a world: the seconds of all steps but the first, and calls by algorithm. The ranks write
    their timelines into a directory if one is given.

    Raises RuntimeError if a rank fails, TimeoutExpired if it takes too long.
    """
    hosts, each = (int(number) for number in shape.split("x"))
    names = [f"host{index}" for index in range(hosts)]
    with Network(names) as network, tempfile.TemporaryDirectory(prefix="ronde-training-") as directory:
        settings = [f"RONDE_STORE=file://{directory}", "RONDE_SECRET=", f"RONDE_SIZE={hosts * each}"]
        settings += [] if timeline is None else [f"RONDE_TIMELINE={timeline}/step.json"]
        for host in names:
            network.slow(host, rate, "400ms", BURST)
            network.hosts[host].run("sysctl -q -w", f"net.ipv4.tcp_congestion_control={CONGESTION}")
        ranks = []
        try:
            for rank in range(hosts * each):
                program = [sys.executable, "-m", "benchmarks.validate_training", "--train", name]
                command = ["env", *settings, f"RONDE_RANK={rank}", *program]
                words = network.hosts[names[rank // each]].command(*command)
                ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            said = [process.communicate(timeout=LIMIT)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    if any(process.returncode for process in ranks):
        raise RuntimeError(f"{name!r} in {shape}: a rank has failed")
    found: dict[str, Any] = json.loads(said[0])
    return found


def error(one: Mapping[str, Any], measured: float) -> float:
    """The predicted time of a step by a measured one, less one."""
    return float(one["predicted"] / measured - 1)


def print_step(one: Mapping[str, Any]) -> None:
    """A row of the table, in milliseconds: median and quickest step, prediction, and its error against both."""
    median, quickest = statistics.median(one["measured"]), min(one["measured"])
    print(
        f"{one['step']:<12}{one['world']:>5}{one['rate']:>9}{median * 1e3:>8.0f}{quickest * 1e3:>8.0f}"
        f"{one['predicted'] * 1e3:>10.0f}{error(one, median):>+8.1%}{error(one, quickest):>+8.1%}{one['calls']:>6}  "
        f"{', '.join(one['algorithms'])}",
        flush=True,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times; continued if it exists")
    parser.add_argument("--worlds", nargs="*", default=WORLDS, metavar="HxR", help=f"default: {' '.join(WORLDS)}")
    parser.add_argument("--rates", nargs="+", default=RATES, metavar="RATE", help=f"default: {' '.join(RATES)}")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--train", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate; 2 if there can be no network namespaces."""
    options = parse(arguments)
    if options.train is not None:
        train(options.train)
        return 0
    if options.json is None:
        print("--json is missing", file=sys.stderr)
        return 2
    reason = obstacle() if options.worlds else None
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    kept: dict[str, Any] = {"machine": machine(), "congestion": CONGESTION, "calibration": {}, "steps": []}
    if options.json.exists():
        kept = json.loads(options.json.read_text())
    done = {(one["rate"], one["step"], one["world"]) for one in kept["steps"]}
    print("step        world     rate  median quickest predicted  errors of both  calls  algorithms")
    for one in kept["steps"]:
        print_step(one)
    for rate, name in itertools.product(options.rates, options.steps):
        missing = [shape for shape in options.worlds if (rate, name, shape) not in done]
        if not missing:
            continue
        found = calibrate(kept, rate)
        with tempfile.TemporaryDirectory(prefix="ronde-trace-") as directory:
            run("1x2", rate, name, Path(directory))
            step = read_trace(Path(directory)).step
        for shape in missing:
            network = found.network(shape, rate, quarter=False)
            predicted = predict_step(network, step, fusion=Config().fusion_bytes)
            measured = run(shape, rate, name)
            one = {
                "step": name,
                "world": shape,
                "rate": rate,
                "measured": measured["seconds"],
                "algorithms": measured["algorithms"],
                "predicted": predicted.seconds,
                "computation": predicted.computation,
                "communication": predicted.communication,
                "calls": predicted.calls,
                "load": machine()["load"],
            }
            kept["steps"].append(one)
            print_step(one)
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    for title, pick in (("median", statistics.median), ("quickest", min)):
        errors = sorted(abs(error(one, pick(one["measured"]))) for one in kept["steps"])
        if errors:
            print(
                f"{title} of {len(errors)} steps: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
