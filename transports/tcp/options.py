"""Settings of the TCP transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from transports.base import Group
from transports.cores import Cores
from transports.errors import ConfigError
from transports.tcp.frames import MAX_CONNECTIONS

AUTOMATIC: Final = -1
_SPIN: Final = 500e-6
_SPIN_BY_TURNS: Final = 100e-6
_CONNECTIONS: Final = 1
"""More of them use less of a slow link, since congestion control does not share it out evenly: see decisions/0013."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the TCP transport. Raises ConfigError for a value out of range.

    interface            name or address of the network interface to listen on; "" chooses: loopback when all ranks
                         share one host, else the interface that leads to the other hosts
    peer_timeout         seconds, at least 1, after which a host without an answer on the level of TCP is lost. The
                         ranks raise up to 2 s later if the store does not answer either; if no data are on the way to
                         the host, another 2 s or two fifths of this time later
    handshake_timeout    seconds, 0.01 or more: limit for an accepted connection to prove that it belongs to the job
    socket_buffer_bytes  size of each socket's send and receive buffer; 0 lets the system choose and adapt it
    max_parked_bytes     at least 0: total payload of unexpected messages. A frame that would exceed it stays in the
                         network, and its sender waits, until its receive is posted or there is room. A rank's
                         messages to itself count, and never wait
    connections          connections to each peer for the pieces of large messages, beside the main one, at most 64; 0
                         for none; -1 chooses: 1 to a rank on another host, none to one on the same. Each rank has its
                         own setting, for the messages that it sends
    spread_bytes         at least 1: a message of this length or longer is spread
    spin_us              microseconds that a wait polls before it sleeps, yielding the core at intervals; -1
                         chooses: 500 if the host has a core for each of its ranks, else 100; 0 for ranks that are
                         threads of one process
    affinity             True: a waiting thread may bind itself to this rank's part of the host's cores while it waits;
                         False: the affinity of threads is never changed
    """

    interface: str = ""
    peer_timeout: float = 2.5
    handshake_timeout: float = 10.0
    socket_buffer_bytes: int = 0
    max_parked_bytes: int = 1 << 30
    connections: int = AUTOMATIC
    spread_bytes: int = 1 << 20
    spin_us: int = AUTOMATIC
    affinity: bool = True

    def __post_init__(self) -> None:
        _require(1 <= self.peer_timeout <= 86400, "peer_timeout", self.peer_timeout, "1 to 86400 seconds")
        shortest = 0.01  # with less no rank gets a connection
        text = f"{shortest} to 86400 seconds"
        _require(shortest <= self.handshake_timeout <= 86400, "handshake_timeout", self.handshake_timeout, text)
        _require(
            0 <= self.socket_buffer_bytes < 1 << 31,
            "socket_buffer_bytes",
            self.socket_buffer_bytes,
            "0 to 2**31 - 1 bytes",
        )
        _require(self.max_parked_bytes >= 0, "max_parked_bytes", self.max_parked_bytes, "0 bytes or more")
        _require(
            AUTOMATIC <= self.connections <= MAX_CONNECTIONS,
            "connections",
            self.connections,
            f"-1 to {MAX_CONNECTIONS}",
        )
        _require(self.spread_bytes >= 1, "spread_bytes", self.spread_bytes, "1 byte or more")
        _require(AUTOMATIC <= self.spin_us <= 1_000_000, "spin_us", self.spin_us, "-1 to 1000000 microseconds")


def spin_seconds(cores: Cores, options: Options) -> float:
    """The seconds that a wait polls before it sleeps."""
    if options.spin_us != AUTOMATIC:
        return options.spin_us * 1e-6
    if cores.suffice:
        return _SPIN
    return 0.0 if cores.shares_process else _SPIN_BY_TURNS


def connections_to(group: Group, peer: int, options: Options) -> int:
    """Number of connections that large messages to a peer are spread over."""
    if options.connections != AUTOMATIC:
        return options.connections
    members = group.members
    return 0 if members[peer].host == members[group.rank].host else _CONNECTIONS


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name}={value!r}: must be {allowed}")
