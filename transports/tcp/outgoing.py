"""Lanes to peers."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from typing import Final, Protocol

from transports import tls
from transports.tcp import sockets
from transports.tcp.frames import GOODBYE_FRAME, HEADER
from transports.tcp.lanes import Host, Lane
from transports.tcp.loop import READ, WRITE, Loop

_BACK_BUFFER: Final = 1 << 9
_BUFFERS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 3 << 18
"""Bytes written before this rank reads again. Much more leaves the caches before the peer reads it."""
_JOIN_BELOW: Final = 1 << 12


class Sending(Protocol):
    """A send in flight."""

    done: bool


class _Part:
    """A buffer on its way out. `opens` is true if it is a frame's untouched header."""

    __slots__ = ("opens", "sending", "view")

    def __init__(self, view: memoryview, sending: Sending | None, opens: bool) -> None:
        self.view = view
        self.sending = sending
        self.opens = opens


class Outgoing(Lane):
    """A lane to a peer. It takes frames from the start, and moves them once it has a socket."""

    def __init__(self, host: Host, loop: Loop, peer: int) -> None:
        super().__init__(host, loop, peer, _BACK_BUFFER)
        self._queue: deque[_Part] = deque()

    @property
    def queued_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        return sum(len(part.view) for part in self._queue)

    def attach(self, sock: socket.socket) -> None:
        super().attach(sock)
        self.flush()

    def ready(self, events: int) -> None:
        if events & WRITE:
            self.flush()
        if events & READ and not self.closed:
            self.pump()

    def push(self, header: bytes, payload: memoryview, sending: Sending) -> None:
        """Send a frame: at once what the system takes, the rest when it can. `sending.done` tells the end of it."""
        sent = self.give(header, payload)
        if sent == HEADER.size + len(payload):
            sending.done = True
        else:
            self.queue(header, payload, sending, sent)

    def give(self, header: bytes, payload: memoryview) -> int:
        """Have the system take a frame, as far as it does at once and nothing is before it: so many bytes. If these are
        not all, `queue` must follow."""
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
        """Send what the system has not taken of a frame, when it can."""
        if not self.closed:
            self._append(header, payload, sending)
            self._consume(sent)

    def say(self, frame: bytes) -> None:
        """Send a frame without payload after all that is queued."""
        if not self.closed:
            self._append(frame)
            self.flush()

    def say_goodbye(self) -> None:
        """After all that is queued, tell the peer that this was all."""
        self.say(GOODBYE_FRAME)

    def flush(self) -> bool:
        """Write what the system takes; True if it took anything."""
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
        """The system has taken all that was queued."""

    def _broken(self, error: OSError) -> None:
        # The reason may have come before the connection broke.
        self.pump()
        self.fail(error)

    def _between_frames(self) -> bool:
        return (not self._queue or self._queue[0].opens) and not tls.midway(self._sock)

    def _drop(self) -> None:
        super()._drop()
        self._queue.clear()
