"""The shared-memory transport: `board` is the memory that all ranks map, `ring` carries frames, `loop` moves them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from transports.anysource import AnyRequest, AnySource, Arrival, Claim, check_any
from transports.base import Group, LinkCost, Request, Transport, check_arguments, check_view
from transports.cores import Cores
from transports.errors import (
    AbortedError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    ReentryError,
    RondeError,
    TransportError,
)
from transports.lifecycle import Lifecycle
from transports.liveness import Identity, Watch
from transports.locks import unlocked
from transports.matching import AnyReceive, MatchQueue
from transports.onesided import OneSided, Window
from transports.pollable import Pollable
from transports.shm.board import CLOSED, Board
from transports.shm.doorbell import HAS_DESCRIPTOR, Doorbell
from transports.shm.ends import Assembly, Flush
from transports.shm.exposing import Exposures
from transports.shm.fence import barrier
from transports.shm.loop import Awaited, Loop
from transports.shm.options import AUTOMATIC_SPIN, Options
from transports.shm.requests import AnyOf, Probe, Receiving, ReceivingAny, Sending, Sent
from transports.shm.ring import Arrive, Arriving, Incoming, Outgoing
from transports.shm.window import ShmWindow

A = TypeVar("A")
T = TypeVar("T")

_SPIN: Final = 40e-6
_MOST_WATCHED: Final = 64
"""Number of peers whose processes a rank watches: the next ones, so that each process is watched by some rank."""
_DATA: Final = 0
_OFFER: Final = 1
_SENT: Final = Sent()


class ShmTransport(Transport, OneSided, AnySource, Pollable):
    """Bytes between the ranks of one host. See the module, `transports.base` and `transports.onesided`.

    It is also the engine of its loop and the host of its requests and windows: those calls come with the lock held.
    """

    name = "shm"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        super().__init__(group)
        self._options = options or Options()
        self.cores = Cores(group, self._options.affinity)
        spin = _SPIN if self.cores.suffice else 0.0
        if self._options.spin_us != AUTOMATIC_SPIN:
            spin = self._options.spin_us * 1e-6
        self.spins = spin > 0
        self.loop = Loop(self, spin, self.cores)
        self.driver = self.loop.driver
        self.windows: set[ShmWindow] = set()
        self._lock = self.driver.lock
        self._match_queue = MatchQueue(self.rank)
        self._holding = False
        self._exposures = Exposures(self, self._options.directory)
        self._window_keys: set[str] = set()
        self._board: Board | None = None
        self._watch: Watch | None = None
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._backlog: set[int] = set()
        self._life = Lifecycle(group, "shared-memory transport", self._lock, self._abandon)

    @property
    def authenticated(self) -> bool:
        """True: only processes of this user can map the memory, and its random name comes from the group's store."""
        return True

    @property
    def failure(self) -> RondeError | None:
        return self._life.failure

    def open(self, deadline: float) -> None:
        with self._lock:
            self._life.begin_open()
        try:
            self._open(deadline)
        except BaseException as error:  # the other ranks cannot open without this one
            self.abort(self._life.cause(error, "gave up opening the transport"))
            with self._lock:
                if self._board is not None:
                    self._board.segment.unlink()
                self._release()
            raise

    def shortage(self) -> str | None:
        """No room for the rings, which the first rank makes."""
        return Board.shortage(self.size, self._options.ring_bytes, self._options.directory) if self.rank == 0 else None

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=False)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            if peer == self.rank:
                inbound = self._match_queue.arrive(peer, tag, check, len(view))
                inbound.view[:] = view
                inbound.finish()
                self.driver.interrupt()
                return _SENT
            try:
                frame = self._outgoing[peer].send(_DATA, tag, check, view)
            except BaseException as error:
                self.crashed(error)
                raise
            if frame is None:
                return _SENT
            self._backlog.add(peer)
        return Sending(self, peer, frame)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            receive = self._match_queue.post(peer, tag, view, check)
            if self._holding:
                self._holding = False
                self.driver.interrupt()
        return Receiving(self, receive)

    def irecv_any(
        self,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None = None,
        claim: Claim | None = None,
    ) -> AnyRequest:
        check_any(self, sources, tags, view, check)
        receive = AnyReceive(sources, tags, view, check, claim)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            self._match_queue.add_any(receive)
            if self._holding:
                self._holding = False
                self.driver.interrupt()
        return ReceivingAny(self, receive, claim is None)

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        check_any(self, sources, tags, None, None)
        probe = Probe(self, sources, tags)
        with self._lock:
            self.check_sound()
            if self._life.refusal is not None:
                raise self._life.refused()
            if not probe.done:
                self.loop.glance(probe)
        if probe.arrival is None and deadline > time.monotonic():
            self.driver.wait(probe, deadline)
        if probe.arrival is None:
            with self._lock:
                self.check_sound()
        return probe.arrival

    def since(self, sources: frozenset[int], tags: range) -> float:
        with self._lock:
            return self._match_queue.since(sources, tags)

    def reachable(self, sources: frozenset[int]) -> bool:
        with self._lock:
            others = []
            for peer in sources:
                if peer != self.rank:
                    if not self.departed(peer):
                        return True
                    others.append(peer)
            barrier()
            return not others or any(peer in self._incoming and not self._incoming[peer].empty for peer in others)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        awaited = AnyOf(requests)
        return awaited.ended if self.driver.wait(awaited, deadline) else []

    def abort(self, cause: RondeError) -> None:
        with self._lock:
            if self._life.failure is not None or self._life.closed:
                return
            published = None
            if self._board is not None:
                published = self._board.cause()
                if published is None:
                    self._board.publish_cause(cause)
            self._fail(published or cause)

    @property
    def entered(self) -> bool:
        return self.driver.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        return unlocked(self._lock, function)

    def interrupted(self) -> None:
        self.driver.interrupted()
        if self._board is not None:
            self._board.interrupted()

    def close(self, deadline: float) -> None:
        """See Transport. A frame counts as sent once it is in a ring: the ring's memory stays while a peer maps it.
        Frames for a peer that has closed are dropped."""
        with self._lock:
            sound = self._life.refusal is None
            if not self._life.begin_close():
                return
        try:
            if sound and not self._flush(deadline):
                absent = ", ".join(map(self.group.describe, sorted(self._backlog)))
                raise DeadlineExceeded(f"{self._life} was closed before {absent} had taken all frames", rank=self.rank)
        finally:
            with self._lock:
                self._release()

    def _flush(self, deadline: float) -> bool:
        try:
            return self.driver.wait(Flush(self), deadline)
        except ReentryError:  # a signal handler closes the transport that its own thread drives
            return False

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        """Measured on two cores of an AMD Zen 3; there are no ranks on other hosts."""
        cost = LinkCost(7e-6, 0.3e-9)
        return cost, cost

    def reaches(self, ranks: tuple[int, ...]) -> bool:
        return all(0 <= rank < self.size for rank in ranks)

    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        """See OneSided. Also raises MismatchError if another rank came with other arguments."""
        if self.rank not in ranks or len(set(ranks)) != len(ranks) or not self.reaches(ranks):
            raise ValueError(f"ranks={ranks!r}: must be distinct ranks, 0 to {self.size - 1}, {self.rank} among them")
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes!r}: must be 0 or more")
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            if key in self._window_keys:
                raise ValueError(f"key={key!r}: was used before; every window of a group needs a key of its own")
            self._window_keys.add(key)
        window = self._exposures.expose(key, ranks, nbytes, deadline)
        weakref.finalize(window, self._window_keys.discard, key).atexit = False
        return window

    def ability(self, kind: type[A]) -> A | None:
        return None if issubclass(kind, Pollable) and not HAS_DESCRIPTOR else super().ability(kind)

    @property
    def descriptor(self) -> int:
        with self._lock:
            return self.loop.fileno()

    def prepare(self) -> float:
        with self._lock:
            return self.loop.prepare()

    def finish(self) -> None:
        with self._lock:
            self.loop.finish()

    # The rings of the loop.

    def sweep(self) -> bool:
        if self._life.failure is not None or self._board is None:
            return False
        moved = False
        peer = self.rank
        try:
            held = self._match_queue.held
            for peer in dict.fromkeys([*held, *self._incoming]) if held else self._incoming:
                incoming = self._incoming[peer]
                if not incoming.empty and incoming.drain():
                    moved = True
        except TransportError as error:
            text = f"rank {self.rank} lost {self.group.describe(peer)}, which wrote invalid data: {error}"
            self.abort(PeerLost(text, rank=self.rank, peer=peer))
            return True
        if self._backlog:
            for peer in tuple(self._backlog):
                outgoing = self._outgoing[peer]
                if outgoing.push():
                    moved = True
                if not outgoing.queued:
                    self._backlog.discard(peer)
        return moved

    def look(self) -> None:
        board, watch = self._board, self._watch
        if self._life.failure is not None or board is None or watch is None:
            return
        for peer in watch.dead():
            if board.state(peer) != CLOSED:
                lost = f"rank {self.rank} lost {self.group.describe(peer)}"
                self.abort(PeerLost(f"{lost}: its process ended without closing", rank=self.rank, peer=peer))

    def crashed(self, error: BaseException) -> None:
        self.abort(self._life.cause(error, "was interrupted while it moved bytes"))

    # For requests and windows.

    def check_sound(self) -> None:
        self.learn()
        self._life.check()

    def check_peer(self, peer: int, awaited: Awaited) -> None:
        self.check_sound()
        if peer == self.rank or not self.departed(peer):
            return
        barrier()
        if self._incoming[peer].empty and not awaited.done:
            self.abort(self._life.left(peer))
            self.check_sound()

    def check_sources(self, sources: frozenset[int], awaited: Awaited) -> None:
        self.check_sound()
        if not self.reachable(sources) and not awaited.done:
            self.abort(self._life.all_left(sources))
            self.check_sound()

    def withdraw(self, receive: AnyReceive) -> bool:
        with self._lock:
            return self._match_queue.withdraw(receive)

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        return self._match_queue.oldest(sources, tags)

    def bells_of(self, ranks: Sequence[int]) -> list[Doorbell]:
        board = self._board
        assert board is not None
        return [board.bells[rank] for rank in ranks]

    def offer(self, peer: int, payload: bytes) -> None:
        """Send a control frame of the transport."""
        with self._lock:
            self.check_sound()
            if self._outgoing[peer].send(_OFFER, 0, 0, memoryview(payload)) is not None:
                self._backlog.add(peer)

    # Opening, closing and failing.

    def learn(self) -> None:
        """Fail this transport if another rank has aborted."""
        board = self._board
        if self._life.failure is None and board is not None and board.aborted:
            self._fail(board.cause() or AbortedError("a rank has aborted", rank=self.rank))

    def departed(self, peer: int) -> bool:
        """True if a peer has closed its transport."""
        return self._board is not None and self._board.state(peer) == CLOSED

    def drop(self, peer: int) -> None:
        """Discard the frames that are queued for a peer."""
        self._outgoing[peer].forget()
        self._backlog.discard(peer)

    @property
    def backlog(self) -> set[int]:
        """The peers with frames still queued for them."""
        return self._backlog

    @property
    def missing(self) -> list[int]:
        """The ranks that have not opened yet."""
        return [] if self._board is None else self._board.missing()

    def _open(self, deadline: float) -> None:
        host = self.group.members[self.rank].host
        far = [self.group.describe(rank) for rank, member in enumerate(self.group.members) if member.host != host]
        if far:
            raise ConnectError(
                f"rank {self.rank} cannot share memory with {', '.join(far)}: not on its host", rank=self.rank
            )
        board = Board.create_or_attach(self.group, self._options.ring_bytes, self._options.directory, deadline)
        with self._lock:
            self._board = board
            for peer in range(self.size):
                if peer != self.rank:
                    self._join(board, peer)
            self.loop.open(board.bells[self.rank])
            board.enter(Identity.own())
        if not self.driver.wait(Assembly(self), deadline):
            absent = ", ".join(map(self.group.describe, board.missing()))
            raise DeadlineExceeded(f"{absent} did not open the transport in time", rank=self.rank)
        board.segment.unlink()
        with self._lock:
            self.check_sound()
            self._watch = Watch()
            for distance in range(1, min(self.size, _MOST_WATCHED + 1)):
                peer = (self.rank + distance) % self.size
                self._watch.add(peer, board.process_of(peer))
            self._life.opened()

    def _join(self, board: Board, peer: int) -> None:
        there, back = board.ring_memory(self.rank, peer), board.ring_memory(peer, self.rank)
        self._outgoing[peer] = Outgoing(there, board.bells[peer])
        self._incoming[peer] = Incoming(back, board.bells[peer], self._arrivals_from(peer))

    def _arrivals_from(self, peer: int) -> Arrive:
        def arrive(kind: int, tag: int, check: int, length: int) -> Arriving | None:
            if kind != _DATA:
                if kind != _OFFER:
                    raise TransportError(f"received a frame of unknown kind {kind}")
                return self._exposures.arriving(length)
            match_queue = self._match_queue
            try:
                if match_queue.takes(peer, tag, check, length, self._options.max_parked_bytes):
                    return match_queue.arrive(peer, tag, check, length)
            except MismatchError as error:
                self.abort(error)
            self._holding = True
            match_queue.hold(peer, tag, check, length)
            return None

        return arrive

    def _fail(self, cause: RondeError) -> None:
        """Release all buffers, and wake all waiting threads."""
        if not self._life.fail(cause):
            return
        for window in self.windows:
            window.stop()
        for incoming in self._incoming.values():
            incoming.forget()
        for outgoing in self._outgoing.values():
            outgoing.forget()
        self._backlog.clear()
        self._match_queue = MatchQueue(self.rank)
        self.driver.interrupt()

    def _release(self) -> None:
        if not self._life.close():
            return
        self.loop.close()
        self._drop()
        self._exposures.close()
        if self._board is not None:
            self._board.leave()
            self._board.release()
            self._board = None

    def _abandon(self) -> None:
        """In a forked child: unmap the memory; the others must not notice."""
        self.loop.abandon()
        self._drop()
        if self._board is not None:
            self._board.release()
            self._board = None

    def _drop(self) -> None:
        """Release all windows, buffers and descriptors."""
        for window in tuple(self.windows):
            window.close()
        self._match_queue = MatchQueue(self.rank)
        self._outgoing.clear()
        self._incoming.clear()
        self._backlog.clear()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
