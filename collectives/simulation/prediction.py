"""One call on one network: the algorithm that Ronde would choose there, its time, and what takes most of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from collectives.algorithms import Algorithm
from collectives.planning import Choice, Demand, Rules, Selector, predict, terms
from collectives.proof import Network, simulate_on
from collectives.schedule import SPECS, Geometry
from collectives.simulation.vector import simulate_vector

EXACT: Final = 100_000
"""Steps of all ranks together up to which the exact engine is used: about ten seconds."""
_SHARED: Final = 5_000_000
"""The same, times the ranks: where messages share links, each step may change the rates of all of them."""
_SENDERS: Final = 64
"""Ranks whose NICs the exact engine may have to share among messages: its time grows with their square."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of one call.

    seconds     until the last rank ends it
    engine      vector or exact; "model" where neither can do it in seconds: the formula of the cost model
    bottleneck  the largest term of the cost model: latency, link (between hosts), host (inside one), combine or copy
    """

    ranks: int
    nbytes: int
    algorithm: str
    segments: int
    seconds: float
    engine: Literal["vector", "exact", "model"]
    bottleneck: str


def _demand(network: Network, collective: str, nbytes: int) -> Demand:
    geometry = Geometry(0, network.size, 0, 1, network.geometry_hosts)
    block = -(-nbytes // network.size) if SPECS[collective].by_rank else nbytes
    return Demand(collective, geometry, nbytes, block)


def choices(network: Network, collective: str, nbytes: int) -> Iterator[Choice]:
    """Yield every algorithm that can do a call over a network, in its best number of segments by the cost model."""
    selector, demand = Selector(network.model, Rules(), "tcp"), _demand(network, collective, nbytes)
    yield from selector.able(demand)


def predict_call(
    network: Network, collective: str, nbytes: int, *, algorithm: str | None = None, choice: Choice | None = None
) -> Prediction:
    """Predict one call on `nbytes` bytes in all blocks together (alltoall: in one rank's row).

    algorithm  by default the one that Ronde would choose on this network
    choice     an algorithm with its number of segments, in place of both

    Raises ValueError for an algorithm that cannot do it.
    """
    if choice is None:
        choice = Selector(network.model, Rules(), "tcp").choose(_demand(network, collective, nbytes), algorithm)
    found, segments = choice.algorithm, choice.segments
    geometry = Geometry(0, network.size, 0, segments, network.geometry_hosts)
    parts = terms(found, geometry, network.model)(nbytes)
    bottleneck = max(parts, key=parts.__getitem__)
    times = simulate_vector(network, found, nbytes, segments=segments)
    engine: Literal["vector", "exact", "model"] = "vector"
    if times is not None:
        seconds = float(times.max())
    elif _is_small(network, found, geometry):
        engine, seconds = "exact", simulate_on(network, found, nbytes, segments=segments).seconds
    else:
        engine, seconds = "model", predict(found, geometry, nbytes, network.model)
    return Prediction(network.size, nbytes, found.name, segments, seconds, engine, bottleneck)


def _is_small(network: Network, algorithm: Algorithm, geometry: Geometry) -> bool:
    """True if the exact engine takes seconds at most: the first rank has the most steps in trees."""
    if network.size > _SENDERS and len(set(network.hosts)) > 1 and algorithm.traffic(geometry) > 4 * network.size:
        return False
    most = min(EXACT, _SHARED // network.size) // network.size + 1
    return sum(1 for _ in islice(algorithm.generate(geometry), most)) < most
