"""Channels: messages of bytes among some ranks, apart from all other messages; and the agreement on their number.

A channel is the half of a communicator that needs no memory and no descriptor. Its number is given by the lowest of its
ranks, which gives none twice, so that threads may make channels at the same time. It passes on what the transport's
ability `AnySource` can do: receives of any length up to that of the memory, tags by ranges, and receives that are taken
back. `PointToPoint` has the messages of arrays and objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from collectives.execution import Executor
from collectives.operations.point_to_point import FAILURES, MAX_USER_TAG, Ended, Message, Transfer, Waiting, has_ended
from transports.anysource import AnyRequest, AnySource, Arrival, Taken
from transports.base import Request, Transport
from transports.errors import DeadlineExceeded, MismatchError, PeerLost, TransportError
from transports.packed import pack, unpack

MESSAGES: Final = 1 << 31
"""The bit of a frame's tag that separates messages from collectives."""
OWN_CHANNEL: Final = 1 << 30
"""Added to a communicator's context for the channel of all its ranks. Contexts are smaller."""


class Receipt(Message):
    """A receive of a channel.

    view   the memory of the payload, once it has ended well
    """

    def __init__(self, executor: Executor, timeout: float, numbers: dict[int, int]) -> None:
        super().__init__(executor, timeout)
        self._numbers = numbers

    def begun(self, request: AnyRequest, doing: str, sources: tuple[int, ...]) -> None:
        """The transport's receive has begun, from these ranks."""
        self._request = request
        self.add(Transfer(request, doing, sources, None))

    @property
    def arrival(self) -> Arrival | None:
        """The envelope of the frame that it has matched, with the channel's rank and tag; None before."""
        arrival = self._request.arrival
        return None if arrival is None else _renumbered(arrival, self._numbers)

    @property
    def view(self) -> memoryview:
        return self._request.view


class Channel:
    """Messages of bytes among some ranks. Ranks are numbered from 0, tags are 0 to 2**31 - 1.

    ranks           the transport's ranks, in the order of their numbers here
    rank            this process's number
    context         the number of the channel among its family, which no other communicator of these ranks has
    authenticated   every arriving byte provably comes from a member of the job
    """

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        context: int,
        kind: int,
        executor: Executor,
        new_context: Callable[[], int],
    ) -> None:
        """`kind` are the bits that tell these messages from others with the same context; `new_context` gives numbers
        for other channels."""
        ability = transport.ability(AnySource)
        if ability is None:
            name = transport.name
            raise TransportError(f"the transport {name} has no receives from any source: there are no channels over it")
        self._ability = ability
        self.ranks = ranks
        self.rank = ranks.index(transport.rank)
        self._transport = transport
        self.context = context
        self._tag = context << 32 | kind
        self._executor = executor
        self._numbers = {rank: number for number, rank in enumerate(ranks)}
        self._everyone = frozenset(ranks)
        self._new_context = new_context
        self.authenticated = executor.authenticated

    def send(
        self, view: memoryview, dst: int, tag: int, timeout: float, *, synchronous: bool = False
    ) -> Message | Ended:
        """Begin to send `view`, of one dimension and format 'B'. A synchronous message ends with its match or later."""
        peer = self.ranks[dst]
        start = self._ability.issend if synchronous else self._transport.isend
        try:
            request: Request = start(peer, self._tag | tag, view)
        except FAILURES as error:
            raise self._executor.abort_signal.fail(error, f"send to rank {dst}") from error
        if has_ended(request):
            return Ended(None)
        message = Message(self._executor, timeout)
        message.add(Transfer(request, f"send to rank {dst}", (peer,), None))
        return message

    def left(self, interrupt: BaseException) -> None:
        """Abort the job because an interrupt has left a wait for messages that nobody will wait for again: what comes
        next would go to them."""
        self._executor.interrupted()
        self._executor.left(interrupt, "a message")

    def take(self, view: memoryview | None, src: int | None, tags: range) -> Taken | None:
        """Receive as `receive` does, if that takes no longer than a moment; else None, with nothing done. The rank and
        the tag are the channel's."""
        first = self._tag | tags.start
        sources = self.ranks if src is None else (self.ranks[src],)
        found = self._ability.take(sources, range(first, first + len(tags)), view)
        if found is None:
            return None
        return Taken(self._numbers[found.source], found.tag & MAX_USER_TAG, found.check, found.view)

    def receive(self, view: memoryview | None, src: int | None, tags: range, timeout: float) -> Receipt:
        """Begin to receive the first message with any of `tags`, from a rank or from any, of at most the length of
        `view`; None allocates memory. Its wait raises MismatchError for a longer message, which is lost."""
        sources = self._everyone if src is None else frozenset((self.ranks[src],))
        message = Receipt(self._executor, timeout, self._numbers)
        doing = "receive from any rank" if src is None else f"receive from rank {src}"
        tags = range(self._tag | tags.start, (self._tag | tags[-1]) + 1)
        try:
            request = self._ability.irecv_any(sources, tags, view, None)
        except FAILURES as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        message.begun(request, doing, tuple(sources))
        return message

    def probe(self, src: int | None, tags: range, timeout: float | None) -> Arrival | None:
        """The envelope of the message that `receive` would take now; the message stays.

        timeout   seconds to wait for one; None does not wait

        Raises DeadlineExceeded if none came in time, PeerLost if none can come any more.
        """
        sources = self._everyone if src is None else frozenset((self.ranks[src],))
        tags = range(self._tag | tags.start, (self._tag | tags[-1]) + 1)
        sender = "any rank" if src is None else f"rank {src}"
        doing = f"probe for a message from {sender}"
        waiting = Waiting(self._executor, doing, tuple(sources))
        if timeout is not None:
            self._executor.positions.add(waiting)
        now = time.monotonic()
        try:
            arrival = self._ability.probe(sources, tags, now + (timeout or 0.0))
            if arrival is None and timeout is not None:
                if not self._ability.reachable(sources):
                    peer = None if src is None else self.ranks[src]
                    text = f"all ranks that could send the message have closed: {sender}"
                    raise PeerLost(text, rank=self._transport.rank, peer=peer)
                late = f"probe: no message from {sender} came within {timeout} s"
                raise DeadlineExceeded(late, rank=self._transport.rank)
        except FAILURES as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        finally:
            self._executor.positions.remove(waiting)
        return None if arrival is None else _renumbered(arrival, self._numbers)

    def among(self, ranks: Sequence[int], tag: int, timeout: float) -> Channel:
        """A channel of its own for some of the ranks, this one among them, in this order. Collective among them.

        tag      of the messages in which they agree on it: threads that call this at the same time give different ones
        timeout  seconds until they must have agreed

        Raises MismatchError if a rank lists others than the one that it hears from. The lowest rank gives the number.
        """
        mine = [int(rank) for rank in ranks]
        members = sorted(mine)  # every order of the same ranks has the same tree
        place, size = members.index(self.rank), len(members)
        if place == 0:
            context = self._new_context()
        else:
            parent = members[place & (place - 1)]
            receipt = self.receive(None, parent, range(tag, tag + 1), timeout)
            receipt.wait()
            context, theirs = unpack(receipt.view)
            if theirs != mine:
                raise self._executor.abort_signal.fail(self._mismatch(parent, theirs, mine), "in channel")
        bit, sends, note = 1, [], memoryview(pack((context, mine)))
        while place + bit < size and not place & bit:
            sends.append(self.send(note, members[place + bit], tag, timeout))
            bit *= 2
        for send in sends:  # the caller may compute next, and look after no connection that begins
            send.wait()
        own = tuple(self.ranks[rank] for rank in mine)
        return Channel(self._transport, own, context, MESSAGES, self._executor, self._new_context)

    def _mismatch(self, other: int, theirs: list[int], mine: list[int]) -> MismatchError:
        """The error for a rank of the channel that has listed other ranks than this one, or another order."""
        text = f"the ranks list different ranks:\n  rank {other}: {theirs}\n  rank {self.rank}: {mine}"
        return MismatchError(text, rank=self._transport.rank, peer=self.ranks[other])


def _renumbered(arrival: Arrival, numbers: dict[int, int]) -> Arrival:
    return arrival._replace(source=numbers[arrival.source], tag=arrival.tag & MAX_USER_TAG)
