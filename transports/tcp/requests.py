"""Sends and receives in flight over TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transports.base import Request
from transports.matching import Receive

if TYPE_CHECKING:
    from transports.tcp.transport import TcpTransport


class Send(Request):
    """Done when the system has taken all of the frame."""

    __slots__ = ("_transport", "done", "nbytes", "peer", "tag")

    def __init__(self, transport: TcpTransport, peer: int, tag: int, nbytes: int) -> None:
        self._transport = transport
        self.peer = peer
        self.tag = tag
        self.nbytes = nbytes
        self.done = False

    def test(self) -> bool:
        return self.done or self._transport.test(self)

    def wait(self, deadline: float) -> None:
        if not self.done:
            self._transport.wait(self, deadline)

    def poke(self) -> bool:
        lane = self._transport.lane_to(self.peer)
        return lane is not None and lane.flush()

    def assess(self) -> None:
        self._transport.check(self.peer, receiving=False)


class Receiving(Receive, Request):
    """Done when the mailbox says so."""

    def __init__(self, transport: TcpTransport, peer: int, tag: int, view: memoryview, check: int) -> None:
        Receive.__init__(self, peer, tag, view, check)
        self._transport = transport

    @property
    def nbytes(self) -> int:
        return len(self.view)

    def test(self) -> bool:
        if not (self.done or self._transport.test(self)):
            return False
        if self.error is not None:
            raise self.error.with_traceback(None)
        return True

    def wait(self, deadline: float) -> None:
        if not self.done:
            self._transport.wait(self, deadline)
        if self.error is not None:
            raise self.error.with_traceback(None)

    def poke(self) -> bool:
        lane = self._transport.lane_from(self.peer)
        return lane is not None and lane.pump()

    def assess(self) -> None:
        self._transport.check(self.peer, receiving=True)
