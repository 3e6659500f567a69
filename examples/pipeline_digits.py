"""Pipeline parallelism by hand: each rank has one layer, and batches travel through the ranks in parts (NumPy).

    ronde run -np 4 python examples/pipeline_digits.py

A batch is cut into micro-batches. A rank receives the output of the layer before it, and sends its own to the next; in
the backward pass gradients travel the other way. All receives are posted before the batch, and sends do not wait, so
that ranks compute while data travels. The order of each rank is 1F1B (one forward, one backward): it keeps the
activations of as many micro-batches as there are ranks after it, not of all. At the end the losses are compared with
those of one process.
"""

from __future__ import annotations

import argparse
from collections import deque

import numpy as np
from sklearn.datasets import load_digits

import ronde

BATCH, MICRO_BATCHES, WIDTH, LEARNING_RATE = 64, 8, 96, 0.2
FORWARD, BACKWARD = 1, 2
"""Tags of the messages."""


class Layer:
    """ReLU(x W + b), or x W + b for the last layer. Activations are kept until their backward pass."""

    def __init__(self, number: int, count: int) -> None:
        before, after = (64 if number == 0 else WIDTH), (10 if number == count - 1 else WIDTH)
        self.last = number == count - 1
        self.weights = np.random.default_rng(number).normal(0, np.sqrt(2 / before), (before, after))
        self.bias = np.zeros(after)
        self.kept: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self.zero()

    def zero(self) -> None:
        self.weights_gradient, self.bias_gradient = np.zeros_like(self.weights), np.zeros_like(self.bias)

    def forward(self, x: np.ndarray) -> np.ndarray:
        out = x @ self.weights + self.bias
        out = out if self.last else np.maximum(out, 0)
        self.kept.append((x, out))
        return out

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        x, out = self.kept.popleft()
        gradient = gradient if self.last else gradient * (out > 0)
        self.weights_gradient += x.T @ gradient
        self.bias_gradient += gradient.sum(axis=0)
        return gradient @ self.weights.T

    def step(self) -> None:
        self.weights -= LEARNING_RATE * self.weights_gradient
        self.bias -= LEARNING_RATE * self.bias_gradient
        self.zero()


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The sum of the losses, and the gradient of their mean over a batch."""
    scores = scores - scores.max(axis=1, keepdims=True)
    log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(log)
    gradient[rows, labels] -= 1
    return -float(log[rows, labels].sum()), gradient / BATCH


def pipelined(layer: Layer, x: np.ndarray, y: np.ndarray) -> float:
    """One batch. Returns its loss on the last rank, 0 on the others."""
    world = ronde.world()
    first, last, rows = world.rank == 0, world.rank == world.size - 1, len(x) // MICRO_BATCHES
    parts, labels = np.split(x, MICRO_BATCHES), np.split(y, MICRO_BATCHES)
    before, after = (np.empty((MICRO_BATCHES, rows, WIDTH)) for _ in range(2))
    inputs = [] if first else [world.recv_async(place, world.rank - 1, tag=FORWARD) for place in before]
    gradients = [] if last else [world.recv_async(place, world.rank + 1, tag=BACKWARD) for place in after]
    outputs, sending, loss = {}, [], 0.0

    def forward(number: int) -> None:
        out = layer.forward(parts[number] if first else inputs[number].wait())
        if last:
            outputs[number] = out
        else:
            sending.append(world.send_async(out, world.rank + 1, tag=FORWARD))

    def backward(number: int) -> float:
        own, gradient = cross_entropy(outputs.pop(number), labels[number]) if last else (0.0, gradients[number].wait())
        back = layer.backward(gradient)
        if not first:
            sending.append(world.send_async(back, world.rank - 1, tag=BACKWARD))
        return own

    ahead = min(world.size - 1 - world.rank, MICRO_BATCHES)
    for number in range(ahead):
        forward(number)
    for number in range(MICRO_BATCHES):
        if number + ahead < MICRO_BATCHES:
            forward(number + ahead)
        loss += backward(number)
    for work in sending:
        work.wait()
    layer.step()
    return loss / BATCH


def alone(layers: list[Layer], x: np.ndarray, y: np.ndarray) -> float:
    """The same batch in one process."""
    for layer in layers:
        x = layer.forward(x)
    loss, gradient = cross_entropy(x, y)
    for layer in reversed(layers):
        gradient = layer.backward(gradient)
        layer.step()
    return loss / BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    world = ronde.init()
    images, classes = load_digits(return_X_y=True)
    images = images / 16
    batches = [np.random.default_rng(step).choice(len(images), BATCH, replace=False) for step in range(steps)]
    layer = Layer(world.rank, world.size)
    losses = [pipelined(layer, images[batch], classes[batch]) for batch in batches]
    if world.rank == world.size - 1:
        layers = [Layer(number, world.size) for number in range(world.size)]
        difference = max(
            abs(alone(layers, images[batch], classes[batch]) - loss)
            for batch, loss in zip(batches, losses, strict=True)
        )
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} with {world.size} layers on {world.size} ranks")
        print(f"largest difference of a loss to one process: {difference:.1e}", flush=True)
        if difference > 1e-8:
            raise SystemExit(1)
    ronde.shutdown()


if __name__ == "__main__":
    main()
