"""Placement of workers on the nodes of a Ray cluster: a placement group, and the bundle and node of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError
from ray.util import get_current_placement_group, placement_group, placement_group_table, remove_placement_group

from collectives.launch import Place, in_rank_order
from transports.errors import DeadlineExceeded

_UNITS: Final = 10_000
"""The smallest share of a resource that Ray counts is 1 / _UNITS."""


@dataclass(frozen=True)
class Demand:
    """The workers that are wanted.

    count      their number
    resources  of each, by Ray's names: {"CPU": 1, "GPU": 1}
    per_node   workers on each of `count / per_node` nodes; None: on as few nodes as possible
    """

    count: int
    resources: Mapping[str, float]
    per_node: int | None = None

    def bundles(self) -> list[dict[str, float]]:
        """The bundles of a placement group: one for each worker, or for the workers of each node."""
        size = self.per_node or 1
        bundle = {name: amount * size for name, amount in self.resources.items() if amount}
        return [dict(bundle) for _ in range(self.count // size)]

    def __str__(self) -> str:
        each = ", ".join(f"{amount:g} {name}" for name, amount in self.resources.items() if amount)
        where = f" on nodes of {self.per_node}" if self.per_node else ""
        return f"{self.count} workers{where} with {each}"


class Placement:
    """The places of workers in the order of their ranks. `close` gives a placement group that was made here back.

    group    Ray's placement group
    bundles  the bundle of each rank
    places   the node of each rank
    """

    def __init__(self, demand: Demand, timeout: float, *, use_current: bool) -> None:
        """Reserve the resources, all or nothing.

        timeout      seconds to wait for them
        use_current  True: inside a placement group, as in Ray Tune, use its bundles

        Raises DeadlineExceeded if they cannot be had, ValueError if the current placement group is too small.
        Nothing stays reserved then.
        """
        current = get_current_placement_group() if use_current else None
        self._owned = current is None
        self._demand = demand
        if current is None:
            strategy = "STRICT_SPREAD" if demand.per_node else "PACK"
            self.group = placement_group(demand.bundles(), strategy=strategy)
            found = list(range(demand.count // (demand.per_node or 1))) * (demand.per_node or 1)
        else:
            self.group = current
            found = _fitting(current.bundle_specs, demand)
        try:
            ray.get(self.group.ready(), timeout=timeout)
        except GetTimeoutError:
            self.close()
            raise DeadlineExceeded(
                f"Ray did not place {demand} within {timeout:g} s; the cluster has "
                f"{_resources(ray.cluster_resources())}, of which {_resources(ray.available_resources())} are free"
            ) from None
        except BaseException:
            self.close()
            raise
        nodes = placement_group_table(self.group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        places = [Place(nodes[bundle], addresses[nodes[bundle]]) for bundle in found]
        order = in_rank_order(places)
        self.bundles = [found[index] for index in order]
        self.places = [places[index] for index in order]

    @property
    def is_current(self) -> bool:
        """True if it is the placement group that this process is in, whose bundles others may use."""
        return not self._owned

    def in_use(self) -> str:
        """The bundles without room for a worker now, for a message."""
        free = ray.available_resources()
        wanted = {name: amount for name, amount in self._demand.resources.items() if amount}
        taken = [
            str(bundle)
            for bundle in dict.fromkeys(self.bundles)
            if any(free.get(f"{name}_group_{bundle}_{self.group.id.hex()}", 0.0) < wanted[name] for name in wanted)
        ]
        return f"bundles without room: {', '.join(taken)}" if taken else "every bundle has room"

    def close(self) -> None:
        """Give the resources back, and end all actors in them. Idempotent."""
        if self._owned:
            self._owned = False
            remove_placement_group(self.group)


def room_in(offered: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """The number of workers with the resources `wanted` for which there are enough of those offered. Ray counts in
    shares of 1 / 10000; 1.0 // 0.1 is 9."""
    return min(
        round(offered.get(name, 0.0) * _UNITS) // max(1, round(amount * _UNITS)) for name, amount in wanted.items()
    )


def capacity(resources: Mapping[str, float]) -> int:
    """The number of workers with these resources for which the nodes that are alive are large enough."""
    wanted = {name: amount for name, amount in resources.items() if amount}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(room_in(node, wanted) for node in alive)


def _fitting(bundles: Sequence[Mapping[str, float]], demand: Demand) -> list[int]:
    """The bundles of an existing placement group for the workers; the first one last, which the caller runs in."""
    found: list[int] = []
    wanted = {name: amount for name, amount in demand.resources.items() if amount}
    for index in [*range(1, len(bundles)), 0]:
        found += [index] * room_in(bundles[index], wanted)
    if len(found) < demand.count:
        raise ValueError(
            f"the current placement group has room for {len(found)} workers, not for {demand}; "
            f"use_current_placement_group=False makes one of its own"
        )
    return found[: demand.count]


def _resources(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{found.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
