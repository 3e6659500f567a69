"""A small training whose parameters depend on the number of ranks in each step, and an oracle that does it alone.

Everything is in whole numbers. So the order in which ranks add does not matter, and the parameters of a job must equal
those of the oracle bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.elastic import Sampler

SAMPLES, BATCH, SEED = 97, 3, 5
DATA = np.random.default_rng(1).integers(-9, 9, (SAMPLES, 4))
MODULUS = 1009

Numbers = NDArray[np.int64]


def first_weights() -> Numbers:
    """The parameters at the beginning."""
    return np.zeros(DATA.shape[1], np.int64)


def first_sampler() -> Sampler:
    """The sampler at the beginning."""
    return Sampler(SAMPLES, seed=SEED)


def gradient(weights: NDArray[Any], parts: Sequence[NDArray[Any]]) -> Numbers:
    """The sum of the gradients of ranks that have these samples."""
    return np.sum([(DATA[part] * (1 + DATA[part] @ weights % 1000)[:, None]).sum(0) for part in parts], 0)


def divided(taken: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """The samples of each rank, from those of a batch of all ranks."""
    padded = np.resize(taken, -(-len(taken) // size) * size)
    return [padded[rank::size] for rank in range(size)]


class Oracle:
    """The training in one process.

    epoch  the epoch of the next step
    done   samples of it that were taken
    """

    def __init__(self) -> None:
        self.weights = first_weights()
        self.epoch = self.done = 0
        self._sampler = first_sampler()

    def train(self, sizes: Iterable[int]) -> Oracle:
        """Go on by a step for each size of the world; returns itself."""
        for size in sizes:
            order = self._sampler.order()
            taken = order[self.done : self.done + BATCH * size]
            self.weights = self.weights - gradient(self.weights, divided(taken, size)) % MODULUS
            self.done += len(taken)
            if self.done == SAMPLES:
                self._sampler.next_epoch()
                self.epoch, self.done = self.epoch + 1, 0
        return self
