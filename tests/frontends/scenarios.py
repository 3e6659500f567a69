"""Random trainings in which parameters are frozen, unfrozen, added, shared, sparse and unused, on some ranks or on
all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

SHAPE: Final = (3, 2)
RATE: Final = 0.125
ROUNDING: Final = 1e-5
"""The most by which a weight may be off: it is a float32, and may cancel to 0. A gradient that is lost or wrong changes
one by a third of RATE or more."""


@dataclass(frozen=True)
class Training:
    """Parameters of one shape, and steps.

    first   values of each parameter at the beginning
    late    numbers of those that join the optimizer before the second step
    frozen  for each step: those that are frozen on all ranks
    uses    for each step and rank: the use of each parameter: "dense", "sparse", "twice", "" or "frozen"
    orders  for each rank: the order in which it lists the parameters
    alone   True if a further parameter joins the optimizer of rank 0 only, before the last step
    """

    first: tuple[float, ...]
    late: frozenset[int]
    frozen: tuple[frozenset[int], ...]
    uses: tuple[tuple[tuple[str, ...], ...], ...]
    orders: tuple[tuple[int, ...], ...]
    alone: bool

    @property
    def size(self) -> int:
        return len(self.orders)

    def name(self, number: int) -> str:
        return f"layer{chr(97 + number)}.weight"

    def factor(self, step: int, rank: int, number: int) -> float:
        """The gradient's elements, where the parameter is used."""
        return float(1 + step + 2 * rank + 4 * number)

    def gradient(self, step: int, rank: int, number: int) -> Any:
        """The gradient of one rank, None if it has none."""
        use = self.uses[step][rank][number]
        if use in ("", "frozen") or number in self.frozen[step] or (number in self.late and not step):
            return None
        found = np.zeros(SHAPE)
        found[rows(rank) if use == "sparse" else slice(None)] = self.factor(step, rank, number)
        return found * (2 if use == "twice" else 1)

    def weights(self) -> list[Any]:
        """The parameters after all steps of gradient descent by one process, on the data of all ranks."""
        values = [np.full(SHAPE, first) for first in self.first]
        for step in range(len(self.uses)):
            for number, value in enumerate(values):
                shares = [self.gradient(step, rank, number) for rank in range(self.size)]
                value -= RATE * sum(share for share in shares if share is not None) / self.size
        return values


def rows(rank: int) -> list[int]:
    """The rows of a parameter that a sparse use takes."""
    return [rank % 2, 2]


@st.composite
def trainings(draw: Any, size: int, uses: tuple[str, ...] = ("dense", "sparse", "twice", "")) -> Training:
    """A training on `size` ranks."""
    count, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    some = st.frozensets(st.integers(0, count - 1), max_size=count - 1)
    use = st.sampled_from(uses)
    alike = draw(st.booleans())
    taken = []
    for _ in range(steps):
        ranks = [tuple(draw(use) for _ in range(count)) for _ in range(1 if alike else size)]
        taken.append(tuple(ranks[rank % len(ranks)] for rank in range(size)))
    order = st.permutations(range(count)).map(tuple)
    same = draw(order)
    return Training(
        tuple(float(draw(st.integers(-4, 4))) for _ in range(count)),
        draw(some),
        tuple(draw(some) for _ in range(steps)),
        tuple(taken),
        tuple(draw(order) for _ in range(size)) if draw(st.booleans()) else (same,) * size,
        draw(st.integers(0, 3)) == 0,
    )
