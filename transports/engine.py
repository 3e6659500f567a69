"""The engine: one lock, one waiting thread that moves bytes, one match queue and one lifecycle, over links to peers.

                 collectives
                      |  Transport
                   Engine ---- Loop, Driver      the thread that waits, and the rule of locking
                   /  |  \
                  /   |   MatchQueue, requests   frames and receives, whatever way they come
             Link    Link
           of the    to all
            host     others                      how a peer is reached, and how its frames come

A link reaches some of the peers; the first of an engine's links that reaches a peer has all its frames, so that they
stay in order. Ranks have the numbers of the engine's group everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from transports.anysource import AnyRequest, AnySource, Arrival, Taken, check_any
from transports.base import MAX_TAG, Group, Request, Transport, check_arguments, check_view
from transports.compiled import LaneFrom, LaneTo
from transports.cores import Cores
from transports.driver import Awaited
from transports.errors import MismatchError, RondeError, TransportError, Withdrawn
from transports.lifecycle import Lifecycle
from transports.locks import to_the_end, unlocked
from transports.loop import Loop
from transports.matching import MatchQueue, Receive, Target
from transports.requests import AnyOf, Owner, Probe, Receiving, ReceivingAny, Sending, SynchronousSending

A = TypeVar("A")
T = TypeVar("T")

NEVER: Final = float("inf")

_NOTE: Final = MAX_TAG + 1
"""The tag of a frame that precedes a synchronous one. The payload of both frames is that one's tag."""
_MATCHED: Final = MAX_TAG + 2
"""The tag of the frame that tells of the match."""
_TAG_BYTES: Final = 8


class Link(ABC):
    """A way to some of the peers of an engine. The engine's lock is held in every call but `open` and `part`.

    engine   its engine
    ranks    those that it joins, with this one, ascending
    peers    the ranks that it reaches: the same without this one
    group    the engine's, with a store of just these ranks
    sockets  True if its frames come through sockets, which the engine's loop watches
    largest  bytes of the largest payload that compiled code may send and receive on its lanes; 0 if none may
    """

    sockets: bool = False
    largest: int = 0

    def __init__(self, engine: Engine, ranks: Sequence[int]) -> None:
        """No I/O: what it needs it gets in `open`."""
        self.engine = engine
        self.ranks = tuple(ranks)
        self.peers = tuple(rank for rank in ranks if rank != engine.rank)
        self.group = engine.group
        if len(self.ranks) < engine.size:
            self.group = dataclasses.replace(engine.group, store=engine.group.store.prefixed(f"ranks from {ranks[0]}"))

    @property
    @abstractmethod
    def authenticated(self) -> bool:
        """See Transport."""

    def shortage(self) -> str | None:
        """The resource that this rank lacks to open the link, as far as it can tell alone; None if it lacks none. To
        be called before `open`."""
        return None

    @abstractmethod
    def open(self, deadline: float) -> None:
        """Prepare to send and receive. Collective over the ranks that it joins. Raises as Transport.open."""

    @abstractmethod
    def send(self, peer: int, tag: int, view: memoryview, check: int, sent: int = 0) -> Sending:
        """Begin to send a frame to a peer, of which `sent` bytes were sent by compiled code. See Transport.isend."""

    def ssend(self, peer: int, tag: int, view: memoryview, check: int) -> Request:
        """Begin to send a frame synchronously: see AnySource.issend."""
        sending = self.engine.await_match(peer, tag, len(view))
        self.send(peer, _NOTE, memoryview(tag.to_bytes(_TAG_BYTES)), 0)
        sending.sending = self.send(peer, tag, view, check)
        return sending

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None, turn: int
    ) -> Taken | None:
        """See AnySource.take. Nobody else waits for a frame, and no receive is posted for this one. The link need not
        reach all of `sources`; `turn` is another number each time, so that another one of them can be first."""
        return None

    def fetch(self, receive: Receive) -> bool:
        """Begin to receive the frame of a receive that is not posted, straight into its view, if the frame comes soon
        and fits. False, with nothing done, if not. Nobody else waits for a frame. True: the receive is done, or will
        be as one that was posted. By default it is taken, as a whole."""
        tags = range(receive.tag, receive.tag + 1)
        if self.take((receive.peer,), tags, receive.view, receive.check, 0) is None:
            return False
        receive.finish()
        return True

    def sweep(self, but: Collection[object] = ()) -> bool:
        """Move all bytes without waiting, for a link without sockets, but for those from the lanes `but`; True if there
        were any."""
        return False

    def poke(self, peer: int | None) -> bool:
        """See Owner.poke, for a link with sockets."""
        return False

    def tick(self, now: float) -> float:
        """Do what is due, such as a look at the peers; the time of the next call. Never raises."""
        return NEVER

    def learn(self) -> RondeError | None:
        """The cause of an abort of another rank, if that is written where this rank has to look for it."""
        return None

    @abstractmethod
    def departed(self, peer: int) -> bool:
        """True if a peer has closed."""

    @abstractmethod
    def lost(self, peer: int, *, receiving: bool) -> bool:
        """True if a peer has closed and can complete nothing any more: no receive, or no send."""

    def resume(self, peer: int) -> None:  # noqa: B027 - links that are swept have nothing to do
        """Offer the frame of a peer again that `Engine.arrive` has refused, unless each sweep does so."""

    def first_cause(self, cause: RondeError) -> RondeError:
        """The cause with which this rank fails: that of a rank that was first, or the given one, told to the peers."""
        return cause

    @abstractmethod
    def fail(self, cause: RondeError) -> None:
        """Tell the peers, as far as they can be reached, and give all buffers back. Never raises."""

    @abstractmethod
    def part(self, deadline: float) -> None:
        """Flush all frames and say goodbye. Called without the lock. Raises DeadlineExceeded."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all traffic, before the loop closes."""

    @abstractmethod
    def release(self) -> None:
        """Release everything, once the loop is closed."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: close inherited descriptors and mappings; send, unlink and wake nothing."""

    def interrupted(self) -> None:  # noqa: B027 - most have no locks of their own
        """See Transport.interrupted."""

    @abstractmethod
    def progress_to(self, peer: int) -> str:
        """See Owner."""

    @abstractmethod
    def progress_from(self, peer: int) -> str:
        """See Owner."""

    def ability(self, kind: type[A]) -> A | None:
        """See Transport."""
        return None

    # For compiled code, if `largest` is not 0; see transports.compiled.

    def lane_to(self, peer: int) -> LaneTo | None:
        """The lane to a peer; None before there is one."""
        return None

    def lane_from(self, peer: int) -> LaneFrom | None:
        """The lane from a peer; None before there is one."""
        return None

    def wake(self, peer: int) -> None:  # noqa: B027 - the system wakes peers with sockets
        """Wake a peer that sleeps."""


class Linking(Protocol):
    """A backend whose links engines of other transports can use: see transports.base.Backend."""

    def link(self, engine: Engine, ranks: Sequence[int], options: Any) -> Link:
        """A link that joins `ranks`, this one among them, ascending. No I/O."""


class Engine(Transport, AnySource, Owner):
    """A transport over links. A subclass has a name, and makes the links.

    lock         guards all state of the engine and its links; see `transports.driver`
    cores        those on which this rank waits
    match_queue  the posted receives and unexpected frames
    sent         the request of every send that completes immediately
    """

    def __init__(self, group: Group, kind: str, *, affinity: bool) -> None:
        """`kind` names the transport in messages: 'TCP transport'. `affinity`: see Cores."""
        super().__init__(group)
        self.cores = Cores(group, affinity)
        self.loop = Loop(self, self.cores)
        self.driver = self.loop.driver
        self.lock = self.driver.lock
        self.match_queue = MatchQueue(self.rank, self._tell_match)
        self._synchronous: dict[tuple[int, int], deque[SynchronousSending]] = {}
        self.sent = Sending(self, self.rank, 0, 0, done=True)
        self.life = Lifecycle(group, kind, self.lock, self._abandon)
        self.links: tuple[Link, ...] = ()
        self._route: dict[int, Link] = {}
        self._holding = False
        self._taken = 0

    @abstractmethod
    def _choose(self, deadline: float) -> tuple[Link, ...]:
        """The links, not yet open, those first that are to be used where several reach a peer."""

    @property
    def authenticated(self) -> bool:
        """True if every link is authenticated; known from `open` on."""
        return bool(self.links) and all(link.authenticated for link in self.links)

    @property
    def failure(self) -> RondeError | None:
        return self.life.failure

    def open(self, deadline: float) -> None:
        with self.lock:
            self.life.begin_open()
        try:
            links = self._choose(deadline)
            with self.lock:
                self.links = links
                self._route = {peer: link for link in reversed(links) for peer in link.peers}
                if any(link.sockets for link in links):
                    self.loop.open()
            for link in links:
                link.open(deadline)
            with self.lock:
                self.check_sound()
                self.life.opened()
        except BaseException as error:  # the other ranks cannot open without this one
            self.abort(self.life.cause(error, "gave up opening the transport"))
            with self.lock:
                self._release()
            raise

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=False)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            try:
                if peer != self.rank:
                    return self._route[peer].send(peer, tag, view, check)
                self._send_to_itself(tag, view, check)
            except BaseException as error:
                self.crashed(error)
                raise
        return self.sent

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        request = Receiving(self, peer, tag, view, check)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            self._post(request)
        return request

    def _post(self, receive: Receive) -> None:
        self.match_queue.add(receive)
        if self._holding:
            self.resume()

    def issend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=False)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            try:
                if peer != self.rank:
                    return self._route[peer].ssend(peer, tag, view, check)
                sending = self.await_match(peer, tag, len(view))
                self.match_queue.note(peer, tag)
                self._send_to_itself(tag, view, check)
            except BaseException as error:
                self.crashed(error)
                raise
        return sending

    def _send_to_itself(self, tag: int, view: memoryview, check: int) -> None:
        inbound = self.match_queue.arrive(self.rank, tag, check, len(view))
        inbound.view[:] = view
        inbound.finish()
        self.driver.interrupt()

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int = 0) -> None:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        receiving = Receiving(self, peer, tag, view, check)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            self._fetch_or_post(receiving)
        receiving.wait(deadline)

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int = 0
    ) -> Request:
        check_arguments(self, source, tag, check)
        if not 0 <= dest < self.size or self.rank in (dest, source):
            return super().sendrecv(dest, source, tag, data, view, deadline, check)
        check_view(data, writable=False)
        check_view(view, writable=True)
        receiving = Receiving(self, source, tag, view, check)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            try:
                sending = self._route[dest].send(dest, tag, data, check)
            except BaseException as error:
                self.crashed(error)
                raise
            self._fetch_or_post(receiving)
        receiving.wait(deadline)
        return sending

    def _fetch_or_post(self, receiving: Receiving) -> None:
        """Receive a frame that comes soon without the match queue, else post its receive."""
        peer, loop = receiving.peer, self.loop
        if peer != self.rank and loop.quiet:
            link, now = self._route[peer], time.monotonic()
            served = now < loop.due or loop.serve(now, (link.lane_from(peer),))
            if served and self.match_queue.is_clear((peer,), range(receiving.tag, receiving.tag + 1)):
                try:
                    if link.fetch(receiving):
                        return
                except RondeError:  # the transport has failed
                    raise
                except BaseException as error:
                    self.crashed(error)
                    raise
        self._post(receiving)

    def irecv_any(
        self, sources: frozenset[int], tags: range, view: memoryview | None, check: int | None = None
    ) -> AnyRequest:
        check_any(self, sources, tags, view, check)
        request = ReceivingAny(self, sources, tags, view, check)
        with self.lock:
            if self.life.obstacle is not None:
                raise self.life.error()
            self.match_queue.add_any(request)
            if self._holding:
                self.resume()
        return request

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None = None
    ) -> Taken | None:
        link, loop = self._route.get(sources[0] if sources[0] != self.rank else sources[-1]), self.loop
        with self.lock:
            if link is None or not loop.quiet:
                return None
            now = time.monotonic()
            if now >= loop.due and not loop.serve(now, [link.lane_from(peer) for peer in sources if peer != self.rank]):
                return None
            if not self.match_queue.is_clear(sources, tags):
                taken = self.match_queue.take(sources, tags, view, check)
                if taken is not None and self._holding:
                    self.resume()
                return taken
            self._taken += 1
            try:
                return link.take(sources, tags, view, check, self._taken)
            except RondeError:  # the transport has failed
                raise
            except BaseException as error:
                self.crashed(error)
                raise

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        check_any(self, sources, tags, None, None)
        probe = Probe(self, sources, tags)
        with self.lock:
            self.check_sound()
            if self.life.obstacle is not None:
                raise self.life.error()
            if not probe.done:
                self.loop.glance(probe)
        if probe.arrival is None and deadline > time.monotonic():
            self.wait(probe, deadline)
        if probe.arrival is None:
            with self.lock:
                self.check_sound()
        return probe.arrival

    def reachable(self, sources: frozenset[int]) -> bool:
        with self.lock:
            others = [peer for peer in sources if peer != self.rank]
            return not others or any(not self._lost(peer, receiving=True) for peer in others)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        awaited = AnyOf(requests)
        return awaited.ended if self.wait(awaited, deadline) else []

    def abort(self, cause: RondeError) -> None:
        with self.lock:
            self.fail(cause)

    @property
    def entered(self) -> bool:
        return self.driver.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        return unlocked(self.lock, function)

    def interrupted(self) -> None:
        self.driver.interrupted()
        for link in self.links:
            link.interrupted()

    def close(self, deadline: float) -> None:
        mine = False
        try:
            with self.lock:
                sound, mine = self.life.obstacle is None, not self.life.closing
                if mine:
                    self.life.begin_close()
                    self.loop.alarm = True
            with contextlib.ExitStack() as partings:  # each link parts, also if another one is late
                for link in reversed(self.links if sound and mine else ()):
                    partings.callback(link.part, deadline)
        finally:
            if mine:  # also if an interrupt has come before the links have parted
                with self.lock:
                    self._release()

    def ability(self, kind: type[A]) -> A | None:
        for link in self.links:
            found = link.ability(kind)
            if found is not None:
                return found
        return super().ability(kind)

    # For requests; see Owner.

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        return self.driver.wait(awaited, deadline)

    def glance(self, awaited: Awaited) -> bool:
        with self.lock:
            if not awaited.done:
                awaited.check_possible()
                self.loop.glance(awaited)
                if not awaited.done:
                    awaited.check_possible()
            return awaited.done

    def poke(self, peer: int | None) -> bool:
        if peer is None:
            return any(link.poke(None) for link in self.links)
        link = self._route.get(peer)
        return link is not None and link.poke(peer)

    def check_peer(self, peer: int, awaited: Awaited, *, receiving: bool) -> None:
        self.check_sound()
        if self._lost(peer, receiving=receiving) and not awaited.done:
            self.fail(self.life.left(peer))
            self.life.raise_failure()

    def check_sources(self, sources: frozenset[int], awaited: Awaited) -> None:
        self.check_sound()
        if not self.reachable(sources) and not awaited.done:
            self.fail(self.life.all_left(sources))
            self.life.raise_failure()

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        return self.match_queue.oldest(sources, tags)

    def withdraw(self, receive: Receiving | ReceivingAny) -> bool:
        with self.lock:
            if self.match_queue.held and not receive.done:
                self.loop.glance(receive)  # it may have a held frame, which is offered again in a sweep
            if not self.match_queue.withdraw(receive):
                return False
            receive.error = Withdrawn(f"a receive of rank {self.rank} was taken back", rank=self.rank)
            receive.done = True
            self.driver.interrupt()  # another thread may wait for it
            return True

    def progress_to(self, peer: int) -> str:
        with self.lock:
            return self._route[peer].progress_to(peer)

    def progress_from(self, peer: int) -> str:
        with self.lock:
            return "it is this rank itself" if peer == self.rank else self._route[peer].progress_from(peer)

    # For links and the loop, with the lock held.

    def sweep(self, but: Collection[object] = ()) -> bool:
        """See Progress."""
        moved = False
        if self.life.failure is None:
            for link in self.links:
                if link.sweep(but):
                    moved = True
        return moved

    def tick(self, now: float) -> float:
        """See Progress."""
        return min((link.tick(now) for link in self.links), default=NEVER)

    def arrive(self, peer: int, tag: int, check: int, length: int, most: int) -> Target | None:
        """The message for a frame whose header has arrived; None if it may not be read yet: it stays where it is until
        `Link.resume`, or the next sweep. `most`: bytes of unexpected messages that may be kept."""
        if tag > MAX_TAG:
            return _News(self, peer, tag, length)
        try:
            if self.match_queue.takes(peer, tag, check, length, most):
                return self.match_queue.arrive(peer, tag, check, length)
        except MismatchError as error:
            self.fail(error)
        self.hold(peer, tag, check, length)
        return None

    def await_match(self, peer: int, tag: int, nbytes: int) -> SynchronousSending:
        """The request of a synchronous send that is about to begin. Its link sets `sending`."""
        request = SynchronousSending(self, peer, tag, nbytes, self.sent)
        self._synchronous.setdefault((peer, tag), deque()).append(request)
        return request

    def _tell_match(self, peer: int, tag: int) -> None:
        """Tell the sender of a noted frame that a receive has matched it."""
        if peer == self.rank:
            self.news(peer, _MATCHED, tag)
        elif not self.departed(peer):
            self._route[peer].send(peer, _MATCHED, memoryview(tag.to_bytes(_TAG_BYTES)), 0)

    def news(self, peer: int, kind: int, tag: int) -> None:
        """A frame of the engine's own has come from a peer, about the next frame with a tag. Raises TransportError if
        there is none."""
        if kind == _NOTE:
            self.match_queue.note(peer, tag)
            return
        awaiting = self._synchronous.get((peer, tag))
        if awaiting is None:
            raise TransportError(f"it has matched a frame with tag {tag:#x} that was not sent")
        awaiting.popleft().matched = True
        if not awaiting:
            del self._synchronous[peer, tag]
        self.driver.notify()

    def hold(self, peer: int, tag: int, check: int, length: int) -> None:
        """The next frame of a peer waits until a receive is posted, or `resume` is called."""
        self._holding = True
        self.match_queue.hold(peer, tag, check, length)

    def resume(self) -> None:
        """Offer all held frames again."""
        self._holding = False
        for peer in list(self.match_queue.held):
            self._route[peer].resume(peer)
        self.driver.interrupt()

    def link_to(self, peer: int) -> Link:
        """The link that has the frames to and from a peer."""
        return self._route[peer]

    def departed(self, peer: int) -> bool:
        """True if a peer has closed its transport."""
        return peer != self.rank and self._route[peer].departed(peer)

    def check_sound(self) -> None:
        """Raise the first failure, or ClosedError; also that of another rank of which this one has not heard yet."""
        self.learn()
        self.life.raise_failure()

    def learn(self) -> None:
        """Fail if another rank has."""
        if self.life.failure is None:
            for link in self.links:
                cause = link.learn()
                if cause is not None:
                    self.fail(cause)

    def fail(self, cause: RondeError) -> None:
        """Fail, and tell the other ranks, unless there was a failure before. Raises nothing but an interrupt, and tells
        them also in that case."""
        if self.life.failure is not None or self.life.closed:
            return
        for link in self.links:
            cause = link.first_cause(cause)
        to_the_end(partial(self._tell, cause))

    def _tell(self, cause: RondeError) -> None:
        """Fail, and tell the other ranks. Idempotent."""
        self.life.fail(cause)
        self.loop.alarm = True
        for link in self.links:
            link.fail(cause)
        self.match_queue.clear()
        self._synchronous.clear()
        self.driver.interrupt()

    def crashed(self, error: BaseException, by: Engine | None = None) -> None:
        """Abort, since an exception has escaped while bytes were moved, and streams may be corrupt. `by`: the engine of
        the rank that has moved them, if that is another one."""
        self.fail((by or self).life.cause(error, "was interrupted while it moved bytes"))

    def _lost(self, peer: int, *, receiving: bool) -> bool:
        link = self._route.get(peer)
        return link is not None and link.lost(peer, receiving=receiving)

    def _release(self) -> None:
        if not self.life.closed:
            to_the_end(self._end)

    def _end(self) -> None:
        """Release everything. Idempotent."""
        self.life.close()
        self.loop.alarm = True
        for link in self.links:
            link.stop()
        self.match_queue.clear()
        self.loop.close()
        for link in self.links:
            link.release()

    def _abandon(self) -> None:
        """In a forked child."""
        self.loop.abandon()
        for link in self.links:
            link.abandon()
        self.match_queue.clear()


class _News:
    """The payload of a frame of an engine's own: see Target."""

    def __init__(self, engine: Engine, peer: int, kind: int, length: int) -> None:
        if length != _TAG_BYTES:
            raise TransportError(f"received a frame of the engine with {length} bytes")
        self.view = memoryview(bytearray(_TAG_BYTES))
        self._engine = engine
        self._peer = peer
        self._kind = kind

    def finish(self) -> None:
        """The payload is complete."""
        self._engine.news(self._peer, self._kind, int.from_bytes(self.view))


class Assembly(Awaited):
    """The wait of an opening link. `complete` returns True once all ranks have opened."""

    def __init__(self, engine: Engine, complete: Callable[[], bool]) -> None:
        self._engine = engine
        self._complete = complete

    @property
    def done(self) -> bool:
        return self._complete()

    def check_possible(self) -> None:
        self._engine.check_sound()


class Flush(Awaited):
    """The wait of a link that parts, which a failure ends too. `complete` returns True once all frames are gone."""

    def __init__(self, engine: Engine, complete: Callable[[], bool]) -> None:
        self._engine = engine
        self._complete = complete

    @property
    def done(self) -> bool:
        return self._engine.life.failure is not None or self._complete()

    def check_possible(self) -> None:
        """Never raises: a failure ends the flush."""
        self._engine.learn()
