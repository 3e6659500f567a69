"""The transport whose ranks reach each other by TCP only."""

from __future__ import annotations

from transports.base import Group
from transports.engine import Engine, Link
from transports.tcp.link import TcpLink
from transports.tcp.options import Options


class TcpTransport(Engine):
    """Bytes between ranks over TCP."""

    name = "tcp"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        self._options = options or Options()
        super().__init__(group, "TCP transport", affinity=self._options.affinity)

    def _choose(self, deadline: float) -> tuple[Link, ...]:
        return (TcpLink(self, range(self.size), self._options),)
