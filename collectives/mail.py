"""Short messages between ranks, of any length, and a bell: what the engine of named operations talks through."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from transports.base import Request, Transport
from transports.errors import TransportError

_FRAME: Final = 256
_LENGTH: Final = 4
_ROOM: Final = _FRAME - _LENGTH
_LONGEST: Final = 1 << 28
_REST_SECONDS: Final = 60.0
"""What the rest of a message gets to arrive; it was sent right after the first frame."""


class Mail:
    """A message is a frame of fixed size that begins with the length, and a second one if it is longer than that.

    One thread at a time may call `gather`; `send` and `ring` are called under a lock of the caller's.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], tag: int) -> None:
        """Uses `tag` for messages and `tag + 1` for the bell. `ranks` are those of the communicator."""
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._senders: list[int] = []
        self._frames: list[bytearray] = []
        self._requests: list[Request] = []
        self._rung = False

    def listen(self, senders: Iterable[int]) -> None:
        """Begin to receive, from these."""
        self._requests.append(self._expect_ring())
        for sender in senders:
            self._senders.append(sender)
            self._frames.append(bytearray(_FRAME))
            self._requests.append(self._expect(len(self._senders) - 1))

    def ignore(self, sender: int) -> None:
        """Nothing more will come from it. Not while `gather` waits."""
        place = self._senders.index(sender)
        del self._senders[place], self._frames[place], self._requests[place + 1]

    def send(self, receiver: int, message: bytes) -> None:
        """Send a message, without waiting for anything."""
        head = bytearray(_FRAME)
        head[:_LENGTH] = len(message).to_bytes(_LENGTH, "little")
        head[_LENGTH : _LENGTH + len(message)] = message[:_ROOM]
        rank = self._ranks[receiver]
        self._transport.isend(rank, self._tag, memoryview(head))
        if len(message) > _ROOM:
            self._transport.isend(rank, self._tag, memoryview(message)[_ROOM:])

    def ring(self) -> None:
        """End this rank's `gather`, the one under way or the next."""
        if not self._rung:
            self._rung = True
            self._transport.isend(self._transport.rank, self._tag + 1, memoryview(b""))

    def here(self) -> bool:
        """True if `gather` would not wait."""
        return any(request.test() for request in self._requests)

    def gather(self, deadline: float) -> list[tuple[int, bytes]]:
        """Wait for messages; returns all that have come, with their senders. None at the deadline or after a ring."""
        messages = []
        for place in self._transport.wait_any(self._requests, deadline):
            self._requests[place].wait(deadline)
            if place:
                messages.append((self._senders[place - 1], self._read(place - 1)))
                self._requests[place] = self._expect(place - 1)
            else:
                self._requests[0] = self._expect_ring()
                self._rung = False
        return messages

    def _read(self, place: int) -> bytes:
        frame, sender = self._frames[place], self._ranks[self._senders[place]]
        length = int.from_bytes(frame[:_LENGTH], "little")
        if length > _LONGEST:
            raise TransportError(f"rank {sender} announces a message of {length} bytes", peer=sender)
        message = bytes(frame[_LENGTH : _LENGTH + length])
        if length > _ROOM:
            rest = bytearray(length - _ROOM)
            request = self._transport.irecv(sender, self._tag, memoryview(rest))
            request.wait(time.monotonic() + _REST_SECONDS)
            message += rest
        return message

    def _expect(self, place: int) -> Request:
        return self._transport.irecv(self._ranks[self._senders[place]], self._tag, memoryview(self._frames[place]))

    def _expect_ring(self) -> Request:
        return self._transport.irecv(self._transport.rank, self._tag + 1, memoryview(bytearray()))
