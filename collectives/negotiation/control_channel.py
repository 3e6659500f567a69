"""The control channel: short messages between the engines of a communicator, and a wakeup for a waiting engine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from transports.base import Request, Transport
from transports.errors import TransportError

_FRAME: Final = 256
_LENGTH: Final = 4
_PAYLOAD: Final = _FRAME - _LENGTH
_MAX_MESSAGE: Final = 1 << 28
_SECOND_FRAME_SECONDS: Final = 60.0
"""Time for the second frame of a message to arrive; the sender sends it right after the first one."""


class ControlChannel:
    """Sends and receives messages of any length up to 256 MiB.

        +--------+----------------------------+     +--------------------------+
        | length | up to 252 bytes of message | ... | bytes 252 to the end     |
        +--------+----------------------------+     +--------------------------+
         first frame, always 256 bytes               only for longer messages

    One thread at a time may call `receive`. The caller must hold a lock of its own around `send` and `wake`.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], tag: int) -> None:
        """Use `tag` for messages and `tag + 1` for wakeups.

        `ranks`: the communicator's ranks, by their ranks in the transport.
        """
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._senders: list[int] = []
        self._frames: list[bytearray] = []
        self._requests: list[Request] = []  # the wakeup, then one for each sender
        self._woken = False

    def open(self, senders: Iterable[int]) -> None:
        """Begin to receive messages from these ranks, and wakeups."""
        self._requests.append(self._post_wakeup())
        for sender in senders:
            self._senders.append(sender)
            self._frames.append(bytearray(_FRAME))
            self._requests.append(self._post_frame(len(self._senders) - 1))

    def remove_sender(self, sender: int) -> None:
        """Expect no more messages from this rank. Not allowed while `receive` waits."""
        index = self._senders.index(sender)
        del self._senders[index], self._frames[index], self._requests[index + 1]

    def send(self, receiver: int, message: bytes) -> None:
        """Send a message without waiting."""
        frame = bytearray(_FRAME)
        frame[:_LENGTH] = len(message).to_bytes(_LENGTH, "little")
        frame[_LENGTH : _LENGTH + len(message)] = message[:_PAYLOAD]
        rank = self._ranks[receiver]
        self._transport.isend(rank, self._tag, memoryview(frame))
        if len(message) > _PAYLOAD:
            self._transport.isend(rank, self._tag, memoryview(message)[_PAYLOAD:])

    def wake(self) -> None:
        """Make this rank's current or next `receive` return."""
        if not self._woken:
            self._woken = True
            self._transport.isend(self._transport.rank, self._tag + 1, memoryview(b""))

    def ready(self) -> bool:
        """True if `receive` would return at once."""
        return any(request.test() for request in self._requests)

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Wait for messages; all that have arrived, with their senders. Empty at the deadline or after a wakeup."""
        messages = []
        for index in self._transport.wait_any(self._requests, deadline):
            self._requests[index].wait(deadline)
            if index:
                messages.append((self._senders[index - 1], self._read(index - 1)))
                self._requests[index] = self._post_frame(index - 1)
            else:
                self._requests[0] = self._post_wakeup()
                self._woken = False
        return messages

    def _read(self, index: int) -> bytes:
        frame, sender = self._frames[index], self._ranks[self._senders[index]]
        length = int.from_bytes(frame[:_LENGTH], "little")
        if length > _MAX_MESSAGE:
            raise TransportError(
                f"rank {sender} announces a control message of {length} bytes; the maximum is {_MAX_MESSAGE}",
                peer=sender,
            )
        message = bytes(frame[_LENGTH : _LENGTH + length])
        if length > _PAYLOAD:
            second = bytearray(length - _PAYLOAD)
            request = self._transport.irecv(sender, self._tag, memoryview(second))
            request.wait(time.monotonic() + _SECOND_FRAME_SECONDS)
            message += second
        return message

    def _post_frame(self, index: int) -> Request:
        return self._transport.irecv(self._ranks[self._senders[index]], self._tag, memoryview(self._frames[index]))

    def _post_wakeup(self) -> Request:
        return self._transport.irecv(self._transport.rank, self._tag + 1, memoryview(bytearray()))
