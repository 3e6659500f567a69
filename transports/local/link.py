"""The link between threads of one process: `hub` is the state that all of them share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from transports.base import Request
from transports.engine import Assembly, Engine, Flush, Link
from transports.errors import DeadlineExceeded, ReentryError, RondeError, from_wire, to_wire
from transports.local.exposing import Exposures
from transports.local.hub import Hub, meet
from transports.local.options import Options
from transports.local.seat import LocalSending, Seat
from transports.locks import let_go
from transports.requests import Sending

A = TypeVar("A")


class LocalLink(Link):
    """Frames between threads. See the module and `transports.engine`."""

    def __init__(self, engine: Engine, ranks: Sequence[int], options: Options) -> None:
        """`ranks`: those that the link joins, with this one, ascending."""
        super().__init__(engine, ranks)
        self.hub = Hub()  # until `open` finds that of the group
        self._eager_bytes = options.eager_bytes
        self.seat = Seat(engine)
        self._exposures = Exposures(engine, self.hub, self.seat, self.ranks)

    @property
    def authenticated(self) -> bool:
        """True: the bytes never leave the process."""
        return True

    def open(self, deadline: float) -> None:
        engine, group = self.engine, self.engine.group
        hub = meet(self.group.store, engine.rank, deadline)
        with engine.lock:
            self.hub = self._exposures.hub = hub
            engine.loop.use(self.seat.bell)
            hub.seats[engine.rank] = self.seat
            if engine.failure is not None:  # an abort has come before the hub was found
                hub.first_cause(engine.failure)
            hub.ring()
        if not engine.wait(Assembly(engine, self._assembled), deadline):
            missing = ", ".join(group.describe(rank) for rank in self.ranks if rank not in hub.seats)
            raise DeadlineExceeded(f"{missing} did not open the transport in time", rank=engine.rank)

    def send(self, peer: int, tag: int, view: memoryview, check: int, sent: int = 0) -> Sending:
        """See Link. A peer whose lock is free gets the frame at once: then neither thread waits for the other."""
        return self._send(peer, tag, view, check, self._eager_bytes)

    def ssend(self, peer: int, tag: int, view: memoryview, check: int) -> Request:
        """See Link. A frame that lends its payload is given back once it is matched."""
        return self._send(peer, tag, view, check, 0)

    def _send(self, peer: int, tag: int, view: memoryview, check: int, eager_bytes: int) -> Sending:
        here, there = self.seat, self.hub.seats[peer]
        if there.left:
            return LocalSending(here, peer, tag, view, check)  # a wait for it raises
        engine = there.engine
        if not engine.lock.acquire(blocking=False):
            sending = self._frame(peer, tag, view, check, eager_bytes)
            there.inbox.append(sending)
            there.bell.ring()
            return sending
        try:
            if there.inbox:
                engine.sweep()
            queue = engine.match_queue
            if queue.deliver(here.rank, tag, check, view):
                engine.driver.interrupt()
                return self.engine.sent
            sending = self._frame(peer, tag, view, check, eager_bytes)
            queue.arrive(here.rank, tag, check, len(view), sending).finish()
            if sending.view is None or queue.searched:
                engine.driver.interrupt()
        except BaseException as error:
            engine.crashed(error, self.engine)
            raise
        finally:
            engine.lock.release()
        return sending

    def _frame(self, peer: int, tag: int, view: memoryview, check: int, eager_bytes: int) -> LocalSending:
        """A frame for the peer to take: with a copy of a payload of at most `eager_bytes`, if these are buffered."""
        if len(view) <= eager_bytes > 0:
            return LocalSending(self.seat, peer, tag, memoryview(bytes(view)), check, done=True)
        sending = LocalSending(self.seat, peer, tag, view, check)
        self.seat.lent.add(sending)
        return sending

    def sweep(self, but: Collection[object] = ()) -> bool:
        inbox = self.seat.inbox
        if not inbox:
            return False
        arrive = self.engine.match_queue.arrive
        while inbox:
            frame = inbox.popleft()
            arrive(frame.lender.rank, frame.tag, frame.check, frame.nbytes, frame).finish()
        return True

    def learn(self) -> RondeError | None:
        cause = self.hub.cause
        return None if cause is None else from_wire(to_wire(cause))

    def departed(self, peer: int) -> bool:
        seat = self.hub.seats.get(peer)
        return seat is not None and seat.left

    def lost(self, peer: int, *, receiving: bool) -> bool:
        seat = self.hub.seats.get(peer)
        return seat is not None and seat.left and not (receiving and self.seat.inbox)

    def first_cause(self, cause: RondeError) -> RondeError:
        first = self.hub.first_cause(cause)
        return cause if first is cause else from_wire(to_wire(first))

    def fail(self, cause: RondeError) -> None:
        self.seat.take_back(copied=False)
        self.hub.ring()

    def part(self, deadline: float) -> None:
        """Wait until all frames are received. Those for a peer that has closed are dropped."""
        try:
            done = self.engine.wait(Flush(self.engine, self._flushed), deadline)
        except ReentryError:  # a signal handler closes the transport that its own thread drives
            done = False
        if not done:
            waiting = ", ".join(self.engine.group.describe(peer) for peer in self._receivers())
            raise DeadlineExceeded(f"frames sent to {waiting} were not received in time", rank=self.engine.rank)

    def stop(self) -> None:
        """Nothing to do: peers see it by `left`, once everything is released."""

    def release(self) -> None:
        """The caller gets its buffers back; the peers can still receive what was in them."""
        seat, rank = self.seat, self.engine.rank
        self._exposures.close_windows()
        seat.take_back(copied=True)
        seat.left = True
        seat.inbox.clear()
        for other in tuple(self.hub.seats.values()):
            other.forget(rank)
        self.hub.ring()

    def abandon(self) -> None:
        """Threads share nothing that the child of a process inherits open."""

    def interrupted(self) -> None:
        for seat in tuple(self.hub.seats.values()):
            let_go(seat.lock)
            let_go(seat.engine.lock)

    def progress_to(self, peer: int) -> str:
        frames = sum(frame.peer == peer for frame in tuple(self.seat.lent))
        return f"has yet to receive {frames} frames"

    def progress_from(self, peer: int) -> str:
        return "nothing is arriving from it"

    def ability(self, kind: type[A]) -> A | None:
        return self._exposures if isinstance(self._exposures, kind) else None

    # For the waits of opening and closing.

    def _assembled(self) -> bool:
        """True once all ranks have opened. Every rank that joins rings the doorbells."""
        return len(self.hub.seats) == len(self.ranks)

    def _receivers(self) -> list[int]:
        """The peers that have yet to receive a frame of this rank."""
        return sorted({frame.peer for frame in tuple(self.seat.lent) if not self.departed(frame.peer)})

    def _flushed(self) -> bool:
        """True once all frames are received. The receivers of the others are to wake this rank."""
        for frame in tuple(self.seat.lent):
            frame.request_wakeup()
        return not self._receivers()
