"""Sends and receives in flight through rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from transports.anysource import AnyRequest, Arrival
from transports.base import Group, Request
from transports.driver import Driver
from transports.errors import DeadlineExceeded
from transports.matching import AnyReceive, Receive
from transports.shm.loop import Awaited, Loop
from transports.shm.ring import Outbound


class Host(Protocol):
    """The transport, as its requests and windows use it."""

    rank: int
    group: Group
    loop: Loop
    driver: Driver[Awaited]

    def check_sound(self) -> None:
        """Raises the transport's first failure, or ClosedError."""

    def check_peer(self, peer: int, awaited: Awaited) -> None:
        """Raises if `peer` can no longer complete `awaited`. The raised error becomes the transport's first failure if
        there was none."""

    def check_sources(self, sources: frozenset[int], awaited: Awaited) -> None:
        """Raises if none of `sources` can complete `awaited` any more, as `check_peer`."""

    def reachable(self, sources: frozenset[int]) -> bool:
        """False if no other rank of `sources` can send any more."""

    def withdraw(self, receive: AnyReceive) -> bool:
        """Take a receive from any source back; False if it has matched a frame."""

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        """The envelope of the frame that a receive from any of `sources` would take now."""


class Sent(Request):
    """A send that completed in the call of `isend`."""

    __slots__ = ()

    done = True

    def test(self) -> bool:
        return True

    def wait(self, deadline: float) -> None:
        """Return immediately."""

    def check_possible(self) -> None:
        """Never raises: the send is complete."""


class Sending(Request):
    """A send, done when the whole frame is in the ring."""

    __slots__ = ("_frame", "_host", "_peer")

    def __init__(self, host: Host, peer: int, frame: Outbound) -> None:
        self._host = host
        self._peer = peer
        self._frame = frame

    @property
    def done(self) -> bool:
        return self._frame.done

    def test(self) -> bool:
        return self._frame.done or self._host.loop.glance(self)

    def wait(self, deadline: float) -> None:
        if not self._frame.done and not self._host.driver.wait(self, deadline):
            frame, rank, peer = self._frame, self._host.rank, self._host.group.describe(self._peer)
            raise DeadlineExceeded(
                f"rank {rank} waited too long to send {frame.length} bytes with tag {frame.tag:#x} to {peer}, "
                f"which has yet to make room for {frame.length - max(frame.offset, 0)} of them",
                rank=rank,
                peer=self._peer,
            )

    def check_possible(self) -> None:
        self._host.check_peer(self._peer, self)

    def request_wakeup(self) -> None:
        """Nothing to do: a full ring requests the wakeup."""


class Receiving(Request):
    """A receive, done when the match queue has its frame."""

    __slots__ = ("_host", "_receive")

    def __init__(self, host: Host, receive: Receive) -> None:
        self._host = host
        self._receive = receive

    @property
    def done(self) -> bool:
        return self._receive.done

    def test(self) -> bool:
        if not (self._receive.done or self._host.loop.glance(self)):
            return False
        self._raise_mismatch()
        return True

    def wait(self, deadline: float) -> None:
        receive = self._receive
        if not receive.done and not self._host.driver.wait(self, deadline):
            rank, peer = self._host.rank, self._host.group.describe(receive.peer)
            raise DeadlineExceeded(
                f"rank {rank} waited too long for {len(receive.view)} bytes with tag {receive.tag:#x} from {peer}",
                rank=rank,
                peer=receive.peer,
            )
        if receive.error is not None:
            self._raise_mismatch()

    def check_possible(self) -> None:
        self._host.check_peer(self._receive.peer, self)

    def request_wakeup(self) -> None:
        """Nothing to do: a rank that sends a frame rings."""

    def _raise_mismatch(self) -> None:
        if self._receive.error is not None:
            raise self._receive.error.with_traceback(None)


class ReceivingAny(AnyRequest):
    """A receive from any source, done when the match queue has its frame. `alone`: it fails if all its sources
    close."""

    __slots__ = ("_host", "_receive", "_watched")

    def __init__(self, host: Host, receive: AnyReceive, alone: bool) -> None:
        self._host = host
        self._receive = receive
        self._watched = receive.sources if alone else frozenset[int]()

    @property
    def arrival(self) -> Arrival | None:
        return self._receive.arrival

    @property
    def view(self) -> memoryview:
        return self._receive.view

    def withdraw(self) -> bool:
        return self._host.withdraw(self._receive)

    @property
    def done(self) -> bool:
        return self._receive.done

    def test(self) -> bool:
        if not (self._receive.done or self._host.loop.glance(self)):
            return False
        if self._receive.error is not None:
            raise self._receive.error.with_traceback(None)
        return True

    def wait(self, deadline: float) -> None:
        if not self._receive.done and not self._host.driver.wait(self, deadline):
            raise DeadlineExceeded(self._receive.overdue(self._host.group), rank=self._host.rank)
        if self._receive.error is not None:
            raise self._receive.error.with_traceback(None)

    def check_possible(self) -> None:
        if self._receive.arrival is not None:
            self._host.check_peer(self._receive.peer, self)
        else:
            self._host.check_sources(self._watched, self)

    def request_wakeup(self) -> None:
        """Nothing to do: a rank that sends a frame rings."""


class Probe:
    """The wait for a frame that a receive from any source would take. `arrival`: its envelope, None without one."""

    def __init__(self, host: Host, sources: frozenset[int], tags: range) -> None:
        self.arrival: Arrival | None = None
        self._host = host
        self._sources = sources
        self._tags = tags

    @property
    def done(self) -> bool:
        """True if there is a frame, or none can come any more."""
        if self.arrival is None:
            self.arrival = self._host.oldest(self._sources, self._tags)
        return self.arrival is not None or not self._host.reachable(self._sources)

    def check_possible(self) -> None:
        self._host.check_sources(frozenset(), self)

    def request_wakeup(self) -> None:
        """Nothing to do: a rank that sends a frame rings."""


class AnyOf:
    """The wait for the first of several requests that ends."""

    def __init__(self, requests: Sequence[Request]) -> None:
        if not requests:
            raise ValueError("requests: must not be empty")
        self._requests: list[Sent | Sending | Receiving | ReceivingAny] = []
        for request in requests:
            assert isinstance(request, (Sent, Sending, Receiving, ReceivingAny))
            self._requests.append(request)

    @property
    def done(self) -> bool:
        return any(request.done for request in self._requests)

    @property
    def ended(self) -> list[int]:
        """The positions of the requests that have ended."""
        return [position for position, request in enumerate(self._requests) if request.done]

    def check_possible(self) -> None:
        for request in self._requests:
            request.check_possible()

    def request_wakeup(self) -> None:
        """Nothing to do: a full ring requests the wakeup, and a rank that sends a frame rings."""
