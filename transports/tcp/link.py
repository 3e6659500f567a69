"""The link to ranks by TCP.

The ranks are joined by lanes, connections that carry data in one direction: the sender connects to the receiver's
listener when it first has a message for it. The first large message opens further connections, which carry its pieces
(`striping`). `open` only publishes the listener's address.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from itertools import count
from typing import Final, TypeVar

from transports.anysource import Taken
from transports.base import MAX_TAG
from transports.channel import compiled_messages
from transports.compiled import LaneFrom, LaneTo
from transports.descriptors import allow_many
from transports.engine import Engine, Flush, Link
from transports.errors import DeadlineExceeded, PeerLost, ReentryError, RondeError
from transports.matching import Receive, Target
from transports.requests import Sending
from transports.tcp import dead_links
from transports.tcp.addresses import exchange, own_address
from transports.tcp.dialing import Dialing, purpose
from transports.tcp.early_arrivals import EarlyArrivals
from transports.tcp.frames import GOODBYE_FRAME, abort_frame, data_header
from transports.tcp.incoming import Incoming
from transports.tcp.lanes import LARGEST, Lane
from transports.tcp.listener import Listener
from transports.tcp.options import Options, connections_to, spin_seconds
from transports.tcp.outgoing import Outgoing
from transports.tcp.reassembly import Reassembly
from transports.tcp.striping import Striping

A = TypeVar("A")

_GRACE: Final = 0.25
"""Seconds between the loss of a connection and the failure: the cause may be arriving on another lane."""
_LOOK_EVERY: Final = 0.15
"""Seconds. Two of these pass before this rank connects to a peer that never connected; with the grace period and the
time in which ranks agree on a cause, the sum must stay below the second within which a lost rank must be named."""
_ANSWER_SECONDS: Final = 2.0
"""Seconds to wait for peers to read what the system has accepted for them: it delivers that by itself, but perhaps not
if the host ends too."""
_MOST_LANES: Final = 8
"""The most lanes that are polled for a frame of any source."""
_ABSENT: Final = 0.1  # seconds to wait for a peer before this rank connects to it


class TcpLink(Link):
    """Frames over TCP. See the module and `transports.engine`.

    It is also the `LaneOwner` of its lanes. They, its listener and its dialing call it with the lock held.
    """

    sockets = True

    def __init__(self, engine: Engine, ranks: Sequence[int], options: Options) -> None:
        """`ranks`: those that the link joins, with this one, ascending."""
        super().__init__(engine, ranks)
        self._options = options
        group, loop = engine.group, engine.loop
        loop.wait_like(spin_seconds(engine.cores, options), 0.0)
        self._listener = Listener(
            self.accepted,
            loop,
            secret=group.secret,
            purpose=purpose(group, engine.rank),
            tls=group.tls,
            options=options,
        )
        self._dialing = Dialing(self.unreachable, loop, group, options)
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._stripings: dict[int, Striping] = {}
        self._reassemblies: dict[int, Reassembly] = {}
        self._spread_from = options.spread_bytes
        self.largest = 0 if group.tls else LARGEST
        if any(connections_to(group, peer, options) for peer in self.peers):  # else no message is spread
            self.largest = min(self.largest, options.spread_bytes - 1)
        self._departed: set[int] = set()
        self._absent: dict[int, float] = {}
        self._early_arrivals = EarlyArrivals()
        self._suspicion: tuple[float, RondeError] | None = None
        self._look_at = 0.0
        self._turns = count()

    @property
    def authenticated(self) -> bool:
        """True if the job has a secret."""
        return bool(self.engine.group.secret)

    @property
    def lanes(self) -> list[Lane]:
        """All connections, those of pieces and those that are being made included."""
        lanes: list[Lane] = [*self._outgoing.values(), *self._incoming.values()]
        for striping in self._stripings.values():
            lanes += striping.stripes
        for reassembly in self._reassemblies.values():
            lanes += reassembly.stripes
        return lanes

    def open(self, deadline: float) -> None:
        allow_many()
        engine = self.engine
        if not self.peers:
            return
        host = own_address(engine.group, self.ranks, self._options.interface)
        with engine.lock:
            address = host, self._listener.open(host)
        self._dialing.addresses = exchange(self.group, self.ranks, address, deadline)

    def send(self, peer: int, tag: int, view: memoryview, check: int, sent: int = 0) -> Sending:
        lane = self._outgoing.get(peer) or self._connect(peer)
        if not sent and len(view) >= self._spread_from and tag <= MAX_TAG:
            sending = Sending(self.engine, peer, tag, len(view))
            self._stripings[peer].push(tag, check, view, sending)
            return sending
        header = data_header(tag, check, len(view))  # news of the engine are there before the next header
        sent = sent or lane.give(header, view)
        if sent == len(header) + len(view):
            return self.engine.sent
        sending = Sending(self.engine, peer, tag, len(view))
        lane.queue(header, view, sending, sent)
        return sending

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None, turn: int
    ) -> Taken | None:
        known, polls = self._incoming, self.engine.loop.glances
        if len(sources) == 1:
            lane = known.get(sources[0])
            lanes = [] if lane is None else [lane]
        else:
            lanes = [known[peer] for peer in sources if peer in known]
            others = len(sources) - (self.engine.rank in sources)
            if not lanes or len(lanes) < others or len(lanes) > _MOST_LANES:
                return None
            start = turn % len(lanes)
            lanes, polls = lanes[start:] + lanes[:start], polls[:: len(lanes)]
        for lane in lanes:
            taken = lane.take(tags, view, check, polls)
            if taken is not None:
                return taken
            if not lane.is_clear or not self.engine.match_queue.is_clear(sources, tags):
                break
        self.engine.driver.interrupt()  # other threads may wait for a frame that arrived
        return None

    def fetch(self, receive: Receive) -> bool:
        lane = self._incoming.get(receive.peer)
        if lane is not None and lane.fetch(receive, self.engine.loop.glances):
            return True
        self.engine.driver.interrupt()  # other threads may wait for a frame that arrived
        return False

    def poke(self, peer: int | None) -> bool:
        if peer is not None:
            lane = self._incoming.get(peer)
            return lane is not None and (lane.pump() or lane.pump_pieces())
        lanes = list(self._incoming.values())
        return bool(lanes) and lanes[next(self._turns) % len(lanes)].pump()

    def tick(self, now: float) -> float:
        self._listener.tick(now)
        if self._suspicion is not None and now >= self._suspicion[0]:
            self.engine.fail(self._suspicion[1])
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._look(now)
        if now >= self._early_arrivals.due:
            self.engine.resume()
        due = min(self._look_at, self._listener.due, self._early_arrivals.due)
        return due if self._suspicion is None or self.engine.failure is not None else min(due, self._suspicion[0])

    def departed(self, peer: int) -> bool:
        return peer in self._departed

    def lost(self, peer: int, *, receiving: bool) -> bool:
        return peer in self._departed and not (receiving and peer in self._incoming)

    def resume(self, peer: int) -> None:
        if peer in self._incoming:
            self._incoming[peer].resume()

    def fail(self, cause: RondeError) -> None:
        frame = abort_frame(cause)
        for lane in self.lanes:
            lane.send_last(frame)
        self._stop()

    def part(self, deadline: float) -> None:
        """A peer is done with this rank once it has read everything, for which it must wait in some call or close; no
        longer than two seconds are spent on that. At the deadline only bytes that the system has not accepted are an
        error: it delivers the rest by itself."""
        engine = self.engine
        with engine.lock:
            for peer, striping in self._stripings.items():
                if self._outgoing[peer].sock is None and not striping.queued_bytes:
                    self._dialing.abandon(peer)  # nothing was sent to the peer, and it may not come to a call
                else:
                    striping.send_goodbye()
            leaving = [lane for lane in self.lanes if isinstance(lane, Outgoing)]
            stripings = list(self._stripings.values())
        answered = Flush(engine, lambda: all(lane.closed for lane in leaving))
        sent = Flush(engine, lambda: all(striping.parted for striping in stripings))
        patience = min(deadline, time.monotonic() + _ANSWER_SECONDS)
        with contextlib.suppress(ReentryError):  # a signal handler closes the transport that its own thread drives
            if not engine.wait(answered, patience):  # releases the lock while it sleeps
                engine.wait(sent, deadline)
        with engine.lock:
            if engine.failure is not None:
                return
            for other in self.lanes:
                if not isinstance(other, Outgoing):
                    other.send_last(GOODBYE_FRAME)
            unsent = {peer: striping.queued_bytes for peer, striping in self._stripings.items()}
        if any(unsent.values()):
            describe = engine.group.describe
            left = ", ".join(f"{unsent[peer]} bytes for {describe(peer)}" for peer in unsent if unsent[peer])
            raise DeadlineExceeded(f"{engine.life} was closed before all was sent: {left}", rank=engine.rank)

    def stop(self) -> None:
        for lane in self.lanes:
            lane.release()
        self._stop()

    def release(self) -> None:
        """Nothing to do: `stop` has released everything."""

    def abandon(self) -> None:
        """The connections stay with the parent."""
        self.stop()

    def progress_to(self, peer: int) -> str:
        queued = self._stripings[peer].queued_bytes if peer in self._stripings else 0
        return "is not connected" if self._dialing.pending(peer) else f"has yet to take {queued} queued bytes"

    def progress_from(self, peer: int) -> str:
        incoming = self._incoming.get(peer)
        return "it has not connected" if incoming is None else incoming.progress()

    def ability(self, kind: type[A]) -> A | None:
        return compiled_messages(self.engine, kind)

    def lane_to(self, peer: int) -> LaneTo | None:
        return self._outgoing.get(peer)

    def lane_from(self, peer: int) -> LaneFrom | None:
        return self._incoming.get(peer)

    # Called by lanes, handshakes and the listener.

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        return self.engine.match_queue.deliver(peer, tag, check, payload)

    def arrive(self, peer: int, tag: int, check: int, length: int) -> Target | None:
        engine = self.engine
        if self._early_arrivals.holds(peer, length, engine.match_queue.awaits(peer, tag)):
            engine.hold(peer, tag, check, length)
            inbound = None
        else:
            inbound = engine.arrive(peer, tag, check, length, self._options.max_parked_bytes)
        if inbound is None:
            engine.loop.hurry(self._early_arrivals.due)
        return inbound

    def abort_received(self, cause: RondeError) -> None:
        self.engine.fail(cause)

    def goodbye_received(self, lane: Lane) -> None:
        listed = self._incoming.get(lane.peer) is lane
        if listed or not self.engine.life.closing:
            self._depart(lane.peer)
        if listed:
            lane.send_last(GOODBYE_FRAME)
        lane.release()
        if listed:  # until now, so that a close releases it after an interrupt
            del self._incoming[lane.peer]

    def connection_lost(self, lane: Lane, error: Exception) -> None:
        if self._incoming.get(lane.peer) is lane:
            del self._incoming[lane.peer]
        rank, group = self.engine.rank, self.engine.group
        text = f"rank {rank} lost {group.describe(lane.peer)}: {error}"
        self.unreachable(lane.peer, PeerLost(text, rank=rank, peer=lane.peer))

    def unreachable(self, peer: int, error: RondeError) -> None:
        """Report, after a grace, that a peer is lost."""
        life = self.engine.life
        if self._suspicion is None and life.failure is None and not life.closing and peer not in self._departed:
            self._suspicion = time.monotonic() + _GRACE, error
            self.engine.loop.hurry(self._suspicion[0])

    def accepted(self, sock: socket.socket, rank: int, connection: int) -> str | None:
        """See transports.tcp.listener.Accepted."""
        engine = self.engine
        if rank not in self.peers:
            return f"it introduced itself as rank {rank}, of {engine.size} ranks, to rank {engine.rank}"
        if rank in self._departed or (rank in self._incoming and not connection):
            return f"it introduced itself as {engine.group.describe(rank)}, which has connected before"
        reassembly = self._reassemblies.get(rank)
        if reassembly is None:
            reassembly = self._reassemblies[rank] = Reassembly(self, engine.loop, rank)
        if connection:
            return reassembly.accepted(sock, connection)
        self._incoming[rank] = Incoming(self, engine.loop, rank, sock, reassembly)
        return None

    # Connecting, failing and closing.

    def _connect(self, peer: int) -> Outgoing:
        loop = self.engine.loop
        lane = self._outgoing[peer] = Outgoing(self, loop, peer)
        connections = connections_to(self.engine.group, peer, self._options)
        self._stripings[peer] = Striping(self, loop, lane, self._dialing.begin, connections)
        if peer in self._departed:
            lane.release()
        else:
            self._dialing.begin(lane, 0)
        return lane

    def _depart(self, peer: int) -> None:
        self._departed.add(peer)
        if self._suspicion is not None and self._suspicion[1].peer == peer:  # explains the lost connection
            self._suspicion = None
        self.engine.loop.alarm = True

    def _stop(self) -> None:
        """Stop making connections, and release all views of buffers."""
        self._dialing.close()
        self._listener.close()
        for reassembly in self._reassemblies.values():
            reassembly.forget()

    def _look(self, now: float) -> None:
        members = self.engine.group.members
        links: list[dead_links.Link] = [*self.lanes, *self._dialing.dials]
        dead_links.fail_dead_links(links, lambda peer: members[peer].host, self._options.peer_timeout, now)
        if not self.engine.life.closing:
            self._seek(now)

    def _seek(self, now: float) -> None:
        """Connect to awaited peers that do not connect: this is the only way to detect that one is unreachable."""
        engine = self.engine
        known = {engine.rank, *self._incoming, *self._outgoing, *self._departed}
        awaited = set(engine.match_queue.waiting_for())
        for sources in engine.match_queue.any_sources:
            left = [peer for peer in sources if peer != engine.rank and not engine.departed(peer)]
            if len(left) == 1:
                awaited.update(left)
        seek = [peer for peer in sorted(awaited - known) if engine.link_to(peer) is self]
        self._absent = {peer: self._absent.get(peer, now) for peer in seek}
        for peer, since in self._absent.items():
            if now - since >= _ABSENT:
                self._connect(peer)
