"""The match queue of a byte transport: matches arriving frames to posted receives.

It does no I/O and takes no lock: the transport calls it with its own lock held. The life of a frame:

    inbound = queue.arrive(peer, tag, check, length)    the header has been read
    ... write the payload into inbound.view ...         the posted buffer itself, if a receive was posted
    inbound.finish()                                    the payload is complete

A frame that arrives before its receive is an unexpected message; it is kept until a receive claims it. A transport that
can read the sender's buffer lends it to `arrive`: then no copy is made before the claim.

Receives from any source are kept apart from the others, which are found by peer and tag. Where both may match a frame,
the numbers of the receives decide, which are given out only while there is a receive from any source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from transports.anysource import Arrival, Taken
from transports.base import Group
from transports.errors import MismatchError, RondeError

MAX_UNEXPECTED_FRAMES: Final = 1 << 18
"""Maximum number of unexpected messages of any length."""

_NOTHING: Final = memoryview(bytearray())


class Receive:
    """A posted receive. The match queue writes `done` and `error`, once.

    number   grows with every receive that was posted while a receive from any source was; 0 for the others
    """

    __slots__ = ("check", "done", "error", "number", "peer", "tag", "view")

    def __init__(self, peer: int, tag: int, view: memoryview, check: int) -> None:
        self.peer = peer
        self.tag = tag
        self.view = view
        self.check = check
        self.done = False
        self.error: RondeError | None = None
        self.number = 0

    def finish(self) -> None:
        """Its frame has been received straight into its view; see Target."""
        self.done = True

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def fits(self, check: int, length: int) -> bool:
        """True if the receive takes a frame with this check and length."""
        return len(self.view) == length and self.check == check


class AnyReceive(Receive):
    """A posted receive from any of several peers with any of several tags. Once it has matched a frame it is like a
    receive that was posted for this frame. One that takes every check takes shorter frames too, into the first bytes of
    its view.

    arrival   the envelope of the matched frame; None before
    """

    __slots__ = ("_allocates", "_takes_every_check", "arrival", "sources", "tags")

    def __init__(self, sources: frozenset[int], tags: range, view: memoryview | None, check: int | None) -> None:
        super().__init__(-1, -1, memoryview(bytearray()) if view is None else view, check or 0)
        self.sources = sources
        self.tags = tags
        self.arrival: Arrival | None = None
        self._allocates = view is None
        self._takes_every_check = check is None

    def matches(self, peer: int, tag: int) -> bool:
        """True if the receive may take a frame from this peer with this tag."""
        return tag in self.tags and peer in self.sources

    def fits(self, check: int, length: int) -> bool:
        if self._takes_every_check:
            return self._allocates or length <= len(self.view)
        return (self._allocates or len(self.view) == length) and self.check == check

    def overdue(self, group: Group) -> str:
        """The text of DeadlineExceeded."""
        tags = f"tag {self.tags[0]:#x}" if len(self.tags) == 1 else f"a tag {self.tags[0]:#x} to {self.tags[-1]:#x}"
        senders = group.describe_all(self.sources)
        return f"rank {group.rank} waited too long for a frame with {tags} from any of {senders}"

    def match(self, arrival: Arrival, payload: memoryview | None = None) -> None:
        """Match a frame. `payload`: memory that holds the frame, and may be kept."""
        self.arrival = arrival
        self.peer, self.tag = arrival.source, arrival.tag
        if self._allocates:
            self.view = memoryview(bytearray(arrival.nbytes)) if payload is None else payload
        if self._takes_every_check:
            self.check = arrival.check
            if arrival.nbytes < len(self.view):
                self.view = self.view[: arrival.nbytes]


class Target(Protocol):
    """The destination of an arriving payload. The whole payload is written into `view`, then `finish` is called."""

    @property
    def view(self) -> memoryview:
        """Memory of the length of the payload."""

    def finish(self) -> None:
        """The payload is complete."""


class Loan(Protocol):
    """The buffer of a sender, which this process can read."""

    def end(self, target: memoryview | None) -> bool:
        """Give the buffer back, after it was copied into `target` if there is one. False if the sender has taken it
        back before, since it has failed."""


class InboundMessage:
    """A frame whose payload is arriving: write the payload into `view`, then call `finish`.

    complete   True once the whole payload is in `view`, or in the sender's buffer
    number     of an unexpected message: their order of arrival
    """

    __slots__ = ("_loan", "_queue", "_receive", "check", "complete", "nbytes", "number", "peer", "tag", "view")

    def __init__(
        self,
        queue: MatchQueue,
        peer: int,
        tag: int,
        check: int,
        length: int,
        receive: Receive | None,
        loan: Loan | None,
    ) -> None:
        self._queue = queue
        self._receive = receive
        self._loan = loan
        self.complete = False
        self.peer = peer
        self.tag = tag
        self.check = check
        self.nbytes = length
        fits = receive is not None and len(receive.view) == length and receive.check == check
        if loan is not None:
            self.view = _NOTHING
        else:
            self.view = receive.view if fits and receive is not None else memoryview(bytearray(length))
        self.number = 0
        if receive is None:
            queue.unexpected_bytes += length
            queue.unexpected_frames += 1

    @property
    def borrowed(self) -> bool:
        """True while the payload is in the sender's buffer, which the sender must not change yet."""
        return self._loan is not None

    @property
    def arrival(self) -> Arrival:
        """The envelope."""
        return Arrival(self.peer, self.tag, self.check, self.nbytes)

    def claim(self, receive: Receive) -> None:
        """Give an unexpected message to the receive that was now posted for it."""
        self._receive = receive
        self._queue.unexpected_bytes -= self.nbytes
        self._queue.unexpected_frames -= 1
        if self.complete:
            self._deliver(receive)

    def finish(self) -> None:
        """The payload is complete."""
        self.complete = True
        if self._receive is not None:
            self._deliver(self._receive)

    def _deliver(self, receive: Receive) -> None:
        fits = len(receive.view) == self.nbytes and receive.check == self.check
        if not fits:
            receive.error = self._queue.misfit(receive, self.peer, self.check, self.nbytes)
        loan, self._loan = self._loan, None
        if loan is not None:
            if not loan.end(receive.view if fits else None):
                return
        elif fits and self.view is not receive.view:
            receive.view[:] = self.view
        receive.done = True


class NotedMessage(InboundMessage):
    """A frame whose sender waits for the news of its match."""

    __slots__ = ()

    def claim(self, receive: Receive) -> None:
        self._queue.tell(self.peer, self.tag)
        super().claim(receive)


class MatchQueue:
    """Posted receives and unexpected frames of one rank, first in first out per (peer, tag)."""

    def __init__(self, rank: int, tell: Callable[[int, int], object] = lambda peer, tag: None) -> None:
        """`tell` is called with the peer and the tag of a noted frame once a receive has matched it."""
        self.rank = rank
        self.tell = tell
        self._noted: dict[tuple[int, int], int] = {}
        """(peer, tag) -> number of the next frames whose match is to be told; empty but while one is arriving."""
        self.unexpected_bytes = 0
        """Payload bytes of the unexpected messages; a transport bounds them by reading no further."""
        self.unexpected_frames = 0
        self._posted: dict[tuple[int, int], deque[Receive]] = {}
        self._unexpected: dict[tuple[int, int], deque[InboundMessage]] = {}
        self._any: list[AnyReceive] = []
        self._numbers = 0
        self._arrivals = 0
        self._in_order: dict[int, InboundMessage] | None = None
        """The unexpected messages by their numbers, ascending; kept once somebody has asked for any source."""
        self.held: dict[int, Arrival] = {}
        """The peers whose next frame may not be taken yet, the longest held first. If they are served in this order,
        none waits forever for others that send more."""

    def clear(self) -> None:
        """Forget all receives and frames, and give their views back."""
        self.unexpected_bytes = self.unexpected_frames = 0
        self._posted.clear()
        self._unexpected.clear()
        self._any.clear()
        self._in_order = None
        self.held.clear()
        self._noted.clear()

    def note(self, peer: int, tag: int) -> None:
        """The match of the next frame with this tag from a peer is to be told."""
        self._noted[peer, tag] = self._noted.get((peer, tag), 0) + 1

    def add(self, receive: Receive) -> None:
        """Post a receive. It is done at once if its frame has arrived already."""
        key = receive.peer, receive.tag
        unexpected = self._unexpected.get(key)
        if unexpected:
            inbound = unexpected.popleft()
            if not unexpected:
                del self._unexpected[key]
            if self._in_order is not None:
                del self._in_order[inbound.number]
            inbound.claim(receive)
            return
        if self._any:
            self._numbers += 1
            receive.number = self._numbers
        if key in self._posted:
            self._posted[key].append(receive)
        else:
            self._posted[key] = deque((receive,))

    def add_any(self, receive: AnyReceive) -> None:
        """Post a receive from any source. It takes the unexpected message that arrived first of those that it
        matches."""
        for inbound in self._ordered():
            if receive.matches(inbound.peer, inbound.tag):
                receive.match(inbound.arrival, None if inbound.borrowed else inbound.view)
                self._take_out(inbound)
                inbound.claim(receive)
                return
        self._numbers += 1
        receive.number = self._numbers
        self._any.append(receive)

    def withdraw(self, receive: Receive) -> bool:
        """Take a receive back; False if it has matched a frame."""
        if isinstance(receive, AnyReceive):
            if receive in self._any:
                self._any.remove(receive)
            return receive.arrival is None
        key = receive.peer, receive.tag
        posted = self._posted.get(key)
        if posted is None or receive not in posted:
            return False
        posted.remove(receive)
        if not posted:
            del self._posted[key]
        return True

    def oldest(self, sources: frozenset[int], tags: range) -> Arrival | None:
        """The envelope of the frame that a receive from any of `sources` with any of `tags` would take now; None if
        there is none. Held frames count."""
        arrivals = chain((inbound.arrival for inbound in self._ordered()), self.held.values())
        return next((one for one in arrivals if one.tag in tags and one.source in sources), None)

    def arrive(self, peer: int, tag: int, check: int, length: int, loan: Loan | None = None) -> InboundMessage:
        """Match an arrived header; the returned message has the view for the payload.

        loan  the sender's buffer, if this process can read it
        """
        if self.held:
            self.held.pop(peer, None)
        receive: Receive | None = self._match_any(Arrival(peer, tag, check, length)) if self._any else None
        if receive is None:
            posted = self._posted.get((peer, tag))
            receive = posted.popleft() if posted else None
            if posted is not None and not posted:
                del self._posted[peer, tag]
        kind = self._kind(peer, tag, matched=receive is not None) if self._noted else InboundMessage
        inbound = kind(self, peer, tag, check, length, receive, loan)
        if receive is None:
            self._arrivals += 1
            inbound.number = self._arrivals
            self._unexpected.setdefault((peer, tag), deque()).append(inbound)
            if self._in_order is not None:
                self._in_order[inbound.number] = inbound
        return inbound

    def _kind(self, peer: int, tag: int, *, matched: bool) -> type[InboundMessage]:
        """The class of an arriving frame. If its match is to be told and it is matched already, that is told now."""
        count = self._noted.pop((peer, tag), 0)
        if not count:
            return InboundMessage
        if count > 1:
            self._noted[peer, tag] = count - 1
        if matched:
            self.tell(peer, tag)
        return NotedMessage

    def hold(self, peer: int, tag: int, check: int, length: int) -> None:
        """The next frame of a peer has arrived, but `arrive` may not be called for it yet."""
        if peer not in self.held:
            self.held[peer] = Arrival(peer, tag, check, length)

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """Copy a whole frame into the receive posted for it. False, with nothing done, if no receive is posted or the
        frame does not fit it: then call `arrive`."""
        key = peer, tag
        posted = self._posted.get(key)
        if not posted or self._any or self._noted:
            return False
        receive = posted[0]
        if receive.check != check or len(receive.view) != len(payload):
            return False
        if len(posted) == 1:
            del self._posted[key]
        else:
            posted.popleft()
        receive.view[:] = payload
        receive.done = True
        return True

    def take_first(self, peer: int, tag: int, most: int, *, only: bool) -> InboundMessage | None:
        """Take the first unexpected message with this tag from a peer out. None, with nothing done, if there is none,
        or if it is not complete, longer than `most` bytes, or noted; with `only` also if there is another one."""
        messages = self._unexpected.get((peer, tag))
        if messages is None or (only and len(messages) > 1) or len(messages[0].view) > most:
            return None
        return self._take_whole(messages[0])

    def put_first(self, inbound: InboundMessage) -> None:
        """Keep a message again that `take_first` has taken out, before all others with its tag from its peer."""
        self.unexpected_bytes += inbound.nbytes
        self.unexpected_frames += 1
        self._unexpected.setdefault((inbound.peer, inbound.tag), deque()).appendleft(inbound)
        self._in_order = None  # it is put in order when somebody asks

    def take(self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None) -> Taken | None:
        """Take the unexpected message that a receive would be given now: see AnySource.take. None, with nothing done,
        also if it is not complete, or noted, or does not fit."""
        inbound = self._first(sources, tags)
        if inbound is None or (check is not None and (check != inbound.check or view is None)):
            return None
        length = inbound.nbytes
        if view is not None and (length > len(view) or (check is not None and length < len(view))):
            return None
        if self._take_whole(inbound) is None:
            return None
        if view is None:
            view = inbound.view
        else:
            view = view[:length]
            view[:] = inbound.view
        return Taken(inbound.peer, inbound.tag, inbound.check, view)

    def _first(self, sources: tuple[int, ...], tags: range) -> InboundMessage | None:
        """The unexpected message that a receive from any of `sources` with any of `tags` would be given."""
        if len(tags) == len(sources) == 1:
            messages = self._unexpected.get((sources[0], tags.start))
            return messages[0] if messages else None
        if not self._unexpected:
            return None
        return next((one for one in self._ordered() if one.tag in tags and one.peer in sources), None)

    def _take_whole(self, inbound: InboundMessage) -> InboundMessage | None:
        """Take an unexpected message out, the first one of its peer and tag; None if it is not complete, or noted."""
        if not inbound.complete or inbound.borrowed or isinstance(inbound, NotedMessage):
            return None
        self._take_out(inbound)
        self.unexpected_bytes -= inbound.nbytes
        self.unexpected_frames -= 1
        return inbound

    def is_clear(self, sources: tuple[int, ...], tags: range) -> bool:
        """True if the next frame from any of `sources` with any of `tags` is for a receive that is not posted yet. It
        may be False without need."""
        if self.held or self._noted:
            return False
        if not (self._posted or self._unexpected or self._any):
            return True
        return len(tags) == len(sources) == 1 and not self.knows(sources[0], tags.start)

    def knows(self, peer: int, tag: int) -> bool:
        """True if a receive is posted for the next frame with this tag from a peer, or the frame has arrived."""
        key = peer, tag
        if key in self._posted or key in self._unexpected:
            return True
        return bool(self._any) and self._oldest_any(peer, tag) is not None

    def awaits(self, peer: int, tag: int) -> bool:
        """True if a receive is posted for the next frame with this tag from a peer."""
        if (peer, tag) in self._posted:
            return True
        return bool(self._any) and self._oldest_any(peer, tag) is not None

    def takes(self, peer: int, tag: int, check: int, length: int, max_unexpected: int) -> bool:
        """True if `arrive` may be called for a frame: a receive is posted for it, or there is room to keep it, which is
        `max_unexpected` bytes and MAX_UNEXPECTED_FRAMES frames.

        Raises MismatchError if it will never be taken: it does not fit its receive and is too long to be read over.
        """
        if self.unexpected_bytes + length <= max_unexpected and self.unexpected_frames < MAX_UNEXPECTED_FRAMES:
            return True
        receive = self._next(peer, tag)
        if receive is None:
            return False
        if length > max_unexpected and not receive.fits(check, length):
            raise self.misfit(receive, peer, check, length)
        return True

    def misfit(self, receive: Receive, peer: int, check: int, length: int) -> MismatchError:
        """The error of a receive whose frame, from `peer`, has another length or check."""
        came, expected = f"{length} bytes", f"{len(receive.view)} bytes"
        if check != receive.check:
            came, expected = f"{came}, check {check:#010x}", f"{expected}, check {receive.check:#010x}"
        return MismatchError(
            f"the frame from rank {peer} does not fit the receive posted for it: {came} came; {expected} expected",
            rank=self.rank,
            peer=peer,
        )

    def waiting_for(self) -> dict[int, int]:
        """peer -> number of receives posted and not yet matched; for diagnosis."""
        counts: dict[int, int] = {}
        for (peer, _), receives in self._posted.items():
            counts[peer] = counts.get(peer, 0) + len(receives)
        return counts

    @property
    def searched(self) -> bool:
        """True once somebody has looked for frames of any source."""
        return self._in_order is not None

    @property
    def any_sources(self) -> list[frozenset[int]]:
        """The sources of the receives from any source that have not matched."""
        return [receive.sources for receive in self._any]

    def _ordered(self) -> Iterable[InboundMessage]:
        """The unexpected messages in the order of their arrival."""
        if self._in_order is None:
            unexpected = [inbound for messages in self._unexpected.values() for inbound in messages]
            unexpected.sort(key=lambda inbound: inbound.number)
            self._in_order = {inbound.number: inbound for inbound in unexpected}
        return self._in_order.values()

    def _take_out(self, inbound: InboundMessage) -> None:
        """Remove an unexpected message, which is the first from its peer with its tag."""
        if self._in_order is not None:
            del self._in_order[inbound.number]
        key = inbound.peer, inbound.tag
        self._unexpected[key].popleft()
        if not self._unexpected[key]:
            del self._unexpected[key]

    def _oldest_any(self, peer: int, tag: int) -> AnyReceive | None:
        """The oldest receive from any source that may take a frame."""
        return next((receive for receive in self._any if receive.matches(peer, tag)), None)

    def _next(self, peer: int, tag: int) -> Receive | None:
        """The receive that takes the next frame with this tag from a peer."""
        posted, oldest = self._posted.get((peer, tag)), self._oldest_any(peer, tag)
        if posted and (oldest is None or posted[0].number < oldest.number):
            return posted[0]
        return oldest

    def _match_any(self, arrival: Arrival) -> AnyReceive | None:
        """Match a frame to the oldest receive from any source, unless an older receive waits for it."""
        receive = self._next(arrival.source, arrival.tag)
        if not isinstance(receive, AnyReceive):
            return None
        self._any.remove(receive)
        receive.match(arrival)
        return receive
