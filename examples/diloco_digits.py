"""The network of train_digits.py, trained by workers that send little: DiLoCo on scikit-learn's handwritten digits.

    ronde run -np 3 python examples/diloco_digits.py
    ronde run -np 3 --min-np 2 --max-np 3 --spares 1 python examples/diloco_digits.py --kill 333

Each worker trains by itself on its digits. Every 50 steps it combines its parameters with those of the others, in two
fragments, in the background, as 8-bit integers. In the second line process 1 kills itself at step 333: the others go
on, and the spare gets the state. The script compares bytes and accuracy with training that averages the gradients in
each step. Workers of several ranks: --ranks-per-worker 2.
"""

from __future__ import annotations

import argparse
import os
import signal

import numpy as np
from sklearn.datasets import load_digits
from train_digits import BATCH, Network

import ronde
from ronde.compression import Int8
from ronde.local_sgd import DiLoCo


def gradient(network: Network, x: np.ndarray, y: np.ndarray, seed: tuple[int, ...], rows: int) -> np.ndarray:
    """The gradient of the mean loss of some random rows."""
    chosen = np.random.default_rng(seed).integers(len(x), size=rows)
    network.backward(x[chosen], y[chosen])
    network.gradient /= rows
    return network.gradient


def synchronous(x: np.ndarray, y: np.ndarray, steps: int, rows: int) -> Network:
    """Training that averages the gradients of all ranks in each step."""
    world, network = ronde.world(), Network(seed=0)
    for step in range(steps):
        mine = gradient(network, x[world.rank :: world.size], y[world.rank :: world.size], (step, world.rank), rows)
        world.allreduce(mine.astype(np.float32), "average", out=(mean := np.empty(mine.shape, np.float32)))
        network.gradient[:] = mean
        network.step()
    return network


def loose(x: np.ndarray, y: np.ndarray, options: argparse.Namespace, rows: int) -> Network:
    """The same steps of workers that combine their parameters now and then."""
    world, each = ronde.world(), options.ranks_per_worker
    inner = world.split(world.rank // each) if each > 1 else None
    across = world.split(world.rank % each) if each > 1 else None

    network = Network(seed=0)
    params = network.parameters.astype(np.float32)
    outer = DiLoCo(
        params, comm=across, every=options.every, fragments=2, delay=5, compression=Int8(), elastic=across is None
    )
    outer.start(params)
    while outer.steps < options.steps:
        world = ronde.world()  # another one after a change of the workers
        network.parameters[:] = params
        mine = gradient(
            network, x[world.rank :: world.size], y[world.rank :: world.size], (outer.steps, world.rank), rows
        )
        if inner is not None:
            inner.allreduce(mine, "average", out=mine)
        network.step()
        params[:] = network.parameters
        if outer.steps + 1 == options.kill and os.environ.get("RONDE_RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        outer.step(params)
    network.parameters[:] = outer.sync(params)
    return network


def moved() -> int:
    """The bytes that this rank has sent in collectives since `reset_metrics`."""
    counts = ronde.world().metrics()
    return sum(row["moved"] for kind in ("collectives", "parts") for row in counts[kind].values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=50, help="steps between two rounds of a fragment")
    parser.add_argument("--kill", type=int, default=0, metavar="STEP", help="kill process 1 at this step")
    parser.add_argument("--ranks-per-worker", type=int, default=1, metavar="N")
    options = parser.parse_args()

    ronde.init()
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    test, training = order[:360], order[360:]
    rows = BATCH // 2

    network = loose(x[training], y[training], options, rows)
    world = ronde.world()
    sent = moved()
    everyone = world.allgather(network.parameters[None])
    same = all(row.tobytes() == everyone[0].tobytes() for row in everyone)

    world.reset_metrics()
    reference = synchronous(x[training], y[training], options.steps, rows)
    found, wanted = (
        100 * float((one.logits(x[test]).argmax(axis=1) == y[test]).mean()) for one in (network, reference)
    )
    if world.rank == 0:
        print(f"parameters bit-identical on {world.size} ranks: {'yes' if same else 'NO'}")
        print(f"accuracy {found:.1f} %, with gradients averaged in each step {wanted:.1f} %", flush=True)
        if options.ranks_per_worker == 1 and not options.kill:
            print(f"bytes sent: {sent:,}, with gradients {moved():,}: {moved() / sent:.0f} times as many", flush=True)
        if not same or found < wanted - 1:
            raise SystemExit(1)
    ronde.shutdown()


if __name__ == "__main__":
    main()
