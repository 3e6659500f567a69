"""Messages of compiled code over TCP: the lanes that it uses, and the return of what it leaves. See transports.direct.

The lock of the transport is held while the code runs, so the code is in the place of a thread that calls `send` and
`recv` on it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from transports import direct
from transports.base import Request
from transports.engine import Engine
from transports.requests import Sending
from transports.tcp.frames import data_header
from transports.tcp.lanes import BUFFER_BYTES, Incoming
from transports.tcp.outgoing import Outgoing

_POLLS: Final = 64
"""Some 25 us, as long as Loop.glances."""
_YIELDS: Final = 100
"""Yields where ranks share cores. A yield costs half a microsecond if no other rank can run; to go on in Python costs
ten times that."""


class DirectMessages(direct.DirectMessages):
    """The ability of one transport, whose lanes and match queue it shares."""

    largest = BUFFER_BYTES - direct.HEAD_BYTES

    def __init__(self, engine: Engine, incoming: dict[int, Incoming], outgoing: dict[int, Outgoing]) -> None:
        self.polls, self.yields = (_POLLS, 0) if engine.loop.polls else (0, _YIELDS)
        self.engine = engine
        self.incoming = incoming
        self.outgoing = outgoing

    def channel(self, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int) -> Channel | None:
        if not all(self.engine.link_to(peer).sockets for peer in (*dests, *sources)):
            return None
        return Channel(self, dests, sources, tag, busy)


class Channel(direct.Channel):
    """See transports.direct.Channel."""

    def __init__(
        self, messages: DirectMessages, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int
    ) -> None:
        self._messages = messages
        self._engine = messages.engine
        self._loop = messages.engine.loop
        self._lock = messages.engine.lock
        self._match_queue = messages.engine.match_queue
        self._dests = tuple(dests)
        self._sources = tuple(sources)
        self._tag = tag
        self._busy = busy
        self._words = {peer: (ctypes.c_int64 * direct.LANE_WORDS)() for peer in {*dests, *sources}}
        self._to: list[Outgoing] = []
        self._from: list[Incoming] = []

    def words(self, peer: int) -> int:
        return ctypes.addressof(self._words[peer])

    def run(self, run: direct.Run, source: Any, target: Any, left: Callable[[int, Any, Any], None]) -> int | None:
        with self._lock:
            try:
                if not self._is_free():
                    return self._busy
                answer = run(source, target)
                if answer is not None:
                    left(answer, source, target)
                    self._hand_back()
            except BaseException as error:
                self._engine.crashed(error)
                raise
        return answer

    def send_rest(self, peer: int, view: memoryview, check: int, sent: int) -> Request:
        request = Sending(self._engine, peer, self._tag, len(view))
        self._messages.outgoing[peer].queue(data_header(self._tag, check, len(view)), view, request, sent)
        return request

    def _is_free(self) -> bool:
        """True if compiled code may use the lanes now."""
        loop = self._loop
        if not loop.quiet or not (self._from or self._to or self._connected()):
            return False
        if self._from:
            now = time.monotonic()
            if not loop.serve(now):
                return False
            for back in self._from:
                if not back.is_clear:
                    return False
                back.delay_answers(now)
        for lane in self._to:
            if not lane.is_clear:
                return False
        for back in self._from:
            if self._match_queue.knows(back.peer, self._tag) and not self._hand_over(back):
                self._hand_back()
                return False
        return True

    def _hand_over(self, lane: Incoming) -> bool:
        """Give compiled code the message that came before the call. False if it cannot take it."""
        early = self._match_queue.take_early(lane.peer, self._tag, self._messages.largest)
        if early is None:
            return False
        header = data_header(early.tag, early.check, len(early.view))
        self._words[lane.peer][direct.END] = lane.put_back(header, early.view)
        return True

    def _connected(self) -> bool:
        """Look up the lanes, once there are all of them; True if so."""
        outgoing, incoming = self._messages.outgoing, self._messages.incoming
        if not (outgoing.keys() >= set(self._dests) and incoming.keys() >= set(self._sources)):
            return False
        to, back = [outgoing[peer] for peer in self._dests], [incoming[peer] for peer in self._sources]
        if any(lane.sock is None for lane in (*to, *back)):
            return False
        for lane in to:
            self._words[lane.peer][direct.OUT] = lane.fileno()
        for source in back:
            words = self._words[source.peer]
            words[direct.IN], words[direct.BUFFER] = source.fileno(), source.address
        self._to, self._from = to, back
        return True

    def _hand_back(self) -> None:
        """Give the lanes the bytes that were read, or handed over, and not taken."""
        for lane in self._from:
            words = self._words[lane.peer]
            end, words[direct.END] = words[direct.END], 0
            if end:
                self._loop.driver.interrupt()  # other threads may wait for the frame that arrived
                lane.adopt(end)
