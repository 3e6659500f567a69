"""Data-parallel training of a small network on scikit-learn's handwritten digits, in NumPy.

    ronde run -np 4 python examples/train_digits.py
    RONDE_TRANSPORT=tcp ronde run -np 4 python examples/train_digits.py

Every rank holds the same parameters and works on its share of each batch; one allreduce sums the gradients. At the end
the script shows that all ranks hold the same bits, and that the losses equal those of a single process with the whole
batches. Without `ronde run` it trains in a world of one rank.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import ronde

HIDDEN, BATCH, LEARNING_RATE, MOMENTUM = 128, 64, 0.1, 0.9


class Network:
    """64 pixels -> hidden layer (ReLU) -> 10 classes. The parameters are views of one flat vector."""

    def __init__(self, seed: int) -> None:
        shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.parameters = np.zeros(sum(sizes))
        self.gradient = np.zeros_like(self.parameters)
        bounds = np.cumsum(sizes)[:-1]
        self.w1, self.b1, self.w2, self.b2 = (
            part.reshape(shape) for part, shape in zip(np.split(self.parameters, bounds), shapes, strict=True)
        )
        self.gw1, self.gb1, self.gw2, self.gb2 = (
            part.reshape(shape) for part, shape in zip(np.split(self.gradient, bounds), shapes, strict=True)
        )
        rng = np.random.default_rng(seed)
        self.w1[:] = rng.normal(0, np.sqrt(2 / 64), self.w1.shape)
        self.w2[:] = rng.normal(0, np.sqrt(2 / HIDDEN), self.w2.shape)
        self.velocity = np.zeros_like(self.parameters)

    def logits(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ self.w1 + self.b1, 0) @ self.w2 + self.b2

    def backward(self, x: np.ndarray, y: np.ndarray) -> float:
        """The summed loss over the rows of `x`; leaves its gradient in `self.gradient`."""
        hidden = np.maximum(x @ self.w1 + self.b1, 0)
        scores = hidden @ self.w2 + self.b2
        scores -= scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        rows = np.arange(len(y))
        loss = float((log_sum[:, 0] - scores[rows, y]).sum())
        error = np.exp(scores - log_sum)
        error[rows, y] -= 1
        self.gw2[:], self.gb2[:] = hidden.T @ error, error.sum(axis=0)
        error = (error @ self.w2.T) * (hidden > 0)
        self.gw1[:], self.gb1[:] = x.T @ error, error.sum(axis=0)
        return loss

    def step(self) -> None:
        self.velocity *= MOMENTUM
        self.velocity += self.gradient
        self.parameters -= LEARNING_RATE * self.velocity


def train(network: Network, x: np.ndarray, y: np.ndarray, epochs: int, world: ronde.Communicator | None) -> list[float]:
    """The mean loss of each epoch. With `world` each rank takes every size-th row of a batch; without, all of it."""
    rank, size = (world.rank, world.size) if world else (0, 1)
    losses = []
    for epoch in range(epochs):
        began = time.perf_counter()
        order = np.random.default_rng(epoch).permutation(len(x))  # the same on every rank
        total = np.zeros(1)
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            mine = batch[rank::size]
            total += network.backward(x[mine], y[mine])
            if world:
                world.allreduce(network.gradient, out=network.gradient)
            network.gradient /= len(batch)
            network.step()
        if world:
            world.allreduce(total, out=total)
        losses.append(float(total[0]) / len(x))
        if world and rank == 0 and (epoch % 5 == 4 or epoch == 0):
            print(f"epoch {epoch + 1:2}  loss {losses[-1]:.4f}  {time.perf_counter() - began:.2f} s", flush=True)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs

    world = ronde.init()
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    test, training = order[:360], order[360:]
    if world.rank == 0:
        print(f"{len(training)} digits for training, {len(test)} for testing, {world}", flush=True)

    network = Network(seed=world.rank)  # different on purpose:
    world.broadcast(network.parameters, root=0, out=network.parameters)  # all begin with rank 0's
    losses = train(network, x[training], y[training], epochs, world)

    everyone = world.allgather(network.parameters[None])
    if world.rank == 0:
        same = all(row.tobytes() == everyone[0].tobytes() for row in everyone)
        print(f"parameters bit-identical on {world.size} ranks: {'yes' if same else 'NO'}")
        alone = train(Network(seed=0), x[training], y[training], epochs, None)
        difference = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
        close = difference < 1e-8
        print(
            f"largest difference of a loss to the one-process run: {difference:.1e} ({'ok' if close else 'TOO LARGE'})"
        )
        accuracy = float((network.logits(x[test]).argmax(axis=1) == y[test]).mean())
        print(f"test accuracy: {100 * accuracy:.1f} %", flush=True)
        if not (same and close):
            raise SystemExit(1)
    ronde.shutdown()


if __name__ == "__main__":
    main()
