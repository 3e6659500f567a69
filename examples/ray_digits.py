"""Handwritten digits in a Ray cluster: Ray places the workers, and Ronde averages their gradients.

python examples/ray_digits.py --workers 4               # a cluster of this machine alone
python examples/ray_digits.py --address auto            # the cluster that this machine belongs to
ronde run -np 4 python examples/ray_digits.py --here    # the same training without Ray, with the same result
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np

import ronde.numpy as hvd

BATCH, RATE = 60, 0.5


def train(epochs: int) -> tuple[float, str]:
    """Softmax regression on this rank's rows of the digits; the accuracy, and a digest of the parameters."""
    from sklearn.datasets import load_digits

    hvd.init()
    x, y = load_digits(return_X_y=True)
    x, order = x / 16, np.random.default_rng(0).permutation(len(x))
    rows, test = order[:1500], order[1500:]
    parameters = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
    batch = BATCH // hvd.size()
    for epoch in range(epochs):
        mine, labels = hvd.shard(x[rows], y[rows], shuffle=True, epoch=epoch)
        for start in range(0, len(mine), batch):
            inputs, truth = mine[start : start + batch], labels[start : start + batch]
            scores = np.exp(inputs @ parameters["weights"] + parameters["bias"])
            error = (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[truth]) / len(inputs)
            gradients = hvd.allreduce({"weights": inputs.T @ error, "bias": error.sum(axis=0)})
            for name, gradient in gradients.items():
                parameters[name] -= RATE * gradient
    hits = (x[test] @ parameters["weights"] + parameters["bias"]).argmax(1) == y[test]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in parameters.values())).hexdigest()
    print(f"rank {hvd.rank()} of {hvd.size()} is done", flush=True)
    return float(hits.mean()), digest


def report(results: list[tuple[float, str]]) -> None:
    same = "identical" if len(set(results)) == 1 else "DIFFERENT"
    print(f"accuracy {results[0][0]:.1%} on {len(results)} ranks, parameters {same}: {results[0][1][:16]}")


def main() -> None:
    """Train on the workers of a Ray cluster, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--address", help="the cluster's address; without one, a cluster is started here")
    parser.add_argument("--here", action="store_true", help="train in this process, which `ronde run` has started")
    options = parser.parse_args()
    if options.here:
        result = train(options.epochs)
        results = hvd.allgather_object(result)
        if hvd.rank() == 0:
            report(results)
        return

    import ray

    from ronde.ray import RayExecutor

    ray.init(**({"address": options.address} if options.address else {"num_cpus": options.workers}))
    with RayExecutor(num_workers=options.workers) as executor:
        report(executor.run(train, [options.epochs]))


if __name__ == "__main__":
    main()
