"""Plans: one description of a collective call, which runs at once, in the background, or again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from collectives import MismatchError
from frontends.mpi.blocks import Block, Blocks
from frontends.mpi.errors import failure
from frontends.mpi.memory import Bytes
from frontends.mpi.operations import INTERNAL, Awaited, Ended, Operation, Receiving, Sending, Several, completed
from frontends.mpi.peers import Peers
from frontends.mpi.repeats import Call


class Plan(ABC):
    """A call that can be made any number of times. The program's memory is read when the call begins."""

    @abstractmethod
    def begin(self) -> Operation:
        """Begin the call."""

    def run(self) -> Any:
        """Make the call, and return its result."""
        operation = self.begin()
        operation.wait()
        return operation.result()


class Collective(Plan):
    """A collective of an intracommunicator, carried out by one call of Ronde."""

    def __init__(self, peers: Peers, prepare: Callable[[], Call]) -> None:
        """`prepare` packs the data and describes the call."""
        self._peers = peers
        self._prepare = prepare

    def begin(self) -> Operation:
        call = self._prepare()
        work = self._peers.call(f"{call.method}_async", *call.arguments, **call.options)
        operation = Awaited(self._peers, work, call.finish or _nothing)
        operation.keeps = call
        return operation

    def run(self) -> Any:
        return self.make()[1]

    def make(self) -> tuple[Call, Any]:
        """Make the call; its description, and its result."""
        call = self._prepare()
        result = self._peers.call(call.method, *call.arguments, **call.options)
        return call, None if call.finish is None else call.finish(result)


def _nothing(_: Any) -> None:
    return None


class Local(Plan):
    """A call without communication."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body

    def begin(self) -> Operation:
        return Ended((-1, -1, 0, False), self._body())


class Sent(NamedTuple):
    """A message of an exchange: to which rank, and its data. `slot` separates messages to one rank."""

    rank: int
    block: Block | Blocks
    slot: int = 0


class Exchange(Plan):
    """Messages to some ranks and from some: the collectives between neighbours and between groups.

    Messages of successive exchanges between two ranks are received in the order in which they are sent.
    """

    def __init__(
        self,
        peers: Peers,
        sends: Sequence[Sent],
        receives: Sequence[Sent],
        finish: Callable[[], Any] | None = None,
    ) -> None:
        self._peers = peers
        self._sends = sends
        self._receives = receives
        self._finish = finish

    def run(self) -> Any:
        return completed(self._peers, self.begin()).result()

    def begin(self) -> Operation:
        parts: list[Operation] = []
        for rank, block, slot in self._receives:
            target, scatter = block.target()
            parts.append(Receiving(self._peers, target, partial(_place, rank, target, scatter), rank, _FIRST + slot))
        for rank, block, slot in self._sends:
            parts.append(Sending(self._peers, block.read(), rank, _FIRST + slot))
        finish = self._finish

        def end(_: list[Any]) -> Any:
            return None if finish is None else finish()

        return Several(parts, end)


def _place(rank: int, target: Bytes, scatter: Callable[[Bytes], None] | None, data: Bytes) -> None:
    """Put the data of a rank in their places. Raises MPI's Exception for fewer than are expected."""
    if len(data) != len(target):
        text = f"rank {rank} sends {len(data)} bytes, {len(target)} are received: must be equally many"
        raise failure(MismatchError(text))
    if scatter is not None:
        scatter(data)


_FIRST = INTERNAL + 16
"""The tag of the first slot."""
