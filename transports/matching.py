"""The match queue of a byte transport: matches arriving frames to posted receives.

It does no I/O and takes no lock: the transport calls it with its own lock held. The life of a frame:

    inbound = queue.arrive(peer, tag, check, length)    the header has been read
    ... write the payload into inbound.view ...         the posted buffer itself, if a receive was posted
    inbound.finish()                                    the payload is complete

A frame that arrives before its receive is an unexpected message; it is kept until a receive claims it. A transport that
can read the sender's buffer gives this buffer to `arrive`: then no copy is made before the claim.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from transports.errors import MismatchError, RondeError

MAX_UNEXPECTED_FRAMES: Final = 1 << 18
"""Maximum number of unexpected messages of any length."""


class Receive:
    """A posted receive. The match queue writes `done` and `error`, once."""

    __slots__ = ("check", "done", "error", "peer", "tag", "view")

    def __init__(self, peer: int, tag: int, view: memoryview, check: int) -> None:
        self.peer = peer
        self.tag = tag
        self.view = view
        self.check = check
        self.done = False
        self.error: RondeError | None = None


class InboundMessage:
    """A frame whose payload is arriving: write the payload into `view`, then call `finish`.

    borrowed   True while `view` is the sender's own buffer, which the sender must not change yet
    """

    __slots__ = ("_complete", "_queue", "_receive", "borrowed", "check", "peer", "tag", "view")

    def __init__(
        self,
        queue: MatchQueue,
        peer: int,
        tag: int,
        check: int,
        length: int,
        receive: Receive | None,
        payload: memoryview | None,
    ) -> None:
        self._queue = queue
        self._receive = receive
        self._complete = False
        self.borrowed = payload is not None
        self.peer = peer
        self.tag = tag
        self.check = check
        fits = receive is not None and len(receive.view) == length and receive.check == check
        if payload is not None:
            self.view = payload
        else:
            self.view = receive.view if fits and receive is not None else memoryview(bytearray(length))
        if receive is None:
            queue.unexpected_bytes += length
            queue.unexpected_frames += 1

    def keep(self) -> None:
        """Copy a borrowed payload, so that the sender has its buffer back."""
        self.view = memoryview(bytes(self.view))
        self.borrowed = False

    def claim(self, receive: Receive) -> None:
        """Give an unexpected message to the receive that was now posted for it."""
        self._receive = receive
        self._queue.unexpected_bytes -= len(self.view)
        self._queue.unexpected_frames -= 1
        if self._complete:
            self._deliver(receive)

    def finish(self) -> None:
        """The payload is complete in `view`."""
        self._complete = True
        if self._receive is not None:
            self._deliver(self._receive)

    def _deliver(self, receive: Receive) -> None:
        if len(receive.view) != len(self.view) or receive.check != self.check:
            receive.error = self._queue.misfit(receive, self.check, len(self.view))
        elif self.view is not receive.view:
            receive.view[:] = self.view
        receive.done = True
        self.borrowed = False


class MatchQueue:
    """Posted receives and unexpected frames of one rank, first in first out per (peer, tag)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.unexpected_bytes = 0
        """Payload bytes of the unexpected messages; a transport bounds them by reading no further."""
        self.unexpected_frames = 0
        self._posted: dict[tuple[int, int], deque[Receive]] = {}
        self._unexpected: dict[tuple[int, int], deque[InboundMessage]] = {}

    def clear(self) -> None:
        """Forget all receives and frames, and give their views back."""
        self.unexpected_bytes = self.unexpected_frames = 0
        self._posted.clear()
        self._unexpected.clear()

    def post(self, peer: int, tag: int, view: memoryview, check: int) -> Receive:
        """Post a receive. It is done at once if its frame has arrived already."""
        receive = Receive(peer, tag, view, check)
        self.add(receive)
        return receive

    def add(self, receive: Receive) -> None:
        """Post a receive that the transport has made itself."""
        key = receive.peer, receive.tag
        unexpected = self._unexpected.get(key)
        if unexpected:
            unexpected.popleft().claim(receive)
            if not unexpected:
                del self._unexpected[key]
        elif key in self._posted:
            self._posted[key].append(receive)
        else:
            self._posted[key] = deque((receive,))

    def arrive(self, peer: int, tag: int, check: int, length: int, payload: memoryview | None = None) -> InboundMessage:
        """Match an arrived header; the returned message has the view for the payload.

        payload  the sender's buffer, if this process can read it: the message borrows it
        """
        posted = self._posted.get((peer, tag))
        receive = posted.popleft() if posted else None
        if posted is not None and not posted:
            del self._posted[peer, tag]
        inbound = InboundMessage(self, peer, tag, check, length, receive, payload)
        if receive is None:
            self._unexpected.setdefault((peer, tag), deque()).append(inbound)
        return inbound

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """Copy a whole frame into the receive posted for it. False, with nothing done, if no receive is posted or the
        frame does not fit it: then call `arrive`."""
        key = peer, tag
        posted = self._posted.get(key)
        if not posted:
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

    def knows(self, peer: int, tag: int) -> bool:
        """True if a receive is posted for the next frame with this tag from a peer, or the frame has arrived."""
        key = peer, tag
        return key in self._posted or key in self._unexpected

    def awaits(self, peer: int, tag: int) -> bool:
        """True if a receive is posted for the next frame with this tag from a peer."""
        return (peer, tag) in self._posted

    def takes(self, peer: int, tag: int, check: int, length: int, max_unexpected: int) -> bool:
        """True if `arrive` may be called for a frame: a receive is posted for it, or there is room to keep it, which is
        `max_unexpected` bytes and MAX_UNEXPECTED_FRAMES frames.

        Raises MismatchError if it will never be taken: it does not fit its receive and is too long to be read over.
        """
        if self.unexpected_bytes + length <= max_unexpected and self.unexpected_frames < MAX_UNEXPECTED_FRAMES:
            return True
        posted = self._posted.get((peer, tag))
        if not posted:
            return False
        receive = posted[0]
        if length > max_unexpected and (len(receive.view), receive.check) != (length, check):
            raise self.misfit(receive, check, length)
        return True

    def misfit(self, receive: Receive, check: int, length: int) -> MismatchError:
        """The error of a receive whose frame has another length or check."""
        return MismatchError(
            f"the frame from rank {receive.peer} does not fit the receive posted for it: "
            f"{length} bytes, check {check:#010x} came; "
            f"{len(receive.view)} bytes, check {receive.check:#010x} expected",
            rank=self.rank,
            peer=receive.peer,
        )

    def unexpected_from(self, peer: int) -> list[InboundMessage]:
        """The frames of one peer that no receive has claimed yet."""
        return [
            inbound for (sender, _), unexpected in self._unexpected.items() if sender == peer for inbound in unexpected
        ]

    def waiting_for(self) -> dict[int, int]:
        """peer -> number of receives posted and not yet matched; for diagnosis."""
        counts: dict[int, int] = {}
        for (peer, _), receives in self._posted.items():
            counts[peer] = counts.get(peer, 0) + len(receives)
        return counts
