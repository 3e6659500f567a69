"""Receives that are awaited in the same call: a small frame is read straight into its destination when it arrives.

A receive that is posted and awaited later uses the match queue, the loop and a request, since it may be one of many.
If the caller waits for this receive, and the peer sends its frame next, this machinery takes longer than reading the
frame. So the lane is polled for a moment first, with the lock held. The receive is posted as usual if its frame does
not arrive soon, if another frame arrives, and at intervals, since only the loop serves all connections.
"""

from __future__ import annotations

import time
from typing import Final

from transports.anysource import Taken
from transports.base import Request, check_arguments, check_view
from transports.engine import Engine
from transports.errors import RondeError
from transports.requests import Sending
from transports.tcp.frames import data_header
from transports.tcp.lanes import Incoming
from transports.tcp.outgoing import Outgoing

_MOST_LANES: Final = 8
"""The most lanes that are polled for a frame of any source."""


class AtOnce:
    """Receives without a request, for one link, whose lanes it shares.

    spread_from  bytes from which a message is striped over several connections
    """

    def __init__(
        self, engine: Engine, incoming: dict[int, Incoming], outgoing: dict[int, Outgoing], spread_from: int
    ) -> None:
        self._engine = engine
        self._loop = engine.loop
        self._lock = engine.lock
        self._match_queue = engine.match_queue
        self._incoming = incoming
        self._outgoing = outgoing
        self._sent = engine.sent
        self._spread_from = spread_from

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int) -> None:
        """See Transport.recv."""
        check_arguments(self._engine, peer, tag, check)
        check_view(view, writable=True)
        with self._lock:
            lane = self._incoming.get(peer)
            if lane is None or not self._loop.idle(now := time.monotonic()) or self._match_queue.knows(peer, tag):
                request: Request | None = self._engine.irecv(peer, tag, view, check)
            else:
                request = self._fetch(lane, tag, check, view, now)
        if request is not None:
            request.wait(deadline)

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None, turn: int
    ) -> Taken | None:
        """See Link.take."""
        known, polls = self._incoming, self._loop.glances
        lanes = [known[peer] for peer in sources if peer in known]
        if len(sources) > 1:
            others = len(sources) - (self._engine.rank in sources)
            if not lanes or len(lanes) < others or len(lanes) > _MOST_LANES:
                return None
            start = turn % len(lanes)
            lanes, polls = lanes[start:] + lanes[:start], polls[:: len(lanes)]
        for lane in lanes:
            taken = lane.take(tags, view, check, polls)
            if taken is not None:
                return taken
            if not lane.is_clear or not self._match_queue.is_clear(sources, tags):
                break
        self._loop.driver.interrupt()  # other threads may wait for a frame that arrived
        return None

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int
    ) -> Request:
        """See Transport.sendrecv."""
        check_arguments(self._engine, dest, tag, check)
        check_view(data, writable=False)
        check_view(view, writable=True)
        receiving: Request | None
        sending: Request = self._sent
        with self._lock:
            lane, back = self._outgoing.get(dest), self._incoming.get(source)
            if (
                lane is None
                or back is None
                or len(data) >= self._spread_from
                or not self._loop.idle(now := time.monotonic())
                or self._match_queue.knows(source, tag)
            ):
                receiving = self._engine.irecv(source, tag, view, check)
                sending = self._engine.isend(dest, tag, data, check)
            else:
                header = data_header(tag, check, len(data))
                try:
                    sent = lane.give(header, data)
                    if sent < len(header) + len(data):
                        sending = rest = Sending(self._engine, dest, tag, len(data))
                        lane.queue(header, data, rest, sent)
                except BaseException as error:
                    self._engine.crashed(error)
                    raise
                if sending is self._sent:
                    receiving = self._fetch(back, tag, check, view, now)
                else:  # the rest must be sent during the receive
                    receiving = self._engine.irecv(source, tag, view, check)
        if receiving is not None:
            receiving.wait(deadline)
        return sending

    def _fetch(self, lane: Incoming, tag: int, check: int, view: memoryview, now: float) -> Request | None:
        """Read a frame without the match queue. None if the whole frame was read, else the request for the rest."""
        try:
            rest = lane.fetch(tag, check, view, now)
            if rest is not None and not rest:
                return None
            self._loop.driver.interrupt()  # other threads may wait for the frame that arrived
            request = self._engine.irecv(lane.peer, tag, view, check)
            if rest:
                lane.receive_rest(self._match_queue.arrive(lane.peer, tag, check, len(view)), rest)
        except RondeError:  # the transport has failed
            raise
        except BaseException as error:
            self._engine.crashed(error)
            raise
        return request
