"""The transport whose ranks all share a host."""

from __future__ import annotations

from transports.base import Group, LinkCost
from transports.engine import Engine, Link
from transports.shm.link import ShmLink
from transports.shm.options import Options


class ShmTransport(Engine):
    """Bytes between the ranks of one host, through memory that they share."""

    name = "shm"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        self._options = options or Options()
        super().__init__(group, "shared-memory transport", affinity=self._options.affinity)

    def _choose(self, deadline: float) -> tuple[Link, ...]:
        return (ShmLink(self, range(self.size), self._options),)

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        """Measured on two cores of an AMD Zen 3; there are no ranks on other hosts."""
        cost = LinkCost(7e-6, 0.3e-9)
        return cost, cost
