"""Tensor parallelism by hand, alone and with data parallelism: each rank has a part of every matrix (NumPy).

    ronde run -np 4 python examples/tensor_parallel_digits.py                  # 4 parts of every matrix
    ronde run -np 4 python examples/tensor_parallel_digits.py --tensor 2       # 2 x 2: data x tensor

A block is ReLU(x A + a) B + b. Each rank has some columns of A and the same rows of B, so that one allreduce gives the
output, and one in the backward pass the gradient of the input (Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053).
With fewer parts than ranks, `split` makes a communicator of the ranks that share a copy of the matrices, and one of the
ranks that have the same part: they take different rows of each batch and average their gradients. At the end the losses
are compared with those of one process.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

import ronde

BATCH, HIDDEN, LEARNING_RATE = 64, 128, 0.2


class Block:
    """This rank's part of a block; all of it without a communicator."""

    def __init__(self, width: int, out: int, seed: int, tensor: ronde.Communicator | None) -> None:
        numbers = np.random.default_rng(seed)
        columns, rows = numbers.normal(0, np.sqrt(2 / width), (width, HIDDEN)), numbers.normal(0, 0.1, (HIDDEN, out))
        self.tensor = tensor
        rank, size = (tensor.rank, tensor.size) if tensor else (0, 1)
        part = slice(HIDDEN * rank // size, HIDDEN * (rank + 1) // size)
        self.parameters = [columns[:, part].copy(), np.zeros(part.stop - part.start), rows[part].copy(), np.zeros(out)]
        self.gradients = [np.zeros_like(array) for array in self.parameters]

    def forward(self, x: np.ndarray) -> np.ndarray:
        first, first_bias, second, second_bias = self.parameters
        self.x, self.hidden = x, np.maximum(x @ first + first_bias, 0)
        return self._sum(self.hidden @ second) + second_bias

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        first, _, second, _ = self.parameters
        inner = (gradient @ second.T) * (self.hidden > 0)
        found = self.x.T @ inner, inner.sum(axis=0), self.hidden.T @ gradient, gradient.sum(axis=0)
        for array, value in zip(self.gradients, found, strict=True):
            array[:] = value
        return self._sum(inner @ first.T)

    def _sum(self, part: np.ndarray) -> np.ndarray:
        return self.tensor.allreduce(part, out=part) if self.tensor else part


def train(blocks: list[Block], x: np.ndarray, y: np.ndarray, data: ronde.Communicator | None) -> float:
    """One batch, or this rank's rows of it; the mean loss of these rows."""
    first, last = blocks
    hidden = x + first.forward(x)
    scores = last.forward(hidden)
    scores -= scores.max(axis=1, keepdims=True)
    log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(y))
    gradient = np.exp(log)
    gradient[rows, y] -= 1
    first.backward(last.backward(gradient / len(y)))
    gradients = [array for block in blocks for array in block.gradients]
    if data:
        data.grouped_allreduce(gradients, "average", out=gradients)
    for block in blocks:
        for array, change in zip(block.parameters, block.gradients, strict=True):
            array -= LEARNING_RATE * change
    return -float(log[rows, y].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tensor", type=int, help="number of parts of every matrix; by default the number of ranks")
    options = parser.parse_args()

    world = ronde.init()
    parts = options.tensor or world.size
    if world.size % parts:
        parser.error(f"--tensor {parts}: must divide the number of ranks, {world.size}")
    tensor, data = world.split(world.rank // parts), world.split(world.rank % parts)
    assert tensor is not None
    assert data is not None
    x, y = load_digits(return_X_y=True)
    x = x / 16
    batches = [np.random.default_rng(step).choice(len(x), BATCH, replace=False) for step in range(options.steps)]
    blocks = [Block(64, 64, 1, tensor), Block(64, 10, 2, tensor)]
    mine = [batch[data.rank :: data.size] for batch in batches]
    losses = data.allreduce(np.array([train(blocks, x[batch], y[batch], data) for batch in mine]), "average")
    if world.rank == 0:
        whole = [Block(64, 64, 1, None), Block(64, 10, 2, None)]
        alone = np.array([train(whole, x[batch], y[batch], None) for batch in batches])
        difference = float(np.abs(losses - alone).max())
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} on {data.size} x {tensor.size} ranks (data x tensor)")
        print(f"largest difference of a loss to one process: {difference:.1e}", flush=True)
        if difference > 1e-8:
            raise SystemExit(1)
    ronde.shutdown()


if __name__ == "__main__":
    main()
