"""Sends and receives in flight, and the waits for several of them, in every transport that has an engine.

A request knows when it is done. Its owner moves the bytes, and tells whether it can still be done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle

from transports.anysource import AnyRequest, Arrival
from transports.base import Group, Request
from transports.driver import Awaited
from transports.errors import DeadlineExceeded
from transports.matching import AnyReceive, Receive


class Owner(ABC):
    """The engine of a request."""

    rank: int
    group: Group

    @abstractmethod
    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Make progress until `awaited` is done (True) or the deadline has passed (False). Call it without the lock.
        Raises the error of `awaited.check_possible`."""

    @abstractmethod
    def glance(self, awaited: Awaited) -> bool:
        """Make all progress that is possible without waiting; True if `awaited` is done. Call it without the lock.
        Raises the error of `awaited.check_possible`."""

    @abstractmethod
    def poke(self, peer: int | None) -> bool:
        """Read the connection from a peer; None: one of all, in rotation. True if that made progress."""

    @abstractmethod
    def check_peer(self, peer: int, awaited: Awaited, *, receiving: bool) -> None:
        """Raise if `peer` can no longer complete `awaited`. The error becomes the engine's failure if it had none."""

    @abstractmethod
    def check_sources(self, sources: frozenset[int], awaited: Awaited) -> None:
        """Raise if none of `sources` can complete `awaited` any more, as `check_peer`."""

    @abstractmethod
    def reachable(self, sources: frozenset[int]) -> bool:
        """See AnySource."""

    @abstractmethod
    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        """The envelope of the frame that a receive from any of `sources` would take now."""

    @abstractmethod
    def withdraw(self, receive: Receiving | ReceivingAny) -> bool:
        """Take a receive back; False if it has matched a frame."""

    @abstractmethod
    def progress_to(self, peer: int) -> str:
        """A clause about the frames that are on their way to a peer: 'has yet to take 7 queued bytes'."""

    @abstractmethod
    def progress_from(self, peer: int) -> str:
        """A sentence about the frame that is arriving from a peer: 'nothing is arriving from it'."""


class Sending(Request, Awaited):
    """A send. Its link sets `done` when the buffer may be used again."""

    __slots__ = ("_owner", "done", "nbytes", "peer", "tag")
    done: bool

    def __init__(self, owner: Owner, peer: int, tag: int, nbytes: int, *, done: bool = False) -> None:
        self._owner = owner
        self.peer = peer
        self.tag = tag
        self.nbytes = nbytes
        self.done = done

    def test(self) -> bool:
        return self.done or self._owner.glance(self)

    def wait(self, deadline: float) -> None:
        if self.done or self._owner.wait(self, deadline):
            return
        owner, peer = self._owner, self.peer
        raise DeadlineExceeded(
            f"rank {owner.rank} waited too long to send {self.nbytes} bytes with tag {self.tag:#x} to "
            f"{owner.group.describe(peer)}, which {owner.progress_to(peer)}",
            rank=owner.rank,
            peer=peer,
        )

    def check_possible(self) -> None:
        self._owner.check_peer(self.peer, self, receiving=False)


class SynchronousSending(Request, Awaited):
    """A send that is done once the send of its bytes is, and the peer has told that a receive has matched it.

    sending  the send of the bytes; set by the link
    matched  True once the peer has told
    """

    __slots__ = ("_owner", "matched", "nbytes", "peer", "sending", "tag")

    def __init__(self, owner: Owner, peer: int, tag: int, nbytes: int, sending: Sending) -> None:
        self._owner = owner
        self.peer = peer
        self.tag = tag
        self.nbytes = nbytes
        self.sending = sending
        self.matched = False

    @property
    def done(self) -> bool:
        return self.matched and self.sending.done

    def test(self) -> bool:
        return self.done or self._owner.glance(self)

    def wait(self, deadline: float) -> None:
        if self.done or self._owner.wait(self, deadline):
            return
        owner, peer = self._owner, self.peer
        raise DeadlineExceeded(
            f"rank {owner.rank} waited too long for {owner.group.describe(peer)} to receive {self.nbytes} bytes with "
            f"tag {self.tag:#x}",
            rank=owner.rank,
            peer=peer,
        )

    def check_possible(self) -> None:
        self._owner.check_peer(self.peer, self, receiving=True)


class Receiving(Receive, Request, Awaited):
    """A receive from one rank, done when the match queue has its frame."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Owner, peer: int, tag: int, view: memoryview, check: int) -> None:
        Receive.__init__(self, peer, tag, view, check)
        self._owner = owner

    def test(self) -> bool:
        if not (self.done or self._owner.glance(self)):
            return False
        self.raise_error()
        return True

    def wait(self, deadline: float) -> None:
        if not self.done and not self._owner.wait(self, deadline):
            owner, peer = self._owner, self.peer
            raise DeadlineExceeded(
                f"rank {owner.rank} waited too long for {len(self.view)} bytes with tag {self.tag:#x} from "
                f"{owner.group.describe(peer)}: {owner.progress_from(peer)}",
                rank=owner.rank,
                peer=peer,
            )
        self.raise_error()

    def withdraw(self) -> bool:
        return self._owner.withdraw(self)

    def poke(self) -> bool:
        return self._owner.poke(self.peer)

    def check_possible(self) -> None:
        self._owner.check_peer(self.peer, self, receiving=True)


class ReceivingAny(AnyReceive, AnyRequest, Awaited):
    """A receive from any of several ranks, done when the match queue has its frame."""

    __slots__ = ("_owner",)

    def __init__(
        self, owner: Owner, sources: frozenset[int], tags: range, view: memoryview | None, check: int | None
    ) -> None:
        AnyReceive.__init__(self, sources, tags, view, check)
        self._owner = owner

    def withdraw(self) -> bool:
        return self._owner.withdraw(self)

    def test(self) -> bool:
        if not (self.done or self._owner.glance(self)):
            return False
        self.raise_error()
        return True

    def wait(self, deadline: float) -> None:
        if not self.done and not self._owner.wait(self, deadline):
            raise DeadlineExceeded(self.overdue(self._owner.group), rank=self._owner.rank)
        self.raise_error()

    def poke(self) -> bool:
        return self._owner.poke(None if self.arrival is None else self.peer)

    def check_possible(self) -> None:
        if self.arrival is not None:
            self._owner.check_peer(self.peer, self, receiving=True)
        else:
            self._owner.check_sources(self.sources, self)


class Probe(Awaited):
    """The wait for a frame that a receive from any source would take. `arrival`: its envelope, None without one."""

    def __init__(self, owner: Owner, sources: frozenset[int], tags: range) -> None:
        self.arrival: Arrival | None = None
        self._owner = owner
        self._sources = sources
        self._tags = tags

    @property
    def done(self) -> bool:
        """True if there is a frame, or none can come any more."""
        if self.arrival is None:
            self.arrival = self._owner.oldest(self._sources, self._tags)
        return self.arrival is not None or not self._owner.reachable(self._sources)

    def poke(self) -> bool:
        return self._owner.poke(None)

    def check_possible(self) -> None:
        self._owner.check_sources(frozenset(), self)


class AnyOf(Awaited):
    """The wait for the first of several requests that ends."""

    def __init__(self, requests: Sequence[Request]) -> None:
        if not requests:
            raise ValueError("requests: must not be empty")
        self._requests: list[Sending | SynchronousSending | Receiving | ReceivingAny] = []
        for request in requests:
            assert isinstance(request, (Sending, SynchronousSending, Receiving, ReceivingAny))
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

    def request_wakeup(self) -> None:
        for request in self._requests:
            request.request_wakeup()

    def check_possible(self) -> None:
        for request in self._requests:
            request.check_possible()
