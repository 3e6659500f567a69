"""Matches arriving frames to posted receives: the part that every byte-stream transport needs alike.

Sans I/O and sans locks: the transport calls it under its own lock. A frame's life:

    landing = mailbox.arrive(peer, tag, check, length)     its header has been read
    ... write the payload into landing.view ...            straight into the posted buffer where there is one
    landing.finish()                                       the payload is complete

A transport whose sender can be read directly hands its buffer to `arrive`: no copy is made before a receive claims it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from transports.errors import MismatchError, RondeError

MAX_PARKED_FRAMES: Final = 1 << 18
"""Frames that no receive has claimed yet, however small."""


class Receive:
    """A posted receive. `done` and `error` are written once, by the mailbox."""

    __slots__ = ("check", "done", "error", "peer", "tag", "view")

    def __init__(self, peer: int, tag: int, view: memoryview, check: int) -> None:
        self.peer = peer
        self.tag = tag
        self.view = view
        self.check = check
        self.done = False
        self.error: RondeError | None = None


class Landing:
    """A frame whose payload is arriving. Write it into `view`, then call `finish`.

    `borrowed` is true while `view` is the sender's own buffer, which the sender may not use yet.
    """

    __slots__ = ("_complete", "_mailbox", "_receive", "borrowed", "check", "peer", "tag", "view")

    def __init__(
        self,
        mailbox: Mailbox,
        peer: int,
        tag: int,
        check: int,
        length: int,
        receive: Receive | None,
        payload: memoryview | None,
    ) -> None:
        self._mailbox = mailbox
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
            mailbox.parked_bytes += length
            mailbox.parked_frames += 1

    def keep(self) -> None:
        """Copy a borrowed payload, so that the sender has its buffer back."""
        self.view = memoryview(bytes(self.view))
        self.borrowed = False

    def claim(self, receive: Receive) -> None:
        """Give a frame that came unexpected to the receive that was posted for it at last."""
        self._receive = receive
        self._mailbox.parked_bytes -= len(self.view)
        self._mailbox.parked_frames -= 1
        if self._complete:
            self._deliver(receive)

    def finish(self) -> None:
        """The payload is complete in `view`."""
        self._complete = True
        if self._receive is not None:
            self._deliver(self._receive)

    def _deliver(self, receive: Receive) -> None:
        if len(receive.view) != len(self.view) or receive.check != self.check:
            receive.error = self._mailbox.misfit(receive, self.check, len(self.view))
        elif self.view is not receive.view:
            receive.view[:] = self.view
        receive.done = True
        self.borrowed = False


class Mailbox:
    """Posted receives and unexpected frames of one rank, first in first out per (peer, tag)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.parked_bytes = 0
        """Payload bytes of frames that no receive has claimed yet; a transport bounds it by not reading on."""
        self.parked_frames = 0
        self._posted: dict[tuple[int, int], deque[Receive]] = {}
        self._parked: dict[tuple[int, int], deque[Landing]] = {}

    def post(self, peer: int, tag: int, view: memoryview, check: int) -> Receive:
        """Post a receive. It is done at once if its frame is here already."""
        receive = Receive(peer, tag, view, check)
        self.add(receive)
        return receive

    def add(self, receive: Receive) -> None:
        """Post a receive of the transport's own making."""
        key = receive.peer, receive.tag
        parked = self._parked.get(key)
        if parked:
            parked.popleft().claim(receive)
            if not parked:
                del self._parked[key]
        elif key in self._posted:
            self._posted[key].append(receive)
        else:
            self._posted[key] = deque((receive,))

    def arrive(self, peer: int, tag: int, check: int, length: int, payload: memoryview | None = None) -> Landing:
        """A frame's header has come; the landing says where its payload goes.

        payload  the sender's buffer, where this process can read it: the landing borrows it
        """
        posted = self._posted.get((peer, tag))
        receive = posted.popleft() if posted else None
        if posted is not None and not posted:
            del self._posted[peer, tag]
        landing = Landing(self, peer, tag, check, length, receive, payload)
        if receive is None:
            self._parked.setdefault((peer, tag), deque()).append(landing)
        return landing

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """A whole frame is here: give it to the receive posted for it, without a landing. False, with nothing done, if
        none is posted or it does not fit: then `arrive`."""
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
        """True if a receive is posted for the next frame with this tag from a peer, or that has come."""
        key = peer, tag
        return key in self._posted or key in self._parked

    def awaits(self, peer: int, tag: int) -> bool:
        """True if a receive is posted for the next frame with this tag from a peer."""
        return (peer, tag) in self._posted

    def takes(self, peer: int, tag: int, check: int, length: int, max_parked: int) -> bool:
        """Whether `arrive` may be called for a frame: a receive is posted for it, or there is room to park it, which
        is `max_parked` bytes and MAX_PARKED_FRAMES frames.

        Raises MismatchError if it will never be taken: it does not fit its receive and is too long to be read over.
        """
        if self.parked_bytes + length <= max_parked and self.parked_frames < MAX_PARKED_FRAMES:
            return True
        posted = self._posted.get((peer, tag))
        if not posted:
            return False
        receive = posted[0]
        if length > max_parked and (len(receive.view), receive.check) != (length, check):
            raise self.misfit(receive, check, length)
        return True

    def misfit(self, receive: Receive, check: int, length: int) -> MismatchError:
        """The error of a receive that was posted for another frame than the one which came."""
        return MismatchError(
            f"the frame from rank {receive.peer} does not fit the receive posted for it: "
            f"{length} bytes, check {check:#010x} came; "
            f"{len(receive.view)} bytes, check {receive.check:#010x} expected",
            rank=self.rank,
            peer=receive.peer,
        )

    def parked_from(self, peer: int) -> list[Landing]:
        """The frames of one peer that no receive has claimed yet."""
        return [landing for (sender, _), parked in self._parked.items() if sender == peer for landing in parked]

    def waiting_for(self) -> dict[int, int]:
        """peer -> number of receives posted and not yet matched; for diagnosis."""
        counts: dict[int, int] = {}
        for (peer, _), receives in self._posted.items():
            counts[peer] = counts.get(peer, 0) + len(receives)
        return counts
