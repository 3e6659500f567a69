"""The alpha-beta-gamma model: the cost of a message, of a byte sent, of a byte combined and of a byte copied.

R. Hockney, "The communication challenge for MPP", 1994 (alpha, beta); Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005 (gamma, and its use for choosing algorithms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from collectives.algorithms import Algorithm, Cost
from collectives.schedule import Geometry


@dataclass(frozen=True, slots=True)
class Model:
    """Costs in seconds: per message (alpha), per byte sent (beta), combined (gamma), copied (copy), and copied by the
    kernel out of another process (read), and per signal that one-sided algorithms wait for (signal).

    alpha and beta are those between ranks of one host; inter_alpha and inter_beta those across hosts. gamma, copy,
    read and signal are those of two ranks on two cores of an AMD Zen 4.
    """

    alpha: float = 20e-6
    beta: float = 0.8e-9
    gamma: float = 0.04e-9
    copy: float = 0.06e-9
    read: float = 0.1e-9
    signal: float = 3e-6
    inter_alpha: float = 50e-6
    inter_beta: float = 0.9e-9

    def link(self, geometry: Geometry, a: int, b: int) -> tuple[float, float]:
        """Return alpha and beta between two ranks."""
        hosts = geometry.hosts
        if hosts and hosts[a] != hosts[b]:
            return self.inter_alpha, self.inter_beta
        return self.alpha, self.beta


@lru_cache(maxsize=4096)
def _cost(cost: Callable[[Geometry], Cost], geometry: Geometry) -> Cost:
    """Return the terms of an algorithm, computed once for each geometry: they do not depend on the size."""
    return cost(geometry)


def predict(algorithm: Algorithm, geometry: Geometry, nbytes: int, model: Model) -> float:
    """Predict the seconds that an algorithm takes for `nbytes` in all blocks together (alltoall: in one rank's row).

    If ranks are on several hosts, all traffic is taken to cross hosts that the algorithm does not declare local.
    """
    cost = _cost(algorithm.cost, geometry)
    across = len(set(geometry.hosts)) > 1
    alpha, beta = (model.inter_alpha, model.inter_beta) if across else (model.alpha, model.beta)
    if algorithm.onesided:
        alpha = model.signal
    rounds, sent = cost.rounds - cost.local_rounds, cost.sent - cost.local_sent
    copied = cost.copied * model.copy + cost.read * model.read
    return (
        rounds * alpha
        + cost.local_rounds * model.alpha
        + nbytes * (sent * beta + cost.local_sent * model.beta + cost.reduced * model.gamma + copied)
    )
