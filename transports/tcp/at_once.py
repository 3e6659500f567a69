"""Receives that are awaited at once: a small frame is read straight to where it goes, as soon as it comes.

A receive that is posted and awaited later goes through mailbox, loop and request, so that it may be one of many. Where
the caller waits for this one anyway, and it is what the peer sends next, that would take longer than to read it. So the
lane is looked at for a moment first, with the lock held. All else goes the long way, and so does this one if it does
not come soon; and once in a while, since only there all connections are seen to.
"""

from __future__ import annotations

import time
from abc import abstractmethod

from transports.base import Group, Request, Transport, check_arguments, check_view
from transports.errors import RondeError
from transports.matching import Mailbox
from transports.tcp.frames import data_header
from transports.tcp.lanes import Incoming
from transports.tcp.loop import Loop
from transports.tcp.outgoing import Outgoing
from transports.tcp.requests import Send


class AtOnce(Transport):
    """That part of the TCP transport, which keeps what is named here."""

    _loop: Loop
    _mailbox: Mailbox
    _incoming: dict[int, Incoming]
    _outgoing: dict[int, Outgoing]
    _spread_from: int

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._sent = self._sending(self.rank, 0, 0)
        """Of all sends that were over at once."""
        self._sent.done = True

    @abstractmethod
    def _sending(self, peer: int, tag: int, nbytes: int) -> Send:
        """A send that is about to begin."""

    @abstractmethod
    def _crashed(self, error: BaseException) -> None:
        """An exception has escaped in the middle of moving bytes."""

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int = 0) -> None:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        with self._loop.lock:
            lane = self._incoming.get(peer)
            if lane is None or not self._loop.idle(now := time.monotonic()) or self._mailbox.knows(peer, tag):
                request: Request | None = self.irecv(peer, tag, view, check)
            else:
                request = self._fetch(lane, tag, check, view, now)
        if request is not None:
            request.wait(deadline)

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int = 0
    ) -> Request:
        check_arguments(self, dest, tag, check)
        check_view(data, writable=False)
        check_view(view, writable=True)
        receiving: Request | None
        sending: Request = self._sent
        with self._loop.lock:
            lane, back = self._outgoing.get(dest), self._incoming.get(source)
            if (
                lane is None
                or back is None
                or len(data) >= self._spread_from
                or not self._loop.idle(now := time.monotonic())
                or self._mailbox.knows(source, tag)
            ):
                receiving = self.irecv(source, tag, view, check)
                sending = self.isend(dest, tag, data, check)
            else:
                header = data_header(tag, check, len(data))
                try:
                    sent = lane.give(header, data)
                    if sent < len(header) + len(data):
                        sending = self._sending(dest, tag, len(data))
                        lane.queue(header, data, sending, sent)
                except BaseException as error:
                    self._crashed(error)
                    raise
                if sending is self._sent:
                    receiving = self._fetch(back, tag, check, view, now)
                else:  # the rest must go out meanwhile
                    receiving = self.irecv(source, tag, view, check)
        if receiving is not None:
            receiving.wait(deadline)
        return sending

    def _fetch(self, lane: Incoming, tag: int, check: int, view: memoryview, now: float) -> Request | None:
        """Read a frame that the mailbox knows nothing of; None if all of it has come, else what it is awaited by."""
        try:
            rest = lane.fetch(tag, check, view, now)
            if rest is not None and not rest:
                return None
            self._loop.interrupt()  # what has come may be what others wait for
            request = self.irecv(lane.peer, tag, view, check)
            if rest:
                lane.land(self._mailbox.arrive(lane.peer, tag, check, len(view)), rest)
        except RondeError:  # of a transport that has failed
            raise
        except BaseException as error:
            self._crashed(error)
            raise
        return request
