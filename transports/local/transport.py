"""The transport between threads."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from transports.anysource import AnyRequest, AnySource, Arrival, Claim, check_any
from transports.base import Group, Request, Transport, check_arguments, check_view, has_ended
from transports.errors import ConfigError, DeadlineExceeded, MismatchError, RondeError, from_wire, to_wire
from transports.lifecycle import Lifecycle
from transports.local.hub import Hub, meet
from transports.local.request import Receiving, ReceivingAny, Sending
from transports.local.window import Exposure, LocalWindow
from transports.locks import hold, is_mine, let_go, unlocked
from transports.matching import AnyReceive, MatchQueue
from transports.onesided import OneSided, Window

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `local`. Raises ConfigError for a bad value.

    eager_bytes  frames of up to this many bytes are buffered, so that their sends complete at once; 0 buffers none
    """

    eager_bytes: int = 0

    def __post_init__(self) -> None:
        if self.eager_bytes < 0:
            raise ConfigError(f"eager_bytes={self.eager_bytes!r}: must be 0 or more bytes")


class LocalTransport(Transport, OneSided, AnySource):
    """A rank that is a thread. See the module."""

    name = "local"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        super().__init__(group)
        self.lock = threading.RLock()
        self.life = Lifecycle(group, "local transport", self.lock)
        self.news = threading.Condition(self.lock)
        self._eager_bytes = (options or Options()).eager_bytes
        self.match_queue = MatchQueue(self.rank)
        self.probes = 0
        self._hub: Hub | None = None
        self.windows: set[LocalWindow] = set()
        self._window_keys: set[str] = set()

    @property
    def authenticated(self) -> bool:
        """True: the bytes never leave the process."""
        return True

    @property
    def failure(self) -> RondeError | None:
        return self.life.failure

    def open(self, deadline: float) -> None:
        with self.lock:
            self.life.begin_open()
        hub = meet(self.group, deadline)
        with hub.lock:
            self._hub = hub
            self.lock = self.life.lock = hub.lock
            self.news = threading.Condition(hub.lock)
            hub.joined.add(self.rank)
            hub.present[self.rank] = self
            if hub.cause is not None:
                self.life.fail(from_wire(to_wire(hub.cause)))
            hub.wake()
            try:
                while len(hub.joined) < self.size:
                    self.life.check()
                    if not self.pause(deadline):
                        missing = ", ".join(self.group.describe(r) for r in range(self.size) if r not in hub.joined)
                        raise DeadlineExceeded(f"{missing} did not open the transport in time", rank=self.rank)
                self.life.opened()
            except BaseException as error:  # without this rank the others wait in vain
                self.abort(self.life.cause(error, "gave up opening the transport"))
                self._leave(hub)
                raise

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=False)
        hub = self.hub
        with hub.lock:
            if self.life.refusal is not None:
                raise self.life.refused()
            receiver = hub.present.get(peer)
            match_queue = MatchQueue(peer) if receiver is None else receiver.match_queue
            inbound = match_queue.arrive(self.rank, tag, check, len(view), view)
            inbound.finish()
            if receiver is None:
                pass  # a wait for the send raises, since the peer has closed
            else:
                if not inbound.borrowed or receiver.probes:
                    receiver.news.notify_all()
                if inbound.borrowed and len(view) <= self._eager_bytes and self._eager_bytes:
                    inbound.keep()
            return Sending(self, peer, tag, inbound)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        hub = self.hub
        with hub.lock:
            if self.life.refusal is not None:
                raise self.life.refused()
            receive = self.match_queue.post(peer, tag, view, check)
            if receive.done and peer in hub.present:
                hub.present[peer].news.notify_all()
            return Receiving(self, peer, tag, receive)

    def irecv_any(
        self,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None = None,
        claim: Claim | None = None,
    ) -> AnyRequest:
        check_any(self, sources, tags, view, check)
        hub = self.hub
        with hub.lock:
            if self.life.refusal is not None:
                raise self.life.refused()
            receive = AnyReceive(sources, tags, view, check, claim)
            self.match_queue.add_any(receive)
            if receive.done and receive.peer in hub.present:
                hub.present[receive.peer].news.notify_all()
            return ReceivingAny(self, receive, claim is None)

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        check_any(self, sources, tags, None, None)
        with self.hub.lock:
            if self.life.refusal is not None:
                raise self.life.refused()
            self.probes += 1
            try:
                while True:
                    arrival = self.match_queue.oldest(sources, tags)
                    if arrival is not None or not self.reachable(sources) or not self.pause(deadline):
                        return arrival
                    self.life.check()
            finally:
                self.probes -= 1

    def since(self, sources: frozenset[int], tags: range) -> float:
        with self.hub.lock:
            return self.match_queue.since(sources, tags)

    def reachable(self, sources: frozenset[int]) -> bool:
        alone = True
        for peer in sources:
            if peer != self.rank:
                if peer in self.hub.present:
                    return True
                alone = False
        return alone

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        if not requests:
            raise ValueError("requests: must not be empty")
        with self.lock:
            while True:
                ended = [position for position, request in enumerate(requests) if has_ended(self, request)]
                if ended or not self.pause(deadline):
                    return ended

    def abort(self, cause: RondeError) -> None:
        hub = self._hub
        if hub is None:
            with self.lock:
                self.life.fail(cause)
            return
        with hub.lock:
            if not self.life.fail(cause):
                return
            hub.cause = cause
            for transport in hub.present.values():
                transport.life.fail(from_wire(to_wire(cause)))
            hub.wake()

    @property
    def entered(self) -> bool:
        return is_mine(self.lock)

    def unlocked(self, function: Callable[[], T]) -> T:
        return unlocked(self.lock, function)

    def interrupted(self) -> None:
        let_go(self.lock)

    def close(self, deadline: float) -> None:
        with self.lock:
            hub = self._hub
            if not self.life.begin_close():
                return
            if hub is None:
                self.life.close()
                return
            try:
                while self.life.failure is None and not self.life.closed and self._unclaimed(hub):
                    if not self.pause(deadline):
                        waiting = ", ".join(self.group.describe(peer) for peer in self._unclaimed(hub))
                        raise DeadlineExceeded(f"frames sent to {waiting} were not received in time", rank=self.rank)
            finally:
                self._leave(hub)

    def reaches(self, ranks: tuple[int, ...]) -> bool:
        return all(0 <= rank < self.size for rank in ranks)

    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        """See OneSided. Also raises MismatchError if another rank came with other arguments."""
        if self.rank not in ranks or len(set(ranks)) != len(ranks) or not self.reaches(ranks):
            raise ValueError(f"ranks={ranks!r}: must be distinct ranks, 0 to {self.size - 1}, {self.rank} among them")
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes!r}: must be 0 or more")
        hub = self.hub
        with hub.lock:
            if self.life.refusal is not None:
                raise self.life.refused()
            if key in self._window_keys:
                raise ValueError(f"key={key!r}: was used before; every window of a group needs a key of its own")
            exposure = hub.gathering.get(key)
            if exposure is None:
                exposure = hub.gathering[key] = Exposure(ranks, nbytes)
            if (exposure.ranks, exposure.nbytes) != (ranks, nbytes):
                raise MismatchError(
                    f"window {key!r}: rank {self.rank} asks for {nbytes} bytes among ranks {ranks}, "
                    f"another rank for {exposure.nbytes} among {exposure.ranks}",
                    rank=self.rank,
                )
            self._window_keys.add(key)
            exposure.came.add(self.rank)
            hub.wake()
            while missing := [rank for rank in ranks if rank not in exposure.came]:
                self.check_peer(missing[0])
                if not self.pause(deadline):
                    exposure.came.discard(self.rank)
                    absent = ", ".join(map(self.group.describe, missing))
                    raise DeadlineExceeded(f"{absent} did not come to window {key!r} in time", rank=self.rank)
            hub.gathering.pop(key, None)
            window = LocalWindow(self, exposure)
            self.windows.add(window)
            weakref.finalize(window, self._window_keys.discard, key).atexit = False
            return window

    @property
    def hub(self) -> Hub:
        """The hub. Raises the transport's first failure, or ClosedError if the transport was not opened."""
        if self._hub is None:
            raise self.life.refused()
        return self._hub

    def wake_all(self) -> None:
        """Let every rank look again, with the lock held."""
        self.hub.wake()

    def pause(self, deadline: float) -> bool:
        """Wait for news, with the lock held; False if the deadline has passed."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        try:
            self.news.wait(min(remaining, threading.TIMEOUT_MAX))
        finally:
            hold(self.lock)
        return True

    def check_peer(self, peer: int) -> None:
        """Raises if a wait for `peer` cannot end well: the first failure, or PeerLost, which becomes that."""
        self.life.check()
        if peer not in self.hub.present:
            self.abort(self.life.left(peer))
            self.life.check()

    def check_sources(self, sources: frozenset[int]) -> None:
        """Raises if a wait for any of `sources` cannot end well: the first failure, or PeerLost, which becomes that."""
        self.life.check()
        if not self.reachable(sources):
            self.abort(self.life.all_left(sources))
            self.life.check()

    def withdraw(self, receive: AnyReceive) -> bool:
        """Take a receive from any source back; False if it has matched a frame."""
        with self.hub.lock:
            return self.match_queue.withdraw(receive)

    def _unclaimed(self, hub: Hub) -> list[int]:
        """The peers that have yet to receive from a buffer of this rank."""
        return [
            peer
            for peer, transport in hub.present.items()
            if any(inbound.borrowed for inbound in transport.match_queue.unexpected_from(self.rank))
        ]

    def _leave(self, hub: Hub) -> None:
        self.life.close()
        hub.present.pop(self.rank, None)
        self.match_queue = MatchQueue(self.rank)
        for transport in hub.present.values():
            for inbound in transport.match_queue.unexpected_from(self.rank):
                if inbound.borrowed:  # the caller gets its buffer back all the same
                    inbound.keep()
        for window in tuple(self.windows):
            window.close()
        self.news.notify_all()
        hub.wake()
