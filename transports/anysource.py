"""An optional ability: receives that take a frame from any of several ranks with any of several tags, probes, and sends
that end when they are matched.

A transport has it (`Transport.ability(AnySource)`) or not; nothing else of a transport depends on it. Matching is that
of MPI: frames of one pair of ranks do not overtake each other, and every receive, also one for a single rank and tag,
takes the first frame that it matches; of several receives that match a frame, the one posted first takes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from transports.base import MAX_CHECK, MAX_TAG, Request, Transport, check_view


class Arrival(NamedTuple):
    """The envelope of a frame: its sender, tag and check, and the length of its payload in bytes."""

    source: int
    tag: int
    check: int
    nbytes: int


class Taken(NamedTuple):
    """A frame that was received at once: its sender, tag and check, and the memory of its payload."""

    source: int
    tag: int
    check: int
    view: memoryview


class AnyRequest(Request):
    """A receive from any of several ranks in flight."""

    __slots__ = ()

    @property
    @abstractmethod
    def arrival(self) -> Arrival | None:
        """The envelope of the frame that the receive has matched; None before. The payload may still be arriving."""

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The memory of the payload, once the request has completed: the given view, the part of it that a shorter
        frame fills, or newly allocated memory."""

    @abstractmethod
    def withdraw(self) -> bool:
        """Take the receive back, unless it has matched a frame. False if it has: then it completes."""


class AnySource(ABC):
    """The ability. Threads may call it concurrently."""

    @abstractmethod
    def irecv_any(
        self,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None = None,
    ) -> AnyRequest:
        """Begin to receive the first frame from any of `sources` with any of `tags`.

        sources  ranks; the rank itself may be among them
        tags     consecutive numbers, 0 <= tag <= MAX_TAG
        view     as of `Transport.irecv`; None allocates memory of the length of the frame
        check    as of `Transport.irecv`; None takes every check, and frames that are shorter than `view`, into its
                 first bytes

        Of the frames that have arrived from one peer the first is taken. No peer is kept waiting by others that send
        more: a frame that has arrived is taken after a number of receives that does not depend on later frames. (The
        transports of Ronde take the frame that arrived first of all.)
        The request fails with PeerLost, which aborts the transport, when all other ranks of `sources` have closed. It
        fails with MismatchError as those of `Transport.irecv` do. Raises ValueError for bad arguments, and as irecv.
        """

    def take(
        self, sources: tuple[int, ...], tags: range, view: memoryview | None, check: int | None = None
    ) -> Taken | None:
        """Receive the first frame from any of `sources` with any of `tags` at once, without a request. The arguments
        are those of `irecv_any`, and good.

        None, with nothing done, if the frame does not come within some microseconds, if it does not fit, or for any
        other reason: then `irecv_any` follows. The default always returns None. An interrupt in it aborts the
        transport.
        """
        return None

    @abstractmethod
    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        """Wait until a frame has arrived that `irecv_any` would take now; its envelope. The frame stays.

        None if the deadline passed first, or if no frame can come any more, since all other ranks of `sources` have
        closed. A deadline in the past polls: it makes all progress that is possible without waiting. Raises ValueError
        for bad arguments, and the transport's first failure.
        """

    @abstractmethod
    def issend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        """Begin a synchronous send: as `Transport.isend`, but it completes no earlier than a receive of the peer has
        matched the frame. That needs nothing of the receiver but progress in any call. The wait fails with PeerLost,
        which aborts the transport, if the peer has closed without a match. Raises as `isend`."""

    @abstractmethod
    def reachable(self, sources: frozenset[int]) -> bool:
        """False if every other rank of `sources` has closed its transport, and all its frames have been received.
        True if there are no other ranks."""


def check_any(
    transport: Transport, sources: frozenset[int], tags: range, view: memoryview | None, check: int | None
) -> None:
    """The argument checks of the ability. Raises ValueError naming argument, value and what is allowed."""
    if not sources or min(sources) < 0 or max(sources) >= transport.size:
        raise ValueError(f"sources={sorted(sources)}: must be one or more ranks, 0 to {transport.size - 1}")
    if tags.step != 1 or not tags or tags[0] < 0 or tags[-1] > MAX_TAG:
        raise ValueError(f"tags={tags!r}: must be one or more consecutive numbers, 0 to 2**64 - 3")
    if check is not None and not 0 <= check <= MAX_CHECK:
        raise ValueError(f"check={check!r}: must be 0 to 2**32 - 1, or None for every check")
    if view is not None:
        check_view(view, writable=True)
