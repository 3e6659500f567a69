"""Sends and receives in flight between threads."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from transports.base import Request
from transports.errors import DeadlineExceeded
from transports.matching import Landing, Receive

if TYPE_CHECKING:
    from transports.local.transport import LocalTransport


class LocalRequest(Request):
    """Waits for what another rank does to a frame."""

    _aim: ClassVar[str]

    def __init__(self, transport: LocalTransport, peer: int, tag: int) -> None:
        self._transport = transport
        self._peer = peer
        self._tag = tag

    @abstractmethod
    def _done(self) -> bool:
        """True once completed; raises the request's own error."""

    def test(self) -> bool:
        with self._transport.news:
            if self._done():
                return True
            self._transport.check_peer(self._peer)
            return False

    def wait(self, deadline: float) -> None:
        with self._transport.news:
            while not self.test():
                if not self._transport.pause(deadline):
                    rank, peer = self._transport.rank, self._transport.group.describe(self._peer)
                    raise DeadlineExceeded(
                        f"rank {rank} waited too long {self._aim} {peer} (tag {self._tag})", rank=rank, peer=self._peer
                    )


class Sending(LocalRequest):
    _aim = "for a frame to be received by"

    def __init__(self, transport: LocalTransport, peer: int, tag: int, landing: Landing) -> None:
        super().__init__(transport, peer, tag)
        self._landing = landing

    def _done(self) -> bool:
        return not self._landing.borrowed


class Receiving(LocalRequest):
    _aim = "for a frame from"

    def __init__(self, transport: LocalTransport, peer: int, tag: int, receive: Receive) -> None:
        super().__init__(transport, peer, tag)
        self._receive = receive

    def _done(self) -> bool:
        if self._receive.error is not None:
            raise copy.copy(self._receive.error)
        return self._receive.done
