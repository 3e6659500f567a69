"""The link to the ranks of this host: `board` is the memory that all of them map, `ring` carries frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeVar

from transports.anysource import Taken
from transports.channel import compiled_messages
from transports.compiled import LaneFrom, LaneTo
from transports.engine import Assembly, Engine, Flush, Link
from transports.errors import (
    AbortedError,
    ConnectError,
    DeadlineExceeded,
    PeerLost,
    ReentryError,
    RondeError,
    TransportError,
)
from transports.liveness import Identity, Watch
from transports.loop import READ
from transports.matching import Target
from transports.requests import Sending
from transports.shm.board import CLOSED, Board
from transports.shm.doorbell import HAS_DESCRIPTOR, Doorbell
from transports.shm.exposing import Exposures
from transports.shm.fence import barrier, unclaimed
from transports.shm.options import AUTOMATIC_SPIN, Options
from transports.shm.ring import MESSAGE, Arrive, Incoming, Outgoing

A = TypeVar("A")

_SPIN: Final = 40e-6
_YIELDS_FOR: Final = 100e-6
_LOOK_EVERY: Final = 30e-3
"""Seconds; the longest sleep of a wait is as long, since a look wakes the process."""
_MOST_WATCHED: Final = 64
"""Number of peers whose processes a rank watches: the next ones, so that each process is watched by some rank."""
_OFFER: Final = 1
_POLLS: Final = range(500)
"""Some 25 us: see Loop.glances."""
_ONCE: Final = range(1)
_MOST_RINGS: Final = 16
"""The most rings that are looked at for a frame of any source."""


class ShmLink(Link):
    """Frames between the ranks of one host. See the module and `transports.engine`.

    On the board the ranks have places: their positions among the ranks of the host.
    """

    def __init__(self, engine: Engine, ranks: Sequence[int], options: Options) -> None:
        """`ranks`: those that the link joins, with this one, ascending."""
        super().__init__(engine, ranks)
        self._place = {rank: place for place, rank in enumerate(self.ranks)}
        self._options = options
        spin = _SPIN if engine.cores.suffice else 0.0
        if options.spin_us != AUTOMATIC_SPIN:
            spin = options.spin_us * 1e-6
        engine.loop.wait_like(spin, _YIELDS_FOR)
        self._bells: dict[int, Doorbell] = {}
        self.exposures = Exposures(
            engine,
            self.ranks,
            options.directory,
            send=self.offer,
            bells_of=self.bells_of,
            ends_of=self.ends_of,
            spins=spin > 0,
        )
        self._board: Board | None = None
        self._watch: Watch | None = None
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._backlog: set[int] = set()
        self._look_at = 0.0

    @property
    def authenticated(self) -> bool:
        """True: only processes of this user can map the memory, and its random name comes from the group's store."""
        return True

    def shortage(self) -> str | None:
        """No room for the rings, which the first rank makes."""
        if self.engine.rank != self.ranks[0]:
            return None
        return Board.shortage(len(self.ranks), self._options.ring_bytes, self._options.directory)

    def open(self, deadline: float) -> None:
        engine = self.engine
        group = engine.group
        host = group.members[engine.rank].host
        far = [group.describe(rank) for rank in self.ranks if group.members[rank].host != host]
        if (reason := unclaimed()) is not None:
            raise ConnectError(f"transport 'shm' cannot be used: {reason}; use 'tcp' or 'auto'", rank=engine.rank)
        if far:
            text = f"rank {engine.rank} cannot share memory with {', '.join(far)}: not on its host"
            raise ConnectError(text, rank=engine.rank)
        options = self._options
        board = Board.create_or_attach(self.group, self.ranks, options.ring_bytes, options.directory, deadline)
        try:
            with engine.lock:
                self._board = board
                for peer in self.peers:
                    self._join(board, peer)
                self._bells = dict(zip(self.ranks, board.bells, strict=True))
                engine.loop.use(self._bells[engine.rank])  # no local name: the traceback of an error would keep it
                if engine.loop.selects and HAS_DESCRIPTOR:
                    engine.loop.watch(self._bells[engine.rank], READ)
                board.enter(Identity.own())
            if not engine.wait(Assembly(engine, self._assembled), deadline):
                absent = ", ".join(map(group.describe, board.missing()))
                raise DeadlineExceeded(f"{absent} did not open the transport in time", rank=engine.rank)
        except BaseException:
            board.segment.unlink()
            raise
        board.segment.unlink()
        with engine.lock:
            engine.check_sound()
            self._watch = Watch()
            here = self._place[engine.rank]
            for distance in range(1, min(len(self.ranks), _MOST_WATCHED + 1)):
                place = (here + distance) % len(self.ranks)
                self._watch.add(self.ranks[place], board.process_of(place))

    def _join(self, board: Board, peer: int) -> None:
        here, there = self._place[self.engine.rank], self._place[peer]
        bell = board.bells[there]
        outgoing = self._outgoing[peer] = Outgoing(board.ring_memory(here, there), bell)
        self._incoming[peer] = Incoming(
            peer, board.ring_memory(there, here), bell, board.bells[here], self._arrivals_from(peer)
        )
        self.largest = outgoing.piece

    def _arrivals_from(self, peer: int) -> Arrive:
        def arrive(kind: int, tag: int, check: int, length: int) -> Target | None:
            if kind == MESSAGE:
                return self.engine.arrive(peer, tag, check, length, self._options.max_parked_bytes)
            if kind == _OFFER:
                return self.exposures.arriving(length)
            raise TransportError(f"received a frame of unknown kind {kind}")

        return arrive

    def send(self, peer: int, tag: int, view: memoryview, check: int, sent: int = 0) -> Sending:
        """See Link. Compiled code sends whole frames."""
        outgoing = self._outgoing[peer]
        if outgoing.send(MESSAGE, tag, check, view):
            return self.engine.sent
        sending = Sending(self.engine, peer, tag, len(view))
        outgoing.queue(MESSAGE, tag, check, view, sending)
        if not sending.done:
            self._backlog.add(peer)
        return sending

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None, turn: int
    ) -> Taken | None:
        if self._backlog:
            return None
        polls = _POLLS if self.engine.loop.polls else _ONCE
        incoming = self._incoming.get(sources[0])
        if len(sources) > 1:
            incoming, polls = self._first_to_come(sources, polls, turn), _ONCE
        return None if incoming is None else incoming.take(tags, view, check, polls)

    def _first_to_come(self, sources: tuple[int, ...], polls: range, turn: int) -> Incoming | None:
        """The ring of one of some peers that has a frame, or has one soon; each time another one is looked at first, so
        that none waits for others that send more. None without a frame, or if not all of them are on this host."""
        known = self._incoming
        rings = [known[peer] for peer in sources if peer in known]
        others = len(sources) - (self.engine.rank in sources)
        if len(rings) < others or len(rings) > _MOST_RINGS:
            return None
        start = turn % len(rings)
        rings = rings[start:] + rings[:start]
        for _ in polls[:: len(rings)]:
            for ring in rings:
                if not ring.empty:
                    return ring
        return None

    def offer(self, peer: int, payload: bytes) -> None:
        """Send a control frame of the link."""
        with self.engine.lock:
            self.engine.check_sound()
            outgoing, view = self._outgoing[peer], memoryview(payload)
            if not outgoing.send(_OFFER, 0, 0, view):
                outgoing.queue(_OFFER, 0, 0, view, Sending(self.engine, peer, 0, len(view)))
                self._backlog.add(peer)

    def bells_of(self, ranks: Sequence[int]) -> list[Doorbell]:
        """The doorbells of ranks."""
        return [self._bells[rank] for rank in ranks]

    def ends_of(self, ranks: Sequence[int]) -> list[memoryview]:
        """See Board.ends."""
        assert self._board is not None
        return self._board.ends([self._place[rank] for rank in ranks])

    def sweep(self, but: Collection[object] = ()) -> bool:
        moved = False
        peer = self.engine.rank
        try:
            held = self.engine.match_queue.held
            for peer in dict.fromkeys([*held, *self._incoming]) if held else self._incoming:
                incoming = self._incoming.get(peer)  # None: a held frame of another link
                if incoming is not None and not incoming.empty and incoming not in but and incoming.drain():
                    moved = True
        except TransportError as error:
            engine = self.engine
            text = f"rank {engine.rank} lost {engine.group.describe(peer)}, which wrote invalid data: {error}"
            engine.fail(PeerLost(text, rank=engine.rank, peer=peer))
            return True
        if self._backlog:
            for peer in tuple(self._backlog):
                outgoing = self._outgoing[peer]
                if outgoing.push():
                    moved = True
                if not outgoing.queued:
                    self._backlog.discard(peer)
        return moved

    def tick(self, now: float) -> float:
        if now < self._look_at:
            return self._look_at
        self._look_at = now + _LOOK_EVERY
        board, watch, engine = self._board, self._watch, self.engine
        if engine.failure is None and board is not None and watch is not None:
            for peer in watch.dead():
                if not self.departed(peer):
                    lost = f"rank {engine.rank} lost {engine.group.describe(peer)}"
                    engine.fail(PeerLost(f"{lost}: its process ended without closing", rank=engine.rank, peer=peer))
        return self._look_at

    def learn(self) -> RondeError | None:
        board = self._board
        if board is None or not board.aborted:
            return None
        return board.cause() or AbortedError("a rank has aborted")

    def departed(self, peer: int) -> bool:
        return self._board is not None and self._board.state(self._place[peer]) == CLOSED

    def lost(self, peer: int, *, receiving: bool) -> bool:
        if not self.departed(peer):
            return False
        barrier()
        return peer not in self._incoming or self._incoming[peer].empty

    def first_cause(self, cause: RondeError) -> RondeError:
        board = self._board
        if board is None:
            return cause
        published = board.cause()
        if published is None:
            board.publish_cause(cause)
        return published or cause

    def fail(self, cause: RondeError) -> None:
        self.exposures.stop()
        for incoming in self._incoming.values():
            incoming.forget()
        for outgoing in self._outgoing.values():
            outgoing.forget()
        self._backlog.clear()

    def part(self, deadline: float) -> None:
        """A frame counts as sent once it is in a ring: the ring's memory stays while a peer maps it. Frames for a peer
        that has closed are dropped."""
        try:
            done = self.engine.wait(Flush(self.engine, self._flushed), deadline)
        except ReentryError:  # a signal handler closes the transport that its own thread drives
            done = False
        if not done:
            absent = ", ".join(map(self.engine.group.describe, sorted(self._backlog)))
            text = f"{self.engine.life} was closed before {absent} had taken all frames"
            raise DeadlineExceeded(text, rank=self.engine.rank)

    def stop(self) -> None:
        """Nothing to do: peers see it by the state on the board, once everything is released."""

    def release(self) -> None:
        self._drop()
        self.exposures.close()
        board, self._board = self._board, None
        if board is not None:
            board.leave()
            board.release()

    def abandon(self) -> None:
        self._drop()
        board, self._board = self._board, None
        if board is not None:
            board.release()

    def interrupted(self) -> None:
        if self._board is not None:
            self._board.interrupted()

    def _drop(self) -> None:
        """Release all windows, buffers and descriptors."""
        self.exposures.close_windows()
        self._outgoing.clear()
        self._incoming.clear()
        self._backlog.clear()
        self._bells.clear()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def progress_to(self, peer: int) -> str:
        outgoing = self._outgoing.get(peer)
        return f"has yet to take {0 if outgoing is None else outgoing.queued_bytes} queued bytes"

    def progress_from(self, peer: int) -> str:
        incoming = self._incoming.get(peer)
        return "nothing is arriving from it" if incoming is None else incoming.progress()

    def ability(self, kind: type[A]) -> A | None:
        return self.exposures if isinstance(self.exposures, kind) else compiled_messages(self.engine, kind)

    def lane_to(self, peer: int) -> LaneTo | None:
        return self._outgoing.get(peer)

    def lane_from(self, peer: int) -> LaneFrom | None:
        return self._incoming.get(peer)

    def wake(self, peer: int) -> None:
        self._bells[peer].ring()

    # For the waits of opening and closing.

    def _assembled(self) -> bool:
        """True once all ranks have opened. Every rank that attaches rings the doorbells."""
        return self._board is None or not self._board.missing()

    def _flushed(self) -> bool:
        """True if no frames are queued. Those for peers that have closed are dropped; a full ring asks for a wakeup."""
        for peer in tuple(self._backlog):
            if self.departed(peer):
                self._outgoing[peer].forget()
                self._backlog.discard(peer)
        return not self._backlog
