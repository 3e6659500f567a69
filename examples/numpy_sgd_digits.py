"""Hand-written training loops on scikit-learn's handwritten digits, made data-parallel by three lines.

    ronde run -np 2 python examples/numpy_sgd_digits.py
    ronde run -np 3 python examples/numpy_sgd_digits.py --partial-fit

In the NumPy loop, every rank computes gradients on its rows and steps on the average. In the loop with scikit-learn's
`partial_fit`, every rank fits its rows, and the models are averaged after each epoch. The three lines are numbered in
comments; the code after the loops only reports the results.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import ronde.numpy as hvd

BATCH, RATE, CLASSES = 60, 0.5, np.arange(10)


def probabilities(parameters: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ parameters["weights"] + parameters["bias"])
    return scores / scores.sum(axis=1, keepdims=True)


def by_hand(x: np.ndarray, y: np.ndarray, epochs: int) -> dict[str, np.ndarray]:
    """Softmax regression by stochastic gradient descent."""
    parameters = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
    batch = BATCH // hvd.size()
    for epoch in range(epochs):
        mine, labels = hvd.shard(x, y, shuffle=True, epoch=epoch)  # line 2: this rank's rows
        losses = []
        for start in range(0, len(mine), batch):
            rows, truth = mine[start : start + batch], labels[start : start + batch]
            found = probabilities(parameters, rows)
            losses.append(-np.log(found[np.arange(len(rows)), truth]).mean())
            error = (found - np.eye(10)[truth]) / len(rows)
            gradients = {"weights": rows.T @ error, "bias": error.sum(axis=0)}
            gradients = hvd.allreduce(gradients)  # line 3: the average over the ranks
            for name, gradient in gradients.items():
                parameters[name] -= RATE * gradient
        report(epoch, float(np.mean(losses)))
    return parameters


def by_partial_fit(x: np.ndarray, y: np.ndarray, epochs: int) -> dict[str, np.ndarray]:
    """scikit-learn's classifier."""
    model = SGDClassifier(loss="log_loss", alpha=1e-3, random_state=hvd.rank())
    for epoch in range(epochs):
        mine, labels = hvd.shard(x, y, shuffle=True, epoch=epoch)  # line 2: this rank's rows
        model.partial_fit(mine, labels, classes=CLASSES)
        model.coef_, model.intercept_ = hvd.allreduce((model.coef_, model.intercept_))  # line 3: the average model
        report(epoch, 1 - model.score(mine, labels))
    return {"weights": model.coef_.T, "bias": model.intercept_}


def report(epoch: int, loss: float) -> None:
    metrics = hvd.average_metrics({"loss": loss})
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {metrics['loss']:.4f}", flush=True)


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--partial-fit", action="store_true", help="scikit-learn's classifier instead of NumPy's loop")
    options = parser.parse_args()
    hvd.init()  # line 1: find the other ranks

    x, y = load_digits(return_X_y=True)
    x, order = x / 16, np.random.default_rng(0).permutation(len(x))
    train, test = order[:1500], order[1500:]
    loop = by_partial_fit if options.partial_fit else by_hand
    parameters = loop(x[train], y[train], options.epochs)

    mine, labels = hvd.shard(x[test], y[test], remainder="uneven")
    hits = hvd.allreduce(
        int(((mine @ parameters["weights"] + parameters["bias"]).argmax(1) == labels).sum()), op=hvd.Sum
    )
    digest = hashlib.sha256(b"".join(array.tobytes() for array in parameters.values())).hexdigest()
    equal = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        same = "identical" if equal else "DIFFER"
        print(f"accuracy {hits / len(test):.1%} on {hvd.size()} ranks, parameters {same}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
