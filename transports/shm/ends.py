"""What a rank waits for when it opens, and when it closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transports.shm.transport import ShmTransport


class Assembly:
    """Waits until all ranks have opened."""

    def __init__(self, transport: ShmTransport) -> None:
        self._transport = transport

    @property
    def done(self) -> bool:
        return not self._transport.missing

    def check(self) -> None:
        self._transport.check_sound()

    def ask(self) -> None:
        """Whoever attaches rings."""


class Flush:
    """Waits until all that was sent is in the rings, or the transport fails."""

    def __init__(self, transport: ShmTransport) -> None:
        self._transport = transport

    @property
    def done(self) -> bool:
        return self._transport.failure is not None or not self._transport.backlog

    def check(self) -> None:
        """Never raises: a failure ends the flush."""
        self._transport.learn()
        for peer in tuple(self._transport.backlog):
            if self._transport.departed(peer):
                self._transport.drop(peer)

    def ask(self) -> None:
        """A ring asks by itself."""
