"""Asynchronous SGD with the network of train_digits.py: workers push changes to parameter servers at their own pace.

    ronde run -np 4 python examples/parameter_server_digits.py
    ronde run -np 5 --min-np 5 --max-np 5 --spares 1 python examples/parameter_server_digits.py --servers 2 --kill 4
    ronde run -np 4 --min-np 4 --max-np 4 --spares 1 python examples/parameter_server_digits.py --kill 2

The last ranks are servers. A step of worker 1 takes 10 times as long as one of the others. The script compares accuracy
and throughput with training that averages the workers' gradients in each step. In the other lines a process kills
itself on the way, a server and a worker: a spare takes its place, and the script shows how many changes were lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from train_digits import Network

import ronde
from ronde.parameter_server import Synchronizer

ROWS, RATE, NAMES = 128, 1.0, ("w1", "b1", "w2", "b2")


def rate(done: float) -> float:
    """The learning rate when this fraction of the training is done. It falls to 0, so that the accuracy at the end does
    not depend on which changes came last."""
    return RATE * max(1 - done, 0.0)


def gradients(network: Network, x: np.ndarray, y: np.ndarray, seed: tuple[int, ...], pause: float) -> None:
    """The gradient of the mean loss of some random rows, which takes `pause` seconds longer."""
    chosen = np.random.default_rng(seed).integers(len(x), size=ROWS)
    network.backward(x[chosen], y[chosen])
    network.gradient /= ROWS
    time.sleep(pause)


def asynchronous(x: np.ndarray, y: np.ndarray, options: argparse.Namespace, folder: Path) -> tuple[Network, int, int]:
    """Train with so many changes of all workers together. Returns network, changes pushed here, and changes applied."""
    network, pushed = Network(seed=0), 0
    workers = ronde.size() - options.servers
    params = {name: getattr(network, name) for name in NAMES} | {"changes": np.zeros(1)}
    sync = Synchronizer(
        params, servers=options.servers, snapshots=folder, every=options.every, elastic=bool(options.kill)
    )
    sync.start()
    number = int(os.environ.get("RONDE_RANK", "100"))  # a newcomer has none
    if options.kill and number == options.kill:
        threading.Timer(options.after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while sync.role == "worker":
        params = sync.pull_all()
        if params["changes"] >= options.steps * workers:
            break
        for name in NAMES:
            getattr(network, name)[:] = params[name]
        gradients(network, x, y, (number, pushed), options.pause * (10 if number == 1 else 1))
        factor = -rate(params["changes"][0] / (options.steps * workers)) / workers
        sync.push_all({name: factor * getattr(network, f"g{name}") for name in NAMES} | {"changes": np.ones(1)})
        pushed += 1
    final = sync.finish()
    for name in NAMES:
        getattr(network, name)[:] = final[name]
    return network, pushed, int(final["changes"][0])


def synchronous(x: np.ndarray, y: np.ndarray, options: argparse.Namespace, workers: ronde.Communicator) -> Network:
    """Train on the same number of gradients, averaged over the workers in each step."""
    network = Network(seed=0)
    for step in range(options.steps):
        gradients(network, x, y, (workers.rank, step), options.pause * (10 if workers.rank == 1 else 1))
        workers.allreduce(network.gradient, "average", out=network.gradient)
        network.parameters -= rate(step / options.steps) * network.gradient
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150, help="changes per worker on the average")
    parser.add_argument("--pause", type=float, default=0.004, help="seconds of a step of a fast worker")
    parser.add_argument("--every", type=int, default=50, help="updates between two snapshots")
    parser.add_argument("--kill", type=int, default=0, metavar="PROCESS", help="kill this process")
    parser.add_argument("--after", type=float, default=0.5, help="seconds after which it is killed")
    options = parser.parse_args()

    ronde.init()
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    test, training = order[:360], order[360:]

    def accuracy(network: Network) -> float:
        return 100 * float((network.logits(x[test]).argmax(axis=1) == y[test]).mean())

    job = os.environ.get("RONDE_JOB", str(os.getppid()))
    folder = Path(tempfile.gettempdir()) / f"parameter-server-{job}"
    began = time.perf_counter()
    network, pushed, applied = asynchronous(x[training], y[training], options, folder)
    took = time.perf_counter() - began
    world = ronde.world()
    pushed = int(world.allreduce(pushed))
    if world.rank == 0:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        print(f"accuracy {accuracy(network):.1f} %; changes pushed {pushed}, applied {applied}", flush=True)
    if options.kill:
        if world.rank == 0 and accuracy(network) < 93:
            raise SystemExit("the accuracy is too low")
        ronde.shutdown()
        return
    workers = world.split(0 if world.rank < world.size - options.servers else None)
    if workers is not None:
        began = time.perf_counter()
        reference = synchronous(x[training], y[training], options, workers)
        times = (time.perf_counter() - began) / took * applied / (options.steps * workers.size)
        if world.rank == 0:
            print(f"with gradients averaged in each step {accuracy(reference):.1f} %")
            print(f"throughput {times:.1f} times that of synchronous training", flush=True)
            if accuracy(network) < accuracy(reference) - 1:
                raise SystemExit("the accuracy is too low")
    ronde.shutdown()


if __name__ == "__main__":
    main()
