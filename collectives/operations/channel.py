"""Channels: messages of bytes among some ranks, apart from all other messages; and the agreement on their number.

A channel is the half of a communicator that needs no memory and no descriptor. Its number is given by the first of its
ranks, which counts for itself, so that threads may make channels at the same time. It passes on what the transport's
ability `AnySource` can do: receives of any length up to that of the memory, tags by ranges, and receives that are taken
back. `PointToPoint` has the messages of arrays and objects.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from collectives.execution import Executor
from collectives.operations.point_to_point import Message, Transfer, Waiting
from transports.anysource import AnyRequest, AnySource, Arrival
from transports.base import Request, Transport
from transports.errors import ConnectError, DeadlineExceeded, PeerLost, TransportError

MESSAGES: Final = 1 << 31
"""The bit of a frame's tag that separates messages from collectives."""
OWN_CHANNEL: Final = 1 << 30
"""Added to a communicator's context for the channel of all its ranks."""
OWN_CONTEXTS: Final = 1 << 31
"""The bit of a context that the first of its ranks has given, which contains that rank's number."""


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

    def withdraw(self) -> bool:
        """Take the receive back, unless it has matched a frame; False if it has: then it ends as any other."""
        return self._request.withdraw()


class Channel:
    """Messages of bytes among some ranks. Ranks are numbered from 0, tags are 0 to 2**31 - 1.

    ranks     the transport's ranks, in the order of their numbers here
    rank      this process's number
    context   the number of the channel among its family, which no other communicator of these ranks has
    """

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        context: int,
        kind: int,
        executor: Executor,
        counter: Iterator[int],
    ) -> None:
        """`kind` are the bits that tell these messages from others with the same context; `counter` counts the channels
        of this rank's family."""
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
        self._counter = counter

    @property
    def authenticated(self) -> bool:
        """True if every arriving byte provably comes from a member of the job."""
        return self._executor.authenticated

    def send(self, view: memoryview, dst: int, tag: int, check: int, timeout: float) -> Message:
        """Begin to send `view`, of one dimension and format 'B'. `check` arrives with it, 0 to 2**32 - 1."""
        message, peer = Message(self._executor, timeout), self.ranks[dst]
        doing = f"send to rank {dst}"
        try:
            request: Request = self._transport.isend(peer, self._tag | tag, view, check)
        except (PeerLost, ConnectError) as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        message.add(Transfer(request, doing, (peer,), None))
        return message

    def receive(self, view: memoryview | None, src: int | None, tags: range, timeout: float) -> Receipt:
        """Begin to receive the first message with any of `tags`, from a rank or from any, of at most the length of
        `view`; None allocates memory. Its wait raises MismatchError for a longer message, which is lost."""
        sources = self._everyone if src is None else frozenset((self.ranks[src],))
        message = Receipt(self._executor, timeout, self._numbers)
        doing = "receive from any rank" if src is None else f"receive from rank {src}"
        tags = range(self._tag | tags.start, (self._tag | tags[-1]) + 1)
        try:
            request = self._ability.irecv_any(sources, tags, view, None)
        except (PeerLost, ConnectError) as error:
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
        except (PeerLost, ConnectError) as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        finally:
            self._executor.positions.remove(waiting)
        return None if arrival is None else _renumbered(arrival, self._numbers)

    def among(self, ranks: Sequence[int], tag: int, timeout: float) -> Channel:
        """A channel of its own for some of the ranks, this one among them, in this order. Collective among them.

        tag      of the messages in which they agree on it: threads that call this at the same time give different ones
        timeout  seconds until they must have agreed
        """
        place, size = ranks.index(self.rank), len(ranks)
        if place == 0:
            context = self._new_context()
        else:
            parent = place & (place - 1)
            receipt = self.receive(None, ranks[parent], range(tag, tag + 1), timeout)
            receipt.wait()
            context = int.from_bytes(receipt.view)
        bit = 1
        while place + bit < size and not place & bit:
            self.send(memoryview(context.to_bytes(8)), ranks[place + bit], tag, 0, timeout)
            bit *= 2
        members = tuple(self.ranks[rank] for rank in ranks)
        return Channel(self._transport, members, context, MESSAGES, self._executor, self._counter)

    def _new_context(self) -> int:
        """A number that this rank has not given before, and that no other gives."""
        bits = OWN_CONTEXTS.bit_length() - 1 - max(1, (self._transport.size - 1).bit_length())
        count = next(self._counter)
        if count >> bits:
            raise TransportError(f"rank {self._transport.rank} has made {count} channels: there are no more numbers")
        return OWN_CONTEXTS | self._transport.rank << bits | count


def _renumbered(arrival: Arrival, numbers: dict[int, int]) -> Arrival:
    return arrival._replace(source=numbers[arrival.source], tag=arrival.tag & 0x7FFFFFFF)
