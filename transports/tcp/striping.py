"""Striping: sends a large message to a peer over several connections.

The message is announced on the main lane, which keeps its order among the others, and cut into pieces. Each stripe
takes the next piece when the system has accepted its last one, and the system accepts little before it can send it: a
slow connection carries fewer pieces.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from transports.loop import Loop
from transports.requests import Sending
from transports.tcp import sockets
from transports.tcp.frames import GOODBYE_FRAME, PIECE_BYTES, SERIALS, data_header, piece_header, spread_frame
from transports.tcp.lanes import LaneOwner
from transports.tcp.outgoing import Outgoing

_UNSENT_BYTES: Final = 1 << 17
"""Bytes that may wait in the system's buffer of a stripe before they are sent. The system's own limit is megabytes: a
message of a few pieces would be divided among the stripes at once, and the slowest would determine its time."""


class _Message:
    """A message that is being sent in pieces."""

    __slots__ = ("_left", "_next", "_sending", "_serial", "_view")

    def __init__(self, serial: int, view: memoryview, sending: Sending) -> None:
        self._serial = serial
        self._view = view
        self._sending = sending
        self._next = 0
        self._left = len(view)

    def cut(self) -> tuple[bytes, memoryview] | None:
        """The next piece, header and payload; None if there are no more."""
        offset = self._next
        payload = self._view[offset : offset + PIECE_BYTES]
        if not payload:
            return None
        self._next = offset + len(payload)
        return piece_header(self._serial, offset, len(payload)), payload

    def taken(self, nbytes: int) -> None:
        """Count a piece of `nbytes` that the system has accepted."""
        self._left -= nbytes
        if not self._left:
            self._sending.done = True

    @property
    def uncut_bytes(self) -> int:
        """Bytes that are not yet assigned to a stripe."""
        return len(self._view) - self._next


class Striping:
    """The striped messages to one peer. Its connections are made when they are first needed.

    main         the main lane to the peer
    connect      connects a lane, as the connection of the given number
    connections  the number of connections for pieces; 0: all messages use the main lane
    """

    def __init__(
        self, owner: LaneOwner, loop: Loop, main: Outgoing, connect: Callable[[Outgoing, int], None], connections: int
    ) -> None:
        self.stripes: list[OutboundStripe] = []
        self._owner = owner
        self._loop = loop
        self._main = main
        self._connect = connect
        self._connections = connections
        self._serial = 0
        self._messages: deque[_Message] = deque()
        self._parting = False

    @property
    def queued_bytes(self) -> int:
        """Bytes for the peer that the system has not accepted yet, on all lanes."""
        lanes = sum(lane.queued_bytes for lane in (self._main, *self.stripes))
        return lanes + sum(message.uncut_bytes for message in self._messages)

    @property
    def parted(self) -> bool:
        """True once the system has accepted everything, with the GOODBYE of the main lane."""
        return not self.queued_bytes and all(stripe.closed for stripe in self.stripes)

    def push(self, tag: int, check: int, view: memoryview, sending: Sending) -> None:
        """Send a message of at least one byte: as much as the system accepts now, the rest later. `sending.done` is set
        at the end."""
        if self._main.closed:
            return
        if not self._connections:
            self._main.push(data_header(tag, check, len(view)), view, sending)
            return
        for connection in range(len(self.stripes) + 1, self._connections + 1):
            self.stripes.append(OutboundStripe(self._owner, self._loop, self._main.peer, self))
            self._connect(self.stripes[-1], connection)
        self._messages.append(_Message(self._serial, view, sending))
        self._serial = (self._serial + 1) % SERIALS
        self._main.queue_frame(spread_frame(tag, check, len(view)))
        while sum(stripe.flush() for stripe in self.stripes):  # in rotation
            continue

    def cut(self) -> tuple[_Message, bytes, memoryview] | None:
        """The next piece to be sent: its message, header and payload."""
        while self._messages:
            message = self._messages[0]
            piece = message.cut()
            if piece is not None:
                return message, *piece
            self._messages.popleft()
        return None

    def send_goodbye(self) -> None:
        """Send GOODBYE: on the lanes of pieces first, and on the main lane once these are answered."""
        self._parting = True
        for stripe in self.stripes:
            stripe.send_goodbye()
        self.left()

    def left(self) -> None:
        """Note that a lane of pieces was closed."""
        if all(stripe.closed for stripe in self.stripes):
            self._messages.clear()
            if self._parting:
                self._main.send_goodbye()


class OutboundStripe(Outgoing):
    """A lane that carries pieces to a peer, one at a time."""

    def __init__(self, owner: LaneOwner, loop: Loop, peer: int, striping: Striping) -> None:
        super().__init__(owner, loop, peer)
        self._striping = striping
        self._in_hand: tuple[_Message, int] | None = None
        self._parting = False

    def attach(self, sock: socket.socket) -> None:
        sockets.limit_unsent(sock, _UNSENT_BYTES)
        super().attach(sock)

    def flush(self) -> bool:
        if not self._queue:
            self._refill()
        return super().flush()

    def send_goodbye(self) -> None:
        self._parting = True
        self.flush()

    def _drained(self) -> None:
        if self._in_hand is not None:
            message, nbytes = self._in_hand
            self._in_hand = None
            message.taken(nbytes)
        self._refill()

    def _refill(self) -> None:
        if self._sock is None or self.closed:
            return
        piece = self._striping.cut()
        if piece is not None:
            message, header, payload = piece
            self._in_hand = message, len(payload)
            self._append(header, payload)
        elif self._parting:
            self._parting = False
            self._append(GOODBYE_FRAME)

    def _drop(self) -> None:
        super()._drop()
        self._in_hand = None
        self._striping.left()
