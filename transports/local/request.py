"""Sends and receives in flight between threads."""

from __future__ import annotations

import copy
from abc import abstractmethod
from threading import RLock
from typing import Protocol

from transports.anysource import AnyRequest, Arrival
from transports.base import Group, Request
from transports.errors import DeadlineExceeded
from transports.matching import AnyReceive, InboundMessage, Receive


class Host(Protocol):
    """The transport of a request."""

    rank: int
    group: Group
    lock: RLock

    def check_peer(self, peer: int) -> None:
        """Raises if a wait for `peer` cannot end well."""

    def check_sources(self, sources: frozenset[int]) -> None:
        """Raises if a wait for any of `sources` cannot end well."""

    def withdraw(self, receive: AnyReceive) -> bool:
        """Take a receive from any source back; False if it has matched a frame."""

    def pause(self, deadline: float) -> bool:
        """Wait for news, with the lock held; False if the deadline has passed."""


class LocalRequest(Request):
    """A wait for another rank to send or receive a frame. `aim` completes the text of DeadlineExceeded."""

    def __init__(self, transport: Host, peer: int, tag: int, aim: str) -> None:
        self._aim = aim
        self._transport = transport
        self._peer = peer
        self._tag = tag

    @abstractmethod
    def _done(self) -> bool:
        """True once completed; raises the request's own error."""

    def test(self) -> bool:
        with self._transport.lock:
            if self._done():
                return True
            self._transport.check_peer(self._peer)
            return False

    def wait(self, deadline: float) -> None:
        with self._transport.lock:
            while not self.test():
                if not self._transport.pause(deadline):
                    rank, peer = self._transport.rank, self._transport.group.describe(self._peer)
                    raise DeadlineExceeded(
                        f"rank {rank} waited too long {self._aim} {peer} (tag {self._tag})", rank=rank, peer=self._peer
                    )


class Sending(LocalRequest):
    def __init__(self, transport: Host, peer: int, tag: int, inbound: InboundMessage) -> None:
        super().__init__(transport, peer, tag, "for a frame to be received by")
        self._inbound = inbound

    def _done(self) -> bool:
        return not self._inbound.borrowed


class Receiving(LocalRequest):
    def __init__(self, transport: Host, peer: int, tag: int, receive: Receive) -> None:
        super().__init__(transport, peer, tag, "for a frame from")
        self._receive = receive

    def _done(self) -> bool:
        if self._receive.error is not None:
            raise copy.copy(self._receive.error)
        return self._receive.done


class ReceivingAny(AnyRequest):
    """A receive from any source. `alone`: it fails if all its sources close."""

    def __init__(self, transport: Host, receive: AnyReceive, alone: bool) -> None:
        self._transport = transport
        self._receive = receive
        self._alone = alone

    @property
    def arrival(self) -> Arrival | None:
        return self._receive.arrival

    @property
    def view(self) -> memoryview:
        return self._receive.view

    def withdraw(self) -> bool:
        return self._transport.withdraw(self._receive)

    def test(self) -> bool:
        receive = self._receive
        with self._transport.lock:
            if receive.error is not None:
                raise copy.copy(receive.error)
            if receive.done:
                return True
            self._transport.check_sources(receive.sources if self._alone else frozenset())
            return False

    def wait(self, deadline: float) -> None:
        with self._transport.lock:
            while not self.test():
                if not self._transport.pause(deadline):
                    raise DeadlineExceeded(self._receive.overdue(self._transport.group), rank=self._transport.rank)
