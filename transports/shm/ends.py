"""The waits of opening and closing: until all ranks have attached, and until all frames are in the rings."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from transports.errors import RondeError


class Host(Protocol):
    """The transport that opens or closes."""

    @property
    def failure(self) -> RondeError | None:
        """The cause of its abort."""

    @property
    def missing(self) -> list[int]:
        """The ranks that have not opened yet."""

    @property
    def backlog(self) -> AbstractSet[int]:
        """The peers with frames still queued for them."""

    def check_sound(self) -> None:
        """Raises the first failure, or ClosedError."""

    def learn(self) -> None:
        """Fail this transport if another rank has aborted."""

    def departed(self, peer: int) -> bool:
        """True if a peer has closed its transport."""

    def drop(self, peer: int) -> None:
        """Discard the frames that are queued for a peer."""


class Assembly:
    """Waits until all ranks have opened."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def done(self) -> bool:
        return not self._host.missing

    def check_possible(self) -> None:
        self._host.check_sound()

    def request_wakeup(self) -> None:
        """Nothing to do: every rank that attaches rings the doorbells."""


class Flush:
    """Waits until all sent frames are in the rings, or the transport fails."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def done(self) -> bool:
        return self._host.failure is not None or not self._host.backlog

    def check_possible(self) -> None:
        """Never raises: a failure ends the flush."""
        self._host.learn()
        for peer in tuple(self._host.backlog):
            if self._host.departed(peer):
                self._host.drop(peer)

    def request_wakeup(self) -> None:
        """Nothing to do: a full ring requests the wakeup."""
