"""Operations in flight: the part of a request that has begun and will end.

An operation makes progress in `test` and `wait`, ends once, and tells then its envelope and its result.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives import MismatchError, RondeError, Work
from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, PATIENCE, PROC_NULL, TAG_LIMIT
from frontends.mpi.errors import Failure, error, failure
from frontends.mpi.memory import Bytes
from frontends.mpi.peers import Peers
from frontends.mpi.processes import Process

INTERNAL: Final = TAG_LIMIT + 1
"""The first of the tags that programs cannot use."""
ANY_TAGS: Final = range(TAG_LIMIT + 1)
_EAGER: Final = 1 << 16
"""Bytes up to which a message between threads of one process is copied, so that its send does not wait."""
SLICE: Final = 0.05
"""Seconds between looks for a failure in what the program itself waits for."""

Envelope = tuple[int, int, int, bool]
"""Source, tag, number of bytes, and True if it was cancelled."""


def tags_of(tag: int) -> range:
    """The tags that a receive with a tag takes."""
    return ANY_TAGS if tag == ANY_TAG else range(tag, tag + 1)


class Operation(ABC):
    """Something in flight.

    keeps   what must stay alive until it has ended
    """

    keeps: Any = None

    @abstractmethod
    def test(self) -> bool:
        """Make progress; True once it has ended, well or not."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it has ended."""

    def wait_briefly(self, seconds: float) -> None:
        """Wait for so many seconds at most."""
        return

    def result(self) -> Any:
        """The result, once it has ended. Raises MPI's Exception if it has failed."""
        return None

    def envelope(self) -> Envelope:
        """The envelope, once it has ended."""
        return ANY_SOURCE, ANY_TAG, 0, False

    def cancel(self) -> None:
        """Take it back if it has not been matched. Operations that cannot be taken back go on."""
        return

    def free(self) -> None:
        """Nobody will ask for its end: it goes on, and puts its data in their places by itself."""
        return

    def then(self, call: Callable[[], None]) -> None:
        """Call a function once it has ended, in any thread. The default is that of an operation that has ended."""
        call()

    def end_alone(self) -> None:
        """Put the data in their places. A rank that is lost is told by the program's next call."""
        with contextlib.suppress(Failure):
            self.result()


def completed(peers: Peers, operation: Operation) -> Operation:
    """An operation that nobody can wait for but this call, once it has ended. An interrupt aborts the job."""
    try:
        operation.wait()
    except RondeError:
        raise
    except BaseException as interrupt:
        peers.messages.left(interrupt)
        raise
    return operation


class Ended(Operation):
    """An operation that has ended at once: with no rank, or locally."""

    def __init__(self, envelope: Envelope = (PROC_NULL, ANY_TAG, 0, False), result: Any = None) -> None:
        self._envelope = envelope
        self._result = result

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def result(self) -> Any:
        return self._result

    def envelope(self) -> Envelope:
        return self._envelope


class Prompted(Operation):
    """An operation that the program ends, or lets begin, in any of its threads. Until then no wait of the transport
    would tell of lost ranks: `test` and `wait` raise MPI's Exception."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._prompt = threading.Event()
        """Set by the program."""

    def test(self) -> bool:
        if self._prompt.is_set():
            return True
        self._process.look()
        return False

    def wait(self) -> None:
        while not self._prompt.wait(SLICE):
            self._process.look()

    def wait_briefly(self, seconds: float) -> None:
        self._prompt.wait(seconds)


class Awaited(Operation):
    """An operation of the runtime, and what is to be done once it has ended."""

    def __init__(self, peers: Peers, work: Work[Any], finish: Callable[[Any], Any] | None = None) -> None:
        self._process = peers.process
        self._work = work
        self._finish = finish

    def test(self) -> bool:
        return self._work.test()

    def wait(self) -> None:
        self._process.wait(self._work)

    def wait_briefly(self, seconds: float) -> None:
        try:
            self._work.wait(seconds)
        except RondeError:  # that is for `result`, or it has not ended
            return

    def result(self) -> Any:
        product = self._process.wait(self._work)
        if self._finish is None:
            return product
        finish, self._finish = self._finish, None
        return finish(product)

    def free(self) -> None:
        if self._finish is not None:
            self.then(self.end_alone)

    def then(self, call: Callable[[], None]) -> None:
        self._work.add_done_callback(lambda _: call())


class Sending(Operation):
    """A message that is being sent; a synchronous one ends when it is matched."""

    def __init__(self, peers: Peers, data: Bytes, dest: int, tag: int, *, synchronous: bool = False) -> None:
        self._process = peers.process
        self._eager = not synchronous and self._process.is_local and len(data) <= _EAGER
        if self._eager:
            data = data.copy()
        try:
            self._message = peers.channel.send(data.data, peers.number(dest), tag, PATIENCE, synchronous=synchronous)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def test(self) -> bool:
        return self._eager or self._message.test()

    def wait(self) -> None:
        if not self._eager:
            self._process.wait(self._message)

    def wait_briefly(self, seconds: float) -> None:
        try:
            self._message.wait(seconds)
        except RondeError:
            return

    def result(self) -> None:
        self.wait()

    def then(self, call: Callable[[], None]) -> None:
        if self._eager:
            call()
        else:
            self._message.add_done_callback(lambda _: call())


class Receiving(Operation):
    """A message that is being received.

    target   memory for its data; None allocates it
    finish   makes the result of the memory that was filled; None without a result
    """

    def __init__(
        self, peers: Peers, target: Bytes | None, finish: Callable[[Bytes], Any] | None, source: int, tag: int
    ) -> None:
        self._peers = peers
        self._process = peers.process
        number = None if source == ANY_SOURCE else peers.number(source)
        self._finish = finish
        self._places_data = target is not None and finish is not None
        """False for an object, which nobody gets."""
        self._cancelled = self._finished = False
        self._product: Any = None
        view = None if target is None else target.data
        try:
            self._receipt = peers.channel.receive(view, number, tags_of(tag), PATIENCE)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def test(self) -> bool:
        return self._receipt.test()

    def wait(self) -> None:
        if not self._cancelled:
            try:
                self._process.wait(self._receipt)
            except Failure:
                return  # that is for `result`

    def wait_briefly(self, seconds: float) -> None:
        try:
            self._receipt.wait(seconds)
        except RondeError:
            return

    def result(self) -> Any:
        if self._cancelled or self._finished:
            return self._product
        try:
            self._receipt.wait()
        except MismatchError as cause:
            raise error("ERR_TRUNCATE", str(cause)) from cause
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error
        self._finished = True
        if self._finish is not None:
            self._product = self._finish(np.frombuffer(self._receipt.view, np.uint8))
        return self._product

    def envelope(self) -> Envelope:
        arrival = self._receipt.arrival
        if self._cancelled or arrival is None:
            return ANY_SOURCE, ANY_TAG, 0, self._cancelled
        return self._peers.rank_of(arrival.source), arrival.tag, arrival.nbytes, False

    def cancel(self) -> None:
        self._cancelled = self._cancelled or self._receipt.cancel()

    def free(self) -> None:
        if self._places_data and not self._finished:
            self.then(self.end_alone)

    def then(self, call: Callable[[], None]) -> None:
        self._receipt.add_done_callback(lambda _: call())


class Several(Operation):
    """Operations that count as one: it ends with the last of them, and has the envelope of the first."""

    def __init__(self, parts: list[Operation], finish: Callable[[list[Any]], Any] | None = None) -> None:
        self._parts = parts
        self._finish = finish

    def test(self) -> bool:
        return all(part.test() for part in self._parts)

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def wait_briefly(self, seconds: float) -> None:
        for part in self._parts:
            if not part.test():
                part.wait_briefly(seconds)
                return

    def result(self) -> Any:
        results = [part.result() for part in self._parts]
        if self._finish is None:
            return results[0] if results else None
        finish, self._finish = self._finish, None
        return finish(results)

    def envelope(self) -> Envelope:
        return self._parts[0].envelope() if self._parts else super().envelope()

    def free(self) -> None:
        if self._finish is not None:
            self.then(self.end_alone)
        else:
            for part in self._parts:
                part.free()

    def then(self, call: Callable[[], None]) -> None:
        """Wait for the parts in turn."""
        rest = iter(self._parts)

        def go_on() -> None:
            part = next(rest, None)
            if part is None:
                call()
            else:
                part.then(go_on)

        go_on()
