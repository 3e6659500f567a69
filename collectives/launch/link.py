"""One end of the connection between the launcher and an agent: messages over two descriptors, without blocking."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import Final

from collectives.launch.messages import Decoder, Message, encode

BEATS: Final = 5
"""Number of signs of life in the time after which silence means that the other end is lost."""

_READ: Final = 1 << 16


class Link:
    """Sends and receives messages on the selector of its owner, who calls `tick` after every select.

    handle    called with each message but signs of life
    limit     seconds of silence after which the other end is lost
    marker    see Decoder
    closed    why no more messages come; None while the link is up. What was sent before it closed may be lost
    watched   False as long as silence of the other end means nothing
    silent    True if it was closed because the other end gave no sign of life
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        descriptors: tuple[int, int],
        handle: Callable[[Message], None],
        limit: float,
        marker: bytes = b"",
    ) -> None:
        self.closed: str | None = None
        self.silent = False
        self.watched = True
        self.limit = limit
        self._selector = selector
        self._read_fd, self._write_fd = descriptors
        self._handle = handle
        self._decoder = Decoder(marker)
        self._outgoing = bytearray()
        self._writing = False
        self._broken = False
        self._heard = self._sent = time.monotonic()
        for fd in descriptors:
            os.set_blocking(fd, False)
        selector.register(self._read_fd, selectors.EVENT_READ, self._read)

    @property
    def skipped(self) -> bytes:
        """The end of what came before the marker, or instead of it so far."""
        return self._decoder.skipped

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `tick` if no event comes first."""
        if self.closed is not None:
            return float("inf")
        return min(self._sent + self.limit / BEATS, self._silent_at)

    @property
    def _silent_at(self) -> float:
        return self._heard + self.limit if self.watched else float("inf")

    @property
    def pending(self) -> bool:
        """True while something was not sent yet."""
        return bool(self._outgoing)

    def send(self, *message: object) -> None:
        """Send a message, now or when the other end takes it. Nothing happens if the link is closed."""
        self.send_bytes(encode(list(message)))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.closed is None and not self._broken:
            self._sent = time.monotonic()
            self._outgoing += data
            if not self._writing:
                self._write()

    def watch(self, patience: float = 0.0) -> None:
        """From now on, silence of the other end closes the link. `patience`: seconds that it may be silent first."""
        self.watched = True
        self._heard = time.monotonic() + patience

    def tick(self) -> None:
        """Send a sign of life if it is time; close the link if the other end has given none."""
        now = time.monotonic()
        if self.closed is None and now >= self._sent + self.limit / BEATS:
            self._sent = now
            if not self._outgoing:  # the other end takes nothing: what it has not taken is a sign of life
                self.send("beat")
        if self.closed is None and now >= self._silent_at:
            self.silent = True
            self.close(f"no sign of life for {self.limit:g} s")

    def close(self, reason: str) -> None:
        """Release the descriptors. Idempotent: the first reason is kept."""
        if self.closed is None:
            self.closed = reason
            self._selector.unregister(self._read_fd)
            if self._writing:
                self._selector.unregister(self._write_fd)
            os.close(self._read_fd)
            os.close(self._write_fd)

    def _read(self) -> None:
        if self.closed is not None:
            return
        try:
            data = os.read(self._read_fd, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"the connection failed: {error.strerror}")
            return
        if not data:
            self.close("the connection has ended")
            return
        self._heard = time.monotonic()
        try:
            messages = self._decoder.feed(data)
        except ValueError as error:
            self.close(f"the other end sent {error}")
            return
        for message in messages:
            if message[0] != "beat" and self.closed is None:
                self._handle(message)

    def _write(self) -> None:
        if self.closed is not None:  # by an event of the same select
            return
        try:
            with memoryview(self._outgoing) as view:
                count = os.write(self._write_fd, view)
            del self._outgoing[:count]
        except BlockingIOError:
            count = 0
        except OSError:  # the other end has closed: what it sent before is still to be read, and then the end
            self._broken = True
            self._outgoing.clear()
        if bool(self._outgoing) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._selector.register(self._write_fd, selectors.EVENT_WRITE, self._write)
            else:
                self._selector.unregister(self._write_fd)
