"""Main lanes to peers."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from typing import Final

from transports import tls
from transports.compiled import OUT, OUT_DATA, Words
from transports.loop import READ, WRITE, Loop
from transports.requests import Sending
from transports.tcp import sockets
from transports.tcp.frames import GOODBYE_FRAME, HEADER
from transports.tcp.lanes import Lane, LaneOwner

_BACK_BUFFER: Final = 1 << 9
_BUFFERS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 3 << 18
"""Maximum bytes written before this rank reads again. Longer writes leave the caches before the peer reads them."""
_JOIN_BELOW: Final = 1 << 12


class _Part:
    """A buffer that waits to be written. `opens`: it is the header of a frame of which no byte is written."""

    __slots__ = ("opens", "sending", "view")

    def __init__(self, view: memoryview, sending: Sending | None, opens: bool) -> None:
        self.view = view
        self.sending = sending
        self.opens = opens


class Outgoing(Lane):
    """A lane to a peer. It queues frames before it has a socket, and sends them once it has one."""

    def __init__(self, owner: LaneOwner, loop: Loop, peer: int) -> None:
        super().__init__(owner, loop, peer, bytearray(_BACK_BUFFER))
        self._queue: deque[_Part] = deque()

    @property
    def queued_bytes(self) -> int:
        """Bytes that are not yet in the system's buffer."""
        return sum(len(part.view) for part in self._queue)

    @property
    def is_clear(self) -> bool:
        """True if the next byte that is written begins a frame, and may be written."""
        return not (self._queue or self.closed)

    # For compiled code; see transports.compiled.LaneTo.

    def tell(self, words: Words) -> bool:
        if self._sock is None:
            return False
        words[OUT], words[OUT_DATA] = self.fileno(), 0
        return True

    def catch_up(self) -> None:
        """Nothing to do: the system knows how far the code has written."""

    def attach(self, sock: socket.socket) -> None:
        super().attach(sock)
        self.flush()

    def ready(self, events: int) -> None:
        if events & WRITE:
            self.flush()
        if events & READ and not self.closed:
            self.pump()

    def push(self, header: bytes, payload: memoryview, sending: Sending) -> None:
        """Send a frame: as much as the system accepts now, the rest later. `sending.done` is set at the end."""
        sent = self.give(header, payload)
        if sent == HEADER.size + len(payload):
            sending.done = True
        else:
            self.queue(header, payload, sending, sent)

    def give(self, header: bytes, payload: memoryview) -> int:
        """Write a frame if the queue is empty; the number of bytes that the system accepted. If a part is left, `queue`
        must follow."""
        if self._queue or self._sock is None or self.closed:
            return 0
        try:
            if len(payload) < _JOIN_BELOW:
                return self._sock.send(header + payload)
            return sockets.send_vector(self._sock, (memoryview(header), payload[:_BYTES_AT_ONCE]))
        except BlockingIOError:
            return 0
        except OSError as error:
            self._broken(error)
            return 0

    def queue(self, header: bytes, payload: memoryview, sending: Sending, sent: int) -> None:
        """Queue the rest of a frame, of which the system has accepted `sent` bytes."""
        if not self.closed:
            self._append(header, payload, sending)
            self._consume(sent)

    def queue_frame(self, frame: bytes) -> None:
        """Queue a frame without payload."""
        if not self.closed:
            self._append(frame)
            self.flush()

    def send_goodbye(self) -> None:
        """Queue the GOODBYE frame after all other frames."""
        self.queue_frame(GOODBYE_FRAME)

    def flush(self) -> bool:
        """Write as much as the system accepts; True if it accepted any byte."""
        if self._sock is None or not self._queue or self.closed:
            return False
        try:
            sent = sockets.send_vector(self._sock, self._burst())
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(error)
            return True
        self._consume(sent)
        return sent > 0

    def _burst(self) -> list[memoryview]:
        """The buffers of the next write."""
        buffers, room = [], _BYTES_AT_ONCE
        for part in itertools.islice(self._queue, _BUFFERS_AT_ONCE):
            buffers.append(part.view[:room])
            room -= len(buffers[-1])
            if not room:
                break
        return buffers

    def _append(self, header: bytes, payload: memoryview | None = None, sending: Sending | None = None) -> None:
        self._queue.append(_Part(memoryview(header), None, True))
        if payload is not None:
            self._queue.append(_Part(payload, sending, False))

    def _consume(self, sent: int) -> None:
        queue = self._queue
        while queue and sent >= len(queue[0].view):
            part = queue.popleft()
            sent -= len(part.view)
            if part.sending is not None:
                part.sending.done = True
        if sent:
            queue[0].view = queue[0].view[sent:]
            queue[0].opens = False
        if not queue:
            self._drained()
        if self._sock is not None:
            self._loop.watch(self, READ | WRITE if queue else READ)

    def _drained(self) -> None:
        """Called when the queue has been written completely."""

    def _broken(self, error: OSError) -> None:
        # An ABORT frame with the cause may have arrived before the connection broke.
        self.pump()
        self.fail(error)

    def _between_frames(self) -> bool:
        return (not self._queue or self._queue[0].opens) and not tls.midway(self._sock)

    def _drop(self) -> None:
        super()._drop()
        self._queue.clear()
