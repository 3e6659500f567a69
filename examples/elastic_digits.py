"""The network of train_digits.py, trained by ranks that come and go.

    ronde run -np 3 --min-np 2 --max-np 3 --spares 1 python examples/elastic_digits.py --kill 200
    ronde run -np 2 --min-np 1 --host-discovery-script ./hosts.sh python examples/elastic_digits.py

Here process 1 kills itself at step 200; or the script names another host. The other ranks regroup and go on from the
last commit, and newcomers get the state from them. At the end all ranks hold the same bits, and the accuracy is that of
a job that nothing happened to.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from train_digits import BATCH, Network

import ronde
from ronde.elastic import Sampler, State, run


@run
def train(state: Any, network: Network, x: np.ndarray, y: np.ndarray, epochs: int, kill: int) -> None:
    """Begins where the state says: at first, after ranks were lost, and when others have come or are to leave."""
    world = ronde.world()
    network.parameters[:], network.velocity[:] = state.parameters, state.velocity
    state.parameters, state.velocity = network.parameters, network.velocity
    if world.rank == 0:
        print(f"step {state.step}: {world.size} ranks", flush=True)
    while state.sampler.epoch < epochs:
        while len(samples := state.sampler.take(max(1, BATCH // world.size))):
            network.backward(x[samples], y[samples])
            world.allreduce(network.gradient, out=network.gradient)
            network.gradient /= len(samples) * world.size
            network.step()
            state.step += 1
            if state.step == kill and os.environ.get("RONDE_RANK") == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
        state.sampler.next_epoch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--kill", type=int, default=0, metavar="STEP", help="kill process 1 at this step")
    options = parser.parse_args()

    ronde.init()
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    test, training = order[:360], order[360:]

    network = Network(seed=0)
    state = State(
        parameters=network.parameters, velocity=network.velocity, sampler=Sampler(len(training), seed=1), step=0
    )
    train(state, network, x[training], y[training], options.epochs, options.kill)

    world = ronde.world()
    everyone = world.allgather(network.parameters[None])
    if world.rank == 0:
        same = all(row.tobytes() == everyone[0].tobytes() for row in everyone)
        accuracy = float((network.logits(x[test]).argmax(axis=1) == y[test]).mean())
        print(f"parameters bit-identical on {world.size} ranks: {'yes' if same else 'NO'}")
        print(f"test accuracy: {100 * accuracy:.1f} %", flush=True)
        if not same:
            raise SystemExit(1)
    ronde.shutdown()


if __name__ == "__main__":
    main()
