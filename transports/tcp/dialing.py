"""The connections that a rank is making, until they are lanes."""

from __future__ import annotations

import socket
from collections.abc import Callable

from transports.base import Group
from transports.errors import RondeError
from transports.loop import Loop
from transports.tcp.addresses import Address
from transports.tcp.handshake import Dial
from transports.tcp.options import Options
from transports.tcp.outgoing import Outgoing


class Dialing:
    """Makes connections for lanes. `addresses` must be set before the first."""

    def __init__(
        self, unreachable: Callable[[int, RondeError], None], loop: Loop, group: Group, options: Options
    ) -> None:
        """`unreachable`: called with a peer that no connection can be made to, and the error. The lane is released."""
        self.addresses: dict[int, Address] = {}
        self._unreachable = unreachable
        self._loop = loop
        self._group = group
        self._options = options
        self._lanes: dict[Dial, Outgoing] = {}

    @property
    def dials(self) -> list[Dial]:
        """The connections that are being made."""
        return list(self._lanes)

    def begin(self, lane: Outgoing, connection: int) -> None:
        """Connect a lane to its peer, as connection number `connection` between the two ranks."""
        dial = Dial(
            self._dialed,
            self._failed,
            self._loop,
            rank=self._group.rank,
            peer=lane.peer,
            connection=connection,
            address=self.addresses[lane.peer],
            secret=self._group.secret,
            purpose=purpose(self._group, lane.peer),
            tls=self._group.tls,
            options=self._options,
        )
        self._lanes[dial] = lane
        dial.start()

    def pending(self, peer: int) -> bool:
        """True while a connection to a peer is being made."""
        return any(dial.peer == peer for dial in self._lanes)

    def abandon(self, peer: int) -> None:
        """Abandon the connections to a peer that are being made, and release their lanes."""
        for dial in [dial for dial in self._lanes if dial.peer == peer]:
            dial.close()
            self._lanes.pop(dial).release()

    def close(self) -> None:
        """Abandon all connections that are being made. Idempotent."""
        for dial in self._lanes:
            dial.close()
        self._lanes.clear()

    def _dialed(self, dial: Dial, sock: socket.socket) -> None:
        self._lanes.pop(dial).attach(sock)

    def _failed(self, dial: Dial, error: RondeError) -> None:
        self._lanes.pop(dial).release()
        own, peer = self._group.rank, dial.peer
        text = f"rank {own} cannot connect to {self._group.describe(peer)} at {error.message}"
        here, there = self._group.members[own], self._group.members[peer]
        if here.host != there.host and self.addresses[peer][0] == self.addresses[own][0]:
            text += "; this host has that address too: name the interface that joins the hosts (setting interface)"
        self._unreachable(peer, type(error)(text, rank=own, peer=peer))


def purpose(group: Group, receiver: int) -> bytes:
    """The purpose that a lane's handshake proves, so that a handshake recorded on another lane is worthless."""
    return b"ronde tcp lane to rank %d of %d, generation %d" % (receiver, group.size, group.generation)
