"""What is waited for over TCP: sends and receives in flight, and that all was read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from transports.base import Request
from transports.matching import Receive

if TYPE_CHECKING:
    from transports.tcp.outgoing import Outgoing
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
        return lane is not None and (lane.pump() or lane.pump_pieces())

    def assess(self) -> None:
        self._transport.check(self.peer, receiving=True)


class AnyOf:
    """What a thread waits for that waits for whichever of several requests ends first."""

    def __init__(self, requests: Sequence[Request]) -> None:
        if not requests:
            raise ValueError("requests: must not be empty")
        self._requests: list[Send | Receiving] = []
        for request in requests:
            assert isinstance(request, (Send, Receiving))
            self._requests.append(request)
        self._turns = cycle(self._requests)

    @property
    def done(self) -> bool:
        return any(request.done for request in self._requests)

    @property
    def ended(self) -> list[int]:
        """The positions of those that have ended."""
        return [position for position, request in enumerate(self._requests) if request.done]

    def poke(self) -> bool:
        """One of them at a time, in turns."""
        return next(self._turns).poke()

    def assess(self) -> None:
        for request in self._requests:
            request.assess()


class Parting:
    """Waits until every peer has read what was sent to it."""

    def __init__(self, transport: TcpTransport, lanes: list[Outgoing]) -> None:
        self._transport = transport
        self._lanes = lanes

    @property
    def done(self) -> bool:
        return self._transport.failure is not None or all(lane.closed for lane in self._lanes)

    def poke(self) -> bool:
        return False

    def assess(self) -> None:
        """Never raises: a failure ends the wait."""
