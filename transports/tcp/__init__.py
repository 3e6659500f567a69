"""The TCP backend: ranks of one or many hosts, over sockets.

`link` is the link, `lanes` and `outgoing` are its connections, `striping` and
`reassembly` carry large messages over several of them, `listener`, `dialing` and `handshake` make connections, and
`dead_links` finds hosts that do not answer. Other rooms use only the names below, through the registry.
"""

from __future__ import annotations

from collections.abc import Sequence

from transports.base import Group
from transports.engine import Engine
from transports.tcp.link import TcpLink
from transports.tcp.options import Options
from transports.tcp.transport import TcpTransport

__all__ = ["Options", "TcpLink", "TcpTransport", "create", "link", "usable"]


def create(group: Group, options: Options) -> TcpTransport:
    """A TCP transport that is not yet open. No I/O."""
    return TcpTransport(group, options)


def link(engine: Engine, ranks: Sequence[int], options: Options) -> TcpLink:
    """A link for another transport. No I/O."""
    return TcpLink(engine, ranks, options)


def usable() -> str | None:
    """None: every machine has TCP."""
    return None
