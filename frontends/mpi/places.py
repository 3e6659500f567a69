"""Places in the parts of windows, and access to them.

A part that all ranks of a window map is accessed in memory. Any other part, of a rank on another host or in memory of
the program, is accessed by its own rank alone: a thread of that rank does what the others ask for, one after the other.

    rank 0: Put              rank 1: its program computes; its thread:
        question  ----------->   writes the data
        answer    <-----------   sends what the call returns
"""

from __future__ import annotations

import contextvars
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import numpy as np

from frontends.mpi.blocks import Block
from frontends.mpi.constants import ANY_SOURCE
from frontends.mpi.errors import Failure
from frontends.mpi.memory import Bytes
from frontends.mpi.objects import receive, send
from frontends.mpi.operations import Several, completed
from frontends.mpi.ops import Op, combine_arrays, known
from frontends.mpi.peers import Peers

_QUESTION, _ANSWER = 16, 17
"""Slots of questions, and of the first answer."""
_ANSWERS: Final = 1 << 16
"""Number of questions that a rank may have in flight."""
_ACCESSES: Final = ("read", "write", "combine", "swap")


class Place(ABC):
    """Elements in a part of a window.

    block  the elements; its memory is only that of the part where this rank maps it
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    @abstractmethod
    def read(self) -> Bytes:
        """The data."""

    @abstractmethod
    def write(self, data: Bytes) -> None:
        """Replace the data."""

    @abstractmethod
    def combine(self, op: Op, data: Bytes, *, fetch: bool) -> Bytes | None:
        """Combine the elements with others, atomically. With `fetch`, returns the data before."""

    @abstractmethod
    def swap(self, data: Bytes, expected: Bytes) -> Bytes:
        """Replace the data if they are those expected, atomically. Returns the data before."""


class Mapped(Place):
    """A place in memory of this rank."""

    def __init__(self, block: Block, alone: Callable[[], AbstractContextManager[Any]]) -> None:
        """`alone` excludes the other accesses to the part."""
        super().__init__(block)
        self._alone = alone

    def read(self) -> Bytes:
        return self.block.read()

    def write(self, data: Bytes) -> None:
        self.block.write(data)

    def combine(self, op: Op, data: Bytes, *, fetch: bool) -> Bytes | None:
        ronde_op, dtype = known(op).on_arrays(self.block.datatype, moves=True)
        with self._alone():
            before = self.block.array(dtype).copy()
            if ronde_op != "no_op":
                after = np.empty_like(before)
                combine_arrays(ronde_op, data.view(dtype), before, after)
                self.block.write(after.view(np.uint8))
        return before.view(np.uint8) if fetch else None

    def swap(self, data: Bytes, expected: Bytes) -> Bytes:
        with self._alone():
            before = self.block.read().copy()
            if np.array_equal(before, expected):
                self.block.write(data)
        return before


class Asked(Place):
    """A place that its rank accesses for this one."""

    def __init__(self, block: Block, ask: Callable[..., Any]) -> None:
        """`ask` sends the name of an access, the block and the arguments to the rank, and returns the answer."""
        super().__init__(block)
        self._ask = ask

    def _access(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._ask(name, self.block.offset, self.block.count, self.block.datatype, arguments, options)

    def read(self) -> Bytes:
        found: Bytes = self._access("read")
        return found

    def write(self, data: Bytes) -> None:
        self._access("write", data)

    def combine(self, op: Op, data: Bytes, *, fetch: bool) -> Bytes | None:
        before: Bytes | None = self._access("combine", op, data, fetch=fetch)
        return before

    def swap(self, data: Bytes, expected: Bytes) -> Bytes:
        before: Bytes = self._access("swap", data, expected)
        return before


class Lock:
    """The lock of a part. Ranks get it in the order in which they ask for it; several may hold it as a shared one."""

    def __init__(self) -> None:
        self._holders: dict[int, bool] = {}
        """By rank: True if it holds the lock as a shared one."""
        self._waiting: deque[tuple[int, int, bool]] = deque()

    def ask(self, rank: int, slot: int, *, shared: bool) -> None:
        """A rank asks for the lock; `slot` is that of the answer."""
        self._waiting.append((rank, slot, shared))

    def release(self, rank: int) -> None:
        """A rank lets go of the lock."""
        del self._holders[rank]

    def granted(self) -> Iterator[tuple[int, int]]:
        """Rank and slot of those that get the lock now."""
        while self._waiting:
            rank, slot, shared = self._waiting[0]
            if self._holders and not (shared and all(self._holders.values())):
                return
            self._waiting.popleft()
            self._holders[rank] = shared
            yield rank, slot


class Keeper:
    """The thread of a rank that accesses its part of a window for the other ranks, and keeps the lock of the part."""

    def __init__(self, peers: Peers, memory_at: Callable[[int], tuple[Bytes, int]]) -> None:
        """`memory_at` gives the memory at a displacement in bytes, and where the displacement lies in it. Nothing but
        `ask` and the keepers of the other ranks uses these slots of `peers`."""
        self._peers = peers
        self._memory_at = memory_at
        self.alone = threading.Lock()
        """Held during each access to the part, which the threads of the program make themselves."""
        self._lock = Lock()
        self._slots = itertools.count()
        context = contextvars.copy_context()  # it knows the world of a rank that is a thread
        self._thread = threading.Thread(target=context.run, args=(self._serve,), name="ronde-mpi-window", daemon=True)
        self._thread.start()

    def ask(self, rank: int, name: str, *arguments: Any) -> Any:
        """Ask the keeper of a rank; its answer. Raises the error that it met, or MPI's Exception."""
        slot = next(self._slots) % _ANSWERS
        answer = receive(self._peers, rank, _ANSWER + slot)
        completed(self._peers, Several([send(self._peers, (slot, name, arguments), rank, _QUESTION), answer]))
        result, failed = answer.result()
        if failed is not None:
            raise failed
        return result

    def close(self) -> None:
        """End the thread. The other ranks must ask nothing any more."""
        if self._thread.is_alive():
            completed(self._peers, send(self._peers, None, self._peers.rank, _QUESTION))
            self._thread.join()

    def _serve(self) -> None:
        with suppress(Failure):  # ranks are lost: the calls of the program raise
            while True:
                question = receive(self._peers, ANY_SOURCE, _QUESTION)
                question.wait()
                asked = question.result()
                if asked is None:
                    return
                self._answer(question.envelope()[0], *asked)

    def _answer(self, rank: int, slot: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "lock":
            self._lock.ask(rank, slot, shared=arguments[0])
        else:
            self._reply(rank, slot, self._attempt(rank, name, arguments))
        for holder, its_slot in self._lock.granted():
            self._reply(holder, its_slot, (None, None))

    def _attempt(self, rank: int, name: str, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """The result of what a rank asks for, or the error that it is to raise."""
        try:
            if name == "unlock":
                self._lock.release(rank)
                return None, None
            if name not in _ACCESSES:
                raise ValueError(f"access={name!r}: must be {', '.join(_ACCESSES)}")
            displacement, count, datatype, given, options = arguments
            memory, offset = self._memory_at(displacement)
            place = Mapped(Block(memory, offset, count, datatype), lambda: self.alone)
            return getattr(place, name)(*given, **options), None
        except Exception as error:  # noqa: BLE001 - the rank that asked raises it
            return None, error

    def _reply(self, rank: int, slot: int, answer: tuple[Any, Exception | None]) -> None:
        completed(self._peers, send(self._peers, answer, rank, _ANSWER + slot))
