"""The waits of the TCP transport: sends and receives in flight, any of several, and the end of a close."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Protocol

from transports.anysource import AnyRequest, Arrival, Claim
from transports.base import Request
from transports.errors import RondeError
from transports.matching import AnyReceive, Receive
from transports.tcp.lanes import Incoming
from transports.tcp.outgoing import Outgoing
from transports.tcp.striping import Striping


class Host(Protocol):
    """The transport of a request."""

    @property
    def failure(self) -> RondeError | None:
        """The cause of its abort."""

    def wait(self, request: Send | Receiving | ReceivingAny, deadline: float) -> None:
        """Wait for a request. Raises DeadlineExceeded, which reports the request's progress."""

    def test(self, request: Send | Receiving | ReceivingAny) -> bool:
        """Make progress on a request without waiting; True once it is done."""

    def lane_to(self, peer: int) -> Outgoing | None:
        """The lane to a peer, if there is one."""

    def lane_from(self, peer: int) -> Incoming | None:
        """The lane from a peer, if there is one."""

    @property
    def lanes_from(self) -> list[Incoming]:
        """The lanes from all peers."""

    def check_peer(self, peer: int, *, receiving: bool) -> None:
        """Raises if a request that involves `peer` cannot be completed."""

    def check_sources(self, sources: frozenset[int]) -> None:
        """Raises if a receive from any of `sources` cannot be completed."""

    def reachable(self, sources: frozenset[int]) -> bool:
        """False if no other rank of `sources` can send any more."""

    def withdraw(self, receive: AnyReceive) -> bool:
        """Take a receive from any source back; False if it has matched a frame."""

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        """The envelope of the frame that a receive from any of `sources` would take now."""


class Send(Request):
    """A send, done when the system has accepted the whole frame."""

    __slots__ = ("_transport", "done", "nbytes", "peer", "tag")

    def __init__(self, transport: Host, peer: int, tag: int, nbytes: int) -> None:
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

    def check_possible(self) -> None:
        self._transport.check_peer(self.peer, receiving=False)


class Receiving(Receive, Request):
    """A receive, done when the match queue has its frame."""

    def __init__(self, transport: Host, peer: int, tag: int, view: memoryview, check: int) -> None:
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

    def check_possible(self) -> None:
        self._transport.check_peer(self.peer, receiving=True)


class ReceivingAny(AnyRequest):
    """A receive from any source, done when the match queue has its frame."""

    def __init__(
        self,
        transport: Host,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None,
        claim: Claim | None,
    ) -> None:
        self.receive = AnyReceive(sources, tags, view, check, claim)
        self._transport = transport
        self._watched = sources if claim is None else frozenset[int]()
        self._pokes = 0

    @property
    def arrival(self) -> Arrival | None:
        return self.receive.arrival

    @property
    def view(self) -> memoryview:
        return self.receive.view

    def withdraw(self) -> bool:
        return self._transport.withdraw(self.receive)

    @property
    def done(self) -> bool:
        return self.receive.done

    def test(self) -> bool:
        if not (self.done or self._transport.test(self)):
            return False
        if self.receive.error is not None:
            raise self.receive.error.with_traceback(None)
        return True

    def wait(self, deadline: float) -> None:
        if not self.done:
            self._transport.wait(self, deadline)
        if self.receive.error is not None:
            raise self.receive.error.with_traceback(None)

    def poke(self) -> bool:
        """Poke the lane of the matched frame; before, one lane per call, in rotation."""
        if self.receive.arrival is not None:
            lane = self._transport.lane_from(self.receive.peer)
            return lane is not None and (lane.pump() or lane.pump_pieces())
        lanes = self._transport.lanes_from
        self._pokes += 1
        return bool(lanes) and lanes[self._pokes % len(lanes)].pump()

    def check_possible(self) -> None:
        if self.receive.arrival is not None:
            self._transport.check_peer(self.receive.peer, receiving=True)
        else:
            self._transport.check_sources(self._watched)


class Probe:
    """The wait for a frame that a receive from any source would take. `arrival`: its envelope, None without one."""

    def __init__(self, transport: Host, sources: frozenset[int], tags: range) -> None:
        self.arrival: Arrival | None = None
        self._transport = transport
        self._sources = sources
        self._tags = tags
        self._pokes = 0

    @property
    def done(self) -> bool:
        """True if there is a frame, or none can come any more."""
        if self.arrival is None:
            self.arrival = self._transport.oldest(self._sources, self._tags)
        return self.arrival is not None or not self._transport.reachable(self._sources)

    def poke(self) -> bool:
        """Poke one lane per call, in rotation."""
        lanes = self._transport.lanes_from
        self._pokes += 1
        return bool(lanes) and lanes[self._pokes % len(lanes)].pump()

    def check_possible(self) -> None:
        self._transport.check_sources(frozenset())


class AnyOf:
    """The wait for the first of several requests that ends."""

    def __init__(self, requests: Sequence[Request]) -> None:
        if not requests:
            raise ValueError("requests: must not be empty")
        self._requests: list[Send | Receiving | ReceivingAny] = []
        for request in requests:
            assert isinstance(request, (Send, Receiving, ReceivingAny))
            self._requests.append(request)
        self._turns = cycle(self._requests)

    @property
    def done(self) -> bool:
        return any(request.done for request in self._requests)

    @property
    def ended(self) -> list[int]:
        """The positions of the requests that have ended."""
        return [position for position, request in enumerate(self._requests) if request.done]

    def poke(self) -> bool:
        """Poke one request per call, in rotation."""
        return next(self._turns).poke()

    def check_possible(self) -> None:
        for request in self._requests:
            request.check_possible()


class GoodbyesAnswered:
    """Waits until every peer has read all frames sent to it."""

    def __init__(self, transport: Host, lanes: list[Outgoing]) -> None:
        self._transport = transport
        self._lanes = lanes

    @property
    def done(self) -> bool:
        return self._transport.failure is not None or all(lane.closed for lane in self._lanes)

    def poke(self) -> bool:
        return False

    def check_possible(self) -> None:
        """Never raises: a failure ends the wait."""


class GoodbyesSent:
    """Waits until the system has accepted all frames for every peer, GOODBYE being the last."""

    def __init__(self, transport: Host, stripings: list[Striping]) -> None:
        self._transport = transport
        self._stripings = stripings

    @property
    def done(self) -> bool:
        return self._transport.failure is not None or all(striping.parted for striping in self._stripings)

    def poke(self) -> bool:
        return False

    def check_possible(self) -> None:
        """Never raises: a failure ends the wait."""
