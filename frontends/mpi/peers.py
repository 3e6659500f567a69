"""Peers: the ranks that a communicator of MPI connects, and the two halves of the runtime that serve it.

Messages go by a channel, which costs almost nothing; collectives by a communicator of Ronde, which is made at the first
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from collectives import Communicator, RondeError
from collectives.operations import Channel
from frontends.mpi.attributes import AttributedBody
from frontends.mpi.constants import PATIENCE, TAG_LIMIT
from frontends.mpi.errors import error, failure
from frontends.mpi.processes import Process
from frontends.mpi.repeats import Repeats

FOR_CHANNELS: Final = TAG_LIMIT + 1
"""The tag of the messages in which ranks agree on channels."""
FOR_CREATE_GROUP: Final = 1 << 29
"""Added to the tags of Create_group, for the same."""


class Peers(AttributedBody):
    """The ranks of a communicator.

    process     the state of this rank
    messages    their messages
    ranks       the world's ranks of the local group
    remote      those of the remote group; None for an intracommunicator
    rank        this process's number in the local group
    numbers     the channel's numbers of the ranks that messages go to, of which there are `peer_count`
    local       of an intercommunicator, the communicator of the local group
    topology    the topology of its handles, if it has one
    revoked     True once `revoke` was called
    acknowledged  the ranks of the world whose failure the program has acknowledged
    successor   the same in the world of the ranks that are left; None before they have met
    repeats     the collectives on buffers that were made before
    partitioned  number of requests of partitioned messages by direction, rank and tag
    """

    def __init__(
        self,
        process: Process,
        channel: Channel,
        ranks: Sequence[int],
        *,
        remote: Sequence[int] | None = None,
        local: Peers | None = None,
        collectives: Communicator | None = None,
    ) -> None:
        super().__init__()
        self.process = process
        self.messages = channel
        self.repeats = Repeats()
        self.revoked = False
        self.acknowledged: frozenset[int] = frozenset()
        self.successor: Peers | None = None
        self.ranks = tuple(ranks)
        self.remote = None if remote is None else tuple(remote)
        self.rank = self.ranks.index(channel.ranks[channel.rank])
        self.size = len(self.ranks)
        self.local = local
        self.topology: Any = None
        self.errhandler: Any = None
        self.info: dict[str, str] = {}
        self.buffer: Any = None
        self.locks: dict[Any, Any] = {}
        self.partitioned: Counter[tuple[str, int, int]] = Counter()
        self._collectives = collectives
        self._owned = collectives is None
        self.is_inter = remote is not None
        numbers = {rank: number for number, rank in enumerate(channel.ranks)}
        peers = self.ranks if remote is None else self.remote or ()
        self.numbers = [numbers[rank] for rank in peers]
        self.peer_count = len(self.numbers)
        self._ranks_of = {number: rank for rank, number in enumerate(self.numbers)}

    def revoke(self) -> None:
        """From now on it is only good for an agreement, and for a communicator of the ranks that are left."""
        self.revoked = True
        self.repeats.clear()

    def number(self, rank: int) -> int:
        """The channel's number of a rank that messages go to. Raises Exception."""
        if not 0 <= rank < len(self.numbers):
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {len(self.numbers) - 1}")
        return self.numbers[int(rank)]

    def rank_of(self, number: int) -> int:
        """The rank with a number of the channel."""
        return self._ranks_of[number]

    def check(self) -> None:
        """Raise Exception if it is revoked."""
        if self.revoked:
            raise error("ERR_REVOKED", f"{self.name or 'it'} can only agree and shrink")

    @property
    def channel(self) -> Channel:
        """Its messages. Raises Exception if it is revoked."""
        if self.revoked:
            self.check()
        return self.messages

    @property
    def collectives(self) -> Communicator:
        """The communicator of Ronde for its collectives. The first call is collective. Raises Exception if it is
        revoked."""
        if self.revoked:
            self.check()
        made = self._collectives
        if made is None:
            try:
                made = self._collectives = self.process.world.subset(self.channel)
            except RondeError as cause:
                raise failure(cause)  # noqa: B904 - its cause is the error
        return made

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """The result of a collective of Ronde. Raises MPI's Exception."""
        try:
            return getattr(self.collectives, method)(*arguments, **options)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def channel_among(self, numbers: Sequence[int], tag: int = FOR_CHANNELS) -> Channel:
        """A new channel among some of the channel's ranks. Collective among them."""
        try:
            return self.messages.among(numbers, tag, PATIENCE)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def twin(self) -> Peers:
        """The same ranks with messages and collectives of their own. Collective."""
        channel = self.channel_among(range(len(self.messages.ranks)))
        return Peers(self.process, channel, self.ranks, remote=self.remote, local=self.local and self.local.twin())

    def among(self, ranks: Sequence[int], tag: int = FOR_CHANNELS) -> Peers:
        """Some of the ranks of an intracommunicator, by their numbers in it. Collective among them."""
        self.check()
        return Peers(self.process, self.channel_among(ranks, tag), [self.ranks[rank] for rank in ranks])

    def close(self) -> None:
        """Release the communicator of Ronde."""
        self.repeats.clear()
        made, self._collectives = self._collectives, None
        if made is not None and self._owned:
            made.close()
        if self.local is not None:
            self.local.close()
