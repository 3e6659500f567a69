"""The TCP transport.

The ranks of a group are joined by lanes, connections that carry data in one direction: the sender connects to the
receiver's listener when it first has a message for it. The first large message opens further connections, which carry
its pieces (`striping`). `open` only publishes the listener's address. There is no thread of its own: a waiting thread
moves the bytes, by the rule of locking in `transports.driver`.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from transports.anysource import AnyRequest, AnySource, Arrival, Claim, check_any
from transports.base import Group, Request, Transport, check_arguments, check_view
from transports.cores import Cores
from transports.descriptors import allow_many
from transports.errors import DeadlineExceeded, MismatchError, PeerLost, ReentryError, RondeError
from transports.lifecycle import Lifecycle
from transports.locks import unlocked
from transports.matching import AnyReceive, InboundMessage, MatchQueue
from transports.pollable import Pollable
from transports.tcp import dead_links
from transports.tcp.addresses import exchange, own_address
from transports.tcp.at_once import AtOnce
from transports.tcp.dialing import Dialing, purpose
from transports.tcp.direct import DirectMessages
from transports.tcp.early_arrivals import EarlyArrivals
from transports.tcp.frames import GOODBYE_FRAME, abort_frame, data_header
from transports.tcp.lanes import Incoming, Lane
from transports.tcp.listener import Listener
from transports.tcp.loop import CAN_BE_POLLED, Loop
from transports.tcp.options import Options, connections_to, spin_seconds
from transports.tcp.outgoing import Outgoing
from transports.tcp.reassembly import Reassembly
from transports.tcp.requests import AnyOf, GoodbyesAnswered, GoodbyesSent, Probe, Receiving, ReceivingAny, Send
from transports.tcp.striping import Striping

A = TypeVar("A")
T = TypeVar("T")

_GRACE: Final = 0.25
"""Seconds between the loss of a connection and the failure: the cause may be arriving on another lane."""
_LOOK_EVERY: Final = 0.15
"""Seconds. Two of these pass before this rank connects to a peer that never connected; with the grace period and the
time in which ranks agree on a cause, the sum must stay below the second within which a lost rank must be named."""
_ANSWER_SECONDS: Final = 2.0
"""Seconds to wait for peers to read what the system has accepted for them: it delivers that by itself, but perhaps not
if the host ends too."""
_ABSENT: Final = 0.1  # seconds to wait for a peer before this rank connects to it


class TcpTransport(Transport, AnySource, Pollable):
    """Bytes between ranks over TCP. See the module and `transports.base.Transport`.

    It is also the `Host` of its lanes, the `Seeker` of new ones and the `AcceptedOwner` of its listener: these call it
    with the lock held.
    """

    name = "tcp"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        super().__init__(group)
        self._options = options or Options()
        self.cores = Cores(group, self._options.affinity)
        self._loop = Loop(spin_seconds(self.cores, self._options), self.cores, self._tick, self.crashed)
        self._driver = self._loop.driver
        self._lock = self._driver.lock
        self._match_queue = MatchQueue(self.rank)
        self._listener = Listener(
            self,
            self._loop,
            secret=group.secret,
            purpose=purpose(group, self.rank),
            tls=group.tls,
            options=self._options,
        )
        self._dialing = Dialing(self, self._loop, group, self._options)
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._stripings: dict[int, Striping] = {}
        self._reassemblies: dict[int, Reassembly] = {}
        self._spread_from = self._options.spread_bytes
        self._at_once = AtOnce(
            self,
            self._loop,
            self._match_queue,
            self._incoming,
            self._outgoing,
            Send(self, self.rank, 0, 0),
            self._spread_from,
        )
        self._direct = DirectMessages(self, self._loop, self._match_queue, self._incoming, self._outgoing)
        self._departed: set[int] = set()
        self._absent: dict[int, float] = {}
        self._early_arrivals = EarlyArrivals()
        self._suspicion: tuple[float, RondeError] | None = None
        self._look_at = 0.0
        self._holding = False
        self._life = Lifecycle(group, "TCP transport", self._lock, self._abandon)

    @property
    def authenticated(self) -> bool:
        """True if the job has a secret."""
        return bool(self.group.secret)

    @property
    def failure(self) -> RondeError | None:
        return self._life.failure

    def open(self, deadline: float) -> None:
        with self._lock:
            self._life.begin_open()
        allow_many()
        try:
            self._open(deadline)
        except BaseException:
            with self._lock:
                self._release()
            raise

    def _open(self, deadline: float) -> None:
        with self._lock:
            self._loop.open()
            if self.size > 1:
                host = own_address(self.group, self._options.interface)
                address = host, self._listener.open(host)
        if self.size > 1:
            self._dialing.addresses = exchange(self.group, address, deadline)
        with self._lock:
            self._life.opened()

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=False)
        send = Send(self, peer, tag, len(view))
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            if peer == self.rank:
                inbound = self._match_queue.arrive(peer, tag, check, len(view))
                inbound.view[:] = view
                inbound.finish()
                send.done = True
                self._driver.interrupt()
                return send
            lane = self._outgoing.get(peer) or self._connect(peer)
            try:
                if len(view) < self._spread_from:
                    lane.push(data_header(tag, check, len(view)), view, send)
                else:
                    self._stripings[peer].push(tag, check, view, send)
            except BaseException as error:
                self.crashed(error)
                raise
        return send

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        request = Receiving(self, peer, tag, view, check)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            self._match_queue.add(request)
            if self._holding:
                self._resume()
        return request

    def irecv_any(
        self,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None = None,
        claim: Claim | None = None,
    ) -> AnyRequest:
        check_any(self, sources, tags, view, check)
        request = ReceivingAny(self, sources, tags, view, check, claim)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            self._match_queue.add_any(request.receive)
            if self._holding:
                self._resume()
        return request

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        check_any(self, sources, tags, None, None)
        probe = Probe(self, sources, tags)
        with self._lock:
            if self._life.refusal is not None:
                raise self._life.refused()
            if not probe.done:
                self._loop.glance(probe)
        if probe.arrival is None and deadline > time.monotonic():
            self._driver.wait(probe, deadline)
        if probe.arrival is None:
            with self._lock:
                self._life.check()
        return probe.arrival

    def since(self, sources: frozenset[int], tags: range) -> float:
        with self._lock:
            return self._match_queue.since(sources, tags)

    def reachable(self, sources: frozenset[int]) -> bool:
        with self._lock:
            alone = True
            for peer in sources:
                if peer != self.rank:
                    if peer not in self._departed or peer in self._incoming:
                        return True
                    alone = False
            return alone

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int = 0) -> None:
        check_arguments(self, peer, tag, check)
        check_view(view, writable=True)
        self._at_once.recv(peer, tag, view, deadline, check)

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int = 0
    ) -> Request:
        check_arguments(self, dest, tag, check)
        check_view(data, writable=False)
        check_view(view, writable=True)
        return self._at_once.sendrecv(dest, source, tag, data, view, deadline, check)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        awaited = AnyOf(requests)
        return awaited.ended if self._driver.wait(awaited, deadline) else []

    def abort(self, cause: RondeError) -> None:
        with self._lock:
            self._fail(cause)

    @property
    def entered(self) -> bool:
        return self._driver.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        return unlocked(self._lock, function)

    def interrupted(self) -> None:
        self._driver.interrupted()

    def close(self, deadline: float) -> None:
        """See Transport. A peer is done with this rank once it has read everything, for which it must wait in some call
        or close; no longer than two seconds are spent on that. At the deadline only bytes that the system has not
        accepted are an error: it delivers the rest by itself."""
        with self._lock:
            parts = self._life.refusal is None
            if not self._life.begin_close():
                return
            self._loop.alarm = True
        try:
            if parts:
                self._part(deadline)
        finally:
            with self._lock:
                self._release()

    def ability(self, kind: type[A]) -> A | None:
        if isinstance(self._direct, kind):
            waits = self._loop.polls or self._loop.yields
            suits = sys.platform == "linux" and self.group.tls is None and waits
            return self._direct if suits else None
        return None if issubclass(kind, Pollable) and not CAN_BE_POLLED else super().ability(kind)

    @property
    def descriptor(self) -> int:
        return self._loop.fileno()

    def prepare(self) -> float:
        with self._lock:
            self._life.check()
            until = self._loop.prepare()
            self._life.check()
            return until

    def finish(self) -> None:
        with self._lock:
            self._loop.finish()

    # For requests and direct receives.

    def sending(self, peer: int, tag: int, nbytes: int) -> Send:
        return Send(self, peer, tag, nbytes)

    def wait(self, request: Send | Receiving | ReceivingAny, deadline: float) -> None:
        """Wait for a request of this transport."""
        if not self._driver.wait(request, deadline):
            peer = None if isinstance(request, ReceivingAny) else request.peer
            raise DeadlineExceeded(self._overdue(request), rank=self.rank, peer=peer)

    def test(self, request: Send | Receiving | ReceivingAny) -> bool:
        """Make progress on a request of this transport without waiting."""
        with self._lock:
            if not request.done:
                request.check_possible()
                self._loop.glance(request)
                if not request.done:
                    request.check_possible()
            return request.done

    def lane_to(self, peer: int) -> Outgoing | None:
        """The lane to a peer, if there is one."""
        return self._outgoing.get(peer)

    def lane_from(self, peer: int) -> Incoming | None:
        """The lane from a peer, if there is one."""
        return self._incoming.get(peer)

    def check_peer(self, peer: int, *, receiving: bool) -> None:
        """Raises if a request that involves `peer` cannot be completed. The raised error becomes the transport's first
        failure if there was none."""
        self._life.check()
        if peer in self._departed and not (receiving and peer in self._incoming):
            self._fail(self._life.left(peer))
            self._life.check()

    def check_sources(self, sources: frozenset[int]) -> None:
        """Raises if a receive from any of `sources` cannot be completed. The raised error becomes the transport's first
        failure if there was none."""
        self._life.check()
        if not self.reachable(sources):
            self._fail(self._life.all_left(sources))
            self._life.check()

    def withdraw(self, receive: AnyReceive) -> bool:
        """Take a receive from any source back; False if it has matched a frame."""
        with self._lock:
            return self._match_queue.withdraw(receive)

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        """The envelope of the frame that a receive from any of `sources` would take now."""
        return self._match_queue.oldest(sources, tags)

    @property
    def lanes_from(self) -> list[Incoming]:
        """The lanes from all peers."""
        return list(self._incoming.values())

    # Called by lanes, handshakes and the listener.

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        return self._match_queue.deliver(peer, tag, check, payload)

    def arrive(self, peer: int, tag: int, check: int, length: int) -> InboundMessage | None:
        match_queue = self._match_queue
        try:
            held = self._early_arrivals.holds(peer, length, match_queue.awaits(peer, tag))
            if not held and match_queue.takes(peer, tag, check, length, self._options.max_parked_bytes):
                return match_queue.arrive(peer, tag, check, length)
        except MismatchError as error:
            self._fail(error)
        self._holding = True
        match_queue.hold(peer, tag, check, length)
        self._loop.hurry(self._early_arrivals.due)
        return None

    def abort_received(self, cause: RondeError) -> None:
        self._fail(cause)

    def goodbye_received(self, lane: Lane) -> None:
        if self._incoming.get(lane.peer) is lane:
            del self._incoming[lane.peer]
            self._depart(lane.peer)
            lane.send_last(GOODBYE_FRAME)
        elif not self._life.closing:
            self._depart(lane.peer)
        lane.release()

    def connection_lost(self, lane: Lane, error: Exception) -> None:
        if self._incoming.get(lane.peer) is lane:
            del self._incoming[lane.peer]
        text = f"rank {self.rank} lost {self.group.describe(lane.peer)}: {error}"
        self.unreachable(lane.peer, PeerLost(text, rank=self.rank, peer=lane.peer))

    def unreachable(self, peer: int, error: RondeError) -> None:
        life = self._life
        if self._suspicion is None and life.failure is None and not life.closing and peer not in self._departed:
            self._suspicion = time.monotonic() + _GRACE, error
            self._loop.hurry(self._suspicion[0])

    def accepted(self, sock: socket.socket, rank: int, connection: int) -> str | None:
        if not 0 <= rank < self.size or rank == self.rank:
            return f"it introduced itself as rank {rank}, of {self.size} ranks, to rank {self.rank}"
        if rank in self._departed or (rank in self._incoming and not connection):
            return f"it introduced itself as {self.group.describe(rank)}, which has connected before"
        reassembly = self._reassemblies.get(rank)
        if reassembly is None:
            reassembly = self._reassemblies[rank] = Reassembly(self, self._loop, rank)
        if connection:
            return reassembly.accepted(sock, connection)
        self._incoming[rank] = Incoming(self, self._loop, rank, sock, reassembly)
        return None

    # Connecting, failing and closing.

    def _connect(self, peer: int) -> Outgoing:
        lane = self._outgoing[peer] = Outgoing(self, self._loop, peer)
        connections = connections_to(self.group, peer, self._options)
        self._stripings[peer] = Striping(self, self._loop, lane, self._dialing.begin, connections)
        if peer in self._departed:
            lane.release()
        else:
            self._dialing.begin(lane, 0)
        return lane

    def _resume(self) -> None:
        self._holding = False
        for peer in list(self._match_queue.held):
            if peer in self._incoming:
                self._incoming[peer].resume()
        self._driver.interrupt()

    def _depart(self, peer: int) -> None:
        self._departed.add(peer)
        if self._suspicion is not None and self._suspicion[1].peer == peer:  # explains the lost connection
            self._suspicion = None
        self._loop.alarm = True

    def crashed(self, error: BaseException) -> None:
        """Abort, since an exception has escaped while bytes were moved, and streams may be corrupt."""
        self._fail(self._life.cause(error, "was interrupted while it moved bytes"))

    def _fail(self, cause: RondeError) -> None:
        if not self._life.fail(cause):
            return
        self._loop.alarm = True
        frame = abort_frame(cause)
        for lane in self._lanes():
            lane.send_last(frame)
        self._stop()

    def _lanes(self) -> list[Lane]:
        lanes: list[Lane] = [*self._outgoing.values(), *self._incoming.values()]
        for striping in self._stripings.values():
            lanes += striping.stripes
        for reassembly in self._reassemblies.values():
            lanes += reassembly.stripes
        return lanes

    def _stop(self) -> None:
        """Stop making connections, and release all views of buffers."""
        self._dialing.close()
        self._listener.close()
        for reassembly in self._reassemblies.values():
            reassembly.forget()
        self._match_queue.clear()
        self._driver.interrupt()

    def _part(self, deadline: float) -> None:
        with self._lock:
            for peer, striping in self._stripings.items():
                if self._outgoing[peer].sock is None and not striping.queued_bytes:
                    self._dialing.abandon(peer)  # nothing was sent to the peer, and it may not come to a call
                else:
                    striping.send_goodbye()
            leaving = [lane for lane in self._lanes() if isinstance(lane, Outgoing)]
        patience = min(deadline, time.monotonic() + _ANSWER_SECONDS)
        with contextlib.suppress(ReentryError):  # a signal handler closes the transport that its own thread drives
            if not self._driver.wait(GoodbyesAnswered(self, leaving), patience):  # releases the lock while it sleeps
                self._driver.wait(GoodbyesSent(self, list(self._stripings.values())), deadline)
        with self._lock:
            if self._life.failure is not None:
                return
            for other in self._lanes():
                if not isinstance(other, Outgoing):
                    other.send_last(GOODBYE_FRAME)
            unsent = {peer: striping.queued_bytes for peer, striping in self._stripings.items()}
        if any(unsent.values()):
            left = ", ".join(f"{unsent[peer]} bytes for {self.group.describe(peer)}" for peer in unsent if unsent[peer])
            raise DeadlineExceeded(f"{self._life} was closed before all was sent: {left}", rank=self.rank)

    def _release(self) -> None:
        self._life.close()
        self._loop.alarm = True
        for lane in self._lanes():
            lane.release()
        self._stop()
        self._loop.close()

    def _abandon(self) -> None:
        """In a forked child: close the descriptors, whose connections stay with the parent."""
        self._loop.abandon()
        for lane in self._lanes():
            lane.release()
        self._stop()

    def _tick(self, now: float) -> float:
        self._listener.tick(now)
        if self._suspicion is not None and now >= self._suspicion[0]:
            self._fail(self._suspicion[1])
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._look(now)
        if now >= self._early_arrivals.due:
            self._resume()
        due = min(self._look_at, self._listener.due, self._early_arrivals.due)
        return due if self._suspicion is None or self._life.failure is not None else min(due, self._suspicion[0])

    def _look(self, now: float) -> None:
        members = self.group.members
        links: list[dead_links.Link] = [*self._lanes(), *self._dialing.dials]
        dead_links.fail_dead_links(links, lambda peer: members[peer].host, self._options.peer_timeout, now)
        if not self._life.closing:
            self._seek(now)

    def _seek(self, now: float) -> None:
        """Connect to awaited peers that do not connect: this is the only way to detect that one is unreachable."""
        known = {self.rank, *self._incoming, *self._outgoing, *self._departed}
        awaited = set(self._match_queue.waiting_for())
        for sources in self._match_queue.any_sources:
            left = sources - self._departed - {self.rank}
            if len(left) == 1:
                awaited |= left
        self._absent = {peer: self._absent.get(peer, now) for peer in sorted(awaited) if peer not in known}
        for peer, since in self._absent.items():
            if now - since >= _ABSENT:
                self._connect(peer)

    def _overdue(self, request: Send | Receiving | ReceivingAny) -> str:
        if isinstance(request, ReceivingAny):
            return request.receive.overdue(self.group)
        with self._lock:
            name, peer = self.group.describe(request.peer), request.peer
            if isinstance(request, Send):
                queued = self._stripings[peer].queued_bytes if peer in self._stripings else 0
                state = "is not connected" if self._dialing.pending(peer) else f"has yet to take {queued} queued bytes"
                return f"rank {self.rank} waited too long to send {request.nbytes} bytes to {name}, which {state}"
            incoming = self._incoming.get(peer)
            state = "it has not connected" if incoming is None else incoming.progress()
            return (
                f"rank {self.rank} waited too long for {request.nbytes} bytes with tag {request.tag:#x} from {name}: "
                f"{state}"
            )
