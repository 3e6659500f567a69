"""Messages of compiled code over the links of an engine: the lanes that it uses, and the return of what it leaves.

The lock of the engine is held while the code runs, so the code is in the place of a thread that calls `send` and `recv`
on it. See transports.compiled.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from transports import compiled
from transports.base import Request
from transports.engine import Engine
from transports.matching import InboundMessage

A = TypeVar("A")

_POLLS: Final = 64
"""Some 25 us, as long as Loop.glances."""
_YIELD_SECONDS: Final = 0.8e-6
"""Time of a yield and a look, if nothing else can run."""
_YIELDS: Final = 100
"""Yields where ranks share cores. To go on in Python costs a hundred times as much as one. A message of 16 KiB that is
late has often been given to a thread of the kernel, which needs a core too."""
_SLEEPS: Final = 2
"""Milliseconds at most in which this rank serves no other peer."""


def compiled_messages(engine: Engine, kind: type[A]) -> A | None:
    """The ability of an engine; None if its waits neither poll nor yield, or if `kind` is another ability."""
    suits = sys.platform == "linux" and (engine.loop.polls or engine.loop.yields)
    found = CompiledMessages(engine) if suits else None
    return found if isinstance(found, kind) else None


class CompiledMessages(compiled.CompiledMessages):
    """The ability of an engine."""

    def __init__(self, engine: Engine) -> None:
        loop = engine.loop
        self.polls = _POLLS if loop.polls else 0
        self.yields = int(loop.spin / _YIELD_SECONDS) if loop.polls else _YIELDS
        self.sleeps = _SLEEPS
        self._engine = engine

    def channel(self, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int) -> Channel | None:
        links = [self._engine.link_to(peer) for peer in (*dests, *sources)]
        largest = min((link.largest for link in links), default=0)
        return Channel(self._engine, dests, sources, tag, busy, largest) if largest else None


class Channel(compiled.Channel):
    """See transports.compiled.Channel."""

    def __init__(
        self, engine: Engine, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int, largest: int
    ) -> None:
        self.largest = largest
        self._engine = engine
        self._loop = engine.loop
        self._lock = engine.lock
        self._match_queue = engine.match_queue
        self._dests = tuple(sorted(set(dests)))
        self._sources = Counter(sources)
        self._tag = tag
        self._busy = busy
        self._words = {peer: (ctypes.c_int64 * compiled.LANE_WORDS)() for peer in {*dests, *sources}}
        self._to: list[compiled.LaneTo] = []
        self._from: list[compiled.LaneFrom] = []
        self._rings: list[compiled.LaneTo | compiled.LaneFrom] = []
        self._early: dict[int, InboundMessage] = {}
        """The messages that were handed over to the present run."""

    def words(self, peer: int) -> int:
        return ctypes.addressof(self._words[peer])

    def run(self, run: compiled.Run, source: Any, target: Any, left: compiled.Left) -> int | None:
        with self._lock:
            try:
                if not self._is_free():
                    return self._busy
                answer = run(source, target)
                if answer is not None:
                    answer = left(answer, source, target)
                if self._rings:
                    self._catch_up()
                if answer is not None:
                    self._hand_back()
                self._early.clear()
            except BaseException as error:
                self._engine.crashed(error)
                raise
        return answer

    def send_rest(self, peer: int, view: memoryview, check: int, sent: int) -> Request:
        self._catch_up()
        return self._engine.link_to(peer).send(peer, self._tag, view, check, sent)

    def wake(self, peer: int) -> None:
        self._engine.link_to(peer).wake(peer)

    def _catch_up(self) -> None:
        for lane in self._rings:
            lane.catch_up()

    def _is_free(self) -> bool:
        """True if compiled code may use the lanes now."""
        loop = self._loop
        if not loop.quiet or self._match_queue.held or not (self._from or self._to or self._connected()):
            return False
        if self._from:
            now = time.monotonic()
            if now >= loop.due and not loop.serve(now, self._from):
                return False
            for back in self._from:
                if not back.is_clear:
                    return False
                back.expect(now)
        for lane in self._to:
            if not lane.is_clear:
                return False
        for back in self._from:
            if self._match_queue.knows(back.peer, self._tag) and not self._hand_over(back):
                self._hand_back()
                return False
        return True

    def _hand_over(self, lane: compiled.LaneFrom) -> bool:
        """Give compiled code the message that came before the call. False if it cannot take it, or if more have come
        that it would have to take: it looks for those in the lane."""
        several = self._sources[lane.peer] > 1
        early = self._match_queue.take_first(lane.peer, self._tag, self.largest, only=several)
        if early is None:
            return False
        self._early[lane.peer] = early
        lane.put_back(self._words[lane.peer], compiled.HEAD.pack(early.tag, early.check, len(early.view)), early.view)
        return True

    def _connected(self) -> bool:
        """Look up the lanes, once there are all of them; True if so."""
        link_to = self._engine.link_to
        to = [link_to(peer).lane_to(peer) for peer in self._dests]
        back = [link_to(peer).lane_from(peer) for peer in self._sources]
        lanes = zip((*self._dests, *self._sources), (*to, *back), strict=True)
        if not all(lane is not None and lane.tell(self._words[peer]) for peer, lane in lanes):
            return False
        self._to, self._from = [lane for lane in to if lane], [lane for lane in back if lane]
        self._rings = [lane for lane in (*self._to, *self._from) if lane.in_memory]
        return True

    def _hand_back(self) -> None:
        """Give the lanes the bytes that were read and not taken, and the match queue the messages that were handed over
        and not taken."""
        for lane in self._from:
            words = self._words[lane.peer]
            early, words[compiled.EARLY] = words[compiled.EARLY], 0
            end, words[compiled.END] = words[compiled.END], 0
            if early or end:
                self._loop.driver.interrupt()  # other threads may wait for the frame that arrived
            if early:
                self._match_queue.put_first(self._early[lane.peer])
            elif end:
                lane.adopt(end)
