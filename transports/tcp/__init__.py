"""The TCP backend: ranks of one or many hosts, over sockets. See `transport`."""

from __future__ import annotations

from transports.base import Group
from transports.tcp.options import Options
from transports.tcp.transport import TcpTransport

__all__ = ["Options", "TcpTransport", "create", "usable"]


def create(group: Group, options: Options) -> TcpTransport:
    """A TCP transport that is not yet open. No I/O."""
    return TcpTransport(group, options)


def usable() -> str | None:
    """None: every machine has TCP."""
    return None
