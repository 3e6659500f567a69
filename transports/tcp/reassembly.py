"""Reassembly: receives the pieces of large messages from a peer over several connections. The sender is in `striping`.

A piece is read straight into the memory that the match queue has found for its message. Until the message has been
announced on the main lane, and has such memory, the piece's stripe is not read.
"""

from __future__ import annotations

import socket
from typing import Final

from transports.errors import RondeError, TransportError
from transports.loop import Loop
from transports.matching import Target
from transports.tcp.frames import GOODBYE_FRAME, HEADER, MAX_CONNECTIONS, PIECE, PIECE_BYTES, SERIALS
from transports.tcp.lanes import Lane, LaneOwner

_FUTURE: Final = SERIALS // 2
"""Number of messages that may be announced after one of their pieces arrives; lower numbers are of earlier messages."""


class _Message:
    """A message with missing pieces."""

    __slots__ = ("_offsets", "_place", "left")

    def __init__(self, place: Target) -> None:
        self._place = place
        self._offsets: set[int] = set()
        self.left = len(place.view)

    @property
    def length(self) -> int:
        return len(self._place.view)

    def claim(self, offset: int, length: int) -> memoryview:
        """The destination of a piece. Raises TransportError if it is off the grid of pieces, or a duplicate."""
        if offset % PIECE_BYTES or offset >= self.length or length != min(PIECE_BYTES, self.length - offset):
            raise TransportError(f"{length} bytes at {offset} are not a piece of a message of {self.length} bytes")
        if offset in self._offsets:
            raise TransportError(f"received the piece at {offset} of a message of {self.length} bytes twice")
        self._offsets.add(offset)
        return self._place.view[offset : offset + length]

    def came(self, nbytes: int) -> bool:
        """Count an arrived piece of `nbytes`; True if it was the last."""
        self.left -= nbytes
        if self.left:
            return False
        self._place.finish()
        return True


class _Arriving:
    """An arriving piece."""

    __slots__ = ("_reassembly", "_serial", "view")

    def __init__(self, reassembly: Reassembly, serial: int, view: memoryview) -> None:
        self._reassembly = reassembly
        self._serial = serial
        self.view = view

    def finish(self) -> None:
        self._reassembly.came(self._serial, len(self.view))


class Reassembly:
    """The striped messages from one peer. It is the `LaneOwner` of the stripes."""

    def __init__(self, owner: LaneOwner, loop: Loop, peer: int) -> None:
        self._owner = owner
        self._loop = loop
        self._peer = peer
        self._stripes: dict[int, InboundStripe] = {}
        self._messages: dict[int, _Message] = {}
        self._announced = 0

    @property
    def stripes(self) -> list[InboundStripe]:
        """All stripes, including closed ones."""
        return list(self._stripes.values())

    def accepted(self, sock: socket.socket, connection: int) -> str | None:
        """Take the socket of a lane of pieces. Returns the reason if it is refused."""
        if connection > MAX_CONNECTIONS:
            return f"it introduced itself as connection {connection}: the limit is {MAX_CONNECTIONS}"
        if connection in self._stripes:
            return f"it introduced itself as connection {connection}, which was made before"
        self._stripes[connection] = InboundStripe(self, self._loop, self._peer, sock)
        return None

    def pump(self) -> bool:
        """Read the pieces that have arrived; True if there were any."""
        return bool(self._messages) and sum(stripe.pump() for stripe in self.stripes) > 0

    def came(self, serial: int, nbytes: int) -> None:
        """Count a complete piece of message number `serial`."""
        if self._messages[serial].came(nbytes):
            del self._messages[serial]

    def forget(self) -> None:
        """Release all views of buffers, after the lanes were closed."""
        self._messages.clear()

    # Called by the main lane.

    def expect(self, place: Target) -> None:
        if not len(place.view):
            raise TransportError("an empty message in pieces was announced")
        self._messages[self._announced] = _Message(place)
        self._announced = (self._announced + 1) % SERIALS
        for stripe in self.stripes:
            stripe.resume()

    def complete(self) -> None:
        lost = sum(message.left for message in self._messages.values())
        if lost:
            raise TransportError(f"it closed, but {lost} bytes of messages in pieces are missing")
        if any(stripe.held for stripe in self.stripes):
            raise TransportError("it closed, but a piece of a message arrived that was not announced")

    def progress(self) -> str:
        message = next(iter(self._messages.values()), None)
        if message is None:
            return ""
        return f"{message.length - message.left} of {message.length} bytes of a message have arrived, in pieces"

    # Called by the lanes of pieces.

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        return False

    def arrive(self, peer: int, tag: int, check: int, length: int) -> Target | None:
        offset, serial = tag, check
        message = self._messages.get(serial)
        if message is not None:
            return _Arriving(self, serial, message.claim(offset, length))
        if (serial - self._announced) % SERIALS < _FUTURE:
            return None
        raise TransportError(f"received a piece of message {serial}, which was complete")

    def abort_received(self, cause: RondeError) -> None:
        self._owner.abort_received(cause)

    def goodbye_received(self, lane: Lane) -> None:
        lane.send_last(GOODBYE_FRAME)
        lane.release()

    def connection_lost(self, lane: Lane, error: Exception) -> None:
        self._owner.connection_lost(lane, error)


class InboundStripe(Lane):
    """A lane of pieces from a peer. It reads only the header until the payload's destination is known."""

    _data = PIECE

    def __init__(self, reassembly: Reassembly, loop: Loop, peer: int, sock: socket.socket) -> None:
        super().__init__(reassembly, loop, peer, bytearray(HEADER.size))
        self.attach(sock)
