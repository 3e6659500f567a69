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

    def check(self) -> None:
        self._transport.check(self.peer, receiving=False)


class Receiving(Request):
    """Done when the mailbox says so."""

    __slots__ = ("_receive", "_transport", "nbytes", "peer", "tag")

    def __init__(self, transport: TcpTransport, receive: Receive) -> None:
        self._transport = transport
        self._receive = receive
        self.peer = receive.peer
        self.tag = receive.tag
        self.nbytes = len(receive.view)

    @property
    def done(self) -> bool:
        return self._receive.done

    def test(self) -> bool:
        if not (self._receive.done or self._transport.test(self)):
            return False
        self._raise_mismatch()
        return True

    def wait(self, deadline: float) -> None:
        if not self._receive.done:
            self._transport.wait(self, deadline)
        if self._receive.error is not None:
            self._raise_mismatch()

    def poke(self) -> bool:
        lane = self._transport.lane_from(self.peer)
        return lane is not None and lane.pump()

    def check(self) -> None:
        self._transport.check(self.peer, receiving=True)

    def _raise_mismatch(self) -> None:
        if self._receive.error is not None:
            raise self._receive.error.with_traceback(None)
