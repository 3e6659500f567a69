"""The outer optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collectives.numeric import NUMBERS
from collectives.trees import Array


@dataclass(frozen=True, slots=True)
class Nesterov:
    """Gradient descent with Nesterov's momentum: v = momentum v + g; parameters -= lr (g + momentum v).

    lr         learning rate, more than 0. With lr=1 and momentum=0 the parameters become the workers' average
    momentum   from 0 to less than 1

    Source: the outer optimizer of Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language
    Models", arXiv 2311.08105, whose values are the defaults. The formula is that of torch.optim.SGD(nesterov=True).
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.lr, NUMBERS) or not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr!r}: must be a finite number above 0")
        if not isinstance(self.momentum, NUMBERS) or not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum!r}: must be a number, 0 or more and less than 1")

    def step(self, params: Array, gradient: Array, velocity: Array | None) -> None:
        """Change `params` and `velocity` in place. `gradient` is used as scratch memory.

        velocity   None without momentum
        """
        if velocity is not None:
            velocity *= self.momentum
            velocity += gradient
            gradient += np.multiply(velocity, self.momentum, dtype=velocity.dtype)
        gradient *= self.lr
        params -= gradient
