"""The TCP backend: ranks of one or many hosts, over sockets.

`transport` is the transport, `loop` moves its bytes, `lanes` and `outgoing` are its connections, `striping` and
`reassembly` carry large messages over several of them, `listener`, `dialing` and `handshake` make connections, and
`dead_links` finds hosts that do not answer. Other rooms use only the names below, through the registry.
"""

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
