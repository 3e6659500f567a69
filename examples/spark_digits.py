"""Handwritten digits in a Spark cluster: Spark has started the workers, and Ronde averages their gradients.

python examples/spark_digits.py --workers 4              # two workers of Spark on this machine
python examples/spark_digits.py --master spark://HOST:7077
ronde run -np 4 python examples/spark_digits.py --here   # the same training without Spark, with the same result
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys

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
    return float(hits.mean()), digest


def report(results: list[tuple[float, str]]) -> None:
    same = "identical" if len(set(results)) == 1 else "DIFFERENT"
    print(f"accuracy {results[0][0]:.1%} on {len(results)} ranks, parameters {same}: {results[0][1][:16]}")


def main() -> None:
    """Train in tasks of Spark, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--master", help="by default, two workers of Spark on this machine")
    parser.add_argument("--here", action="store_true", help="train in this process, which `ronde run` has started")
    options = parser.parse_args()
    if options.here:
        results = hvd.allgather_object(train(options.epochs))
        if hvd.rank() == 0:
            report(results)
        return

    from pyspark.sql import SparkSession

    from ronde.spark import run

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python is this one
    if options.master is None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = (options.workers + 1) // 2
    with SparkSession.builder.master(options.master or f"local-cluster[2,{cores},1024]").getOrCreate():
        report(run(train, [options.epochs], num_proc=options.workers))


if __name__ == "__main__":
    main()
