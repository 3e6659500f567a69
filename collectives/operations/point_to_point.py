"""send, recv and sendrecv: straight code on the transport, beside the collectives and not ordered with them."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arrays import Array, Target, as_bytes, as_numpy, flat
from collectives.execution import CallPosition, Executor
from collectives.operations.arguments import Arguments
from collectives.operations.work import Work
from transports.base import Request, Transport
from transports.errors import ClosedError, ConnectError, DeadlineExceeded, MismatchError, PeerLost, RondeError

MAX_USER_TAG: Final = 2**31 - 1


_Part = tuple[Request, Array, str, int]
"""A request, its memory, 'send to' or 'receive from', and the peer."""


class Message(Work[Any]):
    """A message in flight. It progresses whenever any call of this rank waits; no thread waits for it alone."""

    def __init__(self, executor: Executor, timeout: float, target: Target | None) -> None:
        super().__init__()
        self.executor = executor
        self._ended = False
        self._deadline = time.monotonic() + timeout
        self._target = target
        self._parts: list[_Part] = []
        self._awaited: _Part | None = None

    def add(self, request: Request, array: Array, doing: str, rank: int) -> None:
        """Add a request of the message, with the memory that it uses."""
        self._parts.append((request, array, doing, rank))

    def test(self) -> bool:
        over = True
        with contextlib.suppress(RondeError):  # that is for `wait` to raise
            over = all(request.test() for request, *_ in self._parts)
        if over:
            self._end()
        return over

    def position(self) -> CallPosition | None:
        """The part that `wait` waits for; None before it waits. From any thread."""
        awaited = self._awaited
        if awaited is None:
            return None
        request, _, doing, rank = awaited
        peer = self.executor.ranks[rank]
        return CallPosition(self.executor, 0, id(request), f"a call to {doing} rank {rank}", (peer,), peer)

    def wait(self, timeout: float | None = None) -> Any:
        self.executor.positions.add(self)
        try:
            return self._wait(timeout)
        finally:
            self.executor.positions.remove(self)

    def _wait(self, timeout: float | None) -> Any:
        patience = self._deadline if timeout is None else min(self._deadline, time.monotonic() + timeout)
        for part in self._parts:
            self._awaited = part
            request, array, doing, rank = part
            try:
                request.wait(patience)
            except MismatchError as error:
                self._end()
                raise MismatchError(
                    f"{doing} rank {rank}: expected {array.size} elements of {array.dtype}; {error.message}",
                    rank=error.rank,
                    peer=rank,
                ) from error
            except DeadlineExceeded as error:
                if time.monotonic() < self._deadline:
                    raise error.within(f"{doing} rank {rank}") from error
                # the transport still owns the memory, so the communicator cannot go on
                raise self.fail_with(error, f"{doing} rank {rank}") from error
            except (PeerLost, ConnectError) as error:
                raise self.fail_with(error, f"{doing} rank {rank}") from error
        self._end()
        return None if self._target is None else self._target.finish()

    def fail_with(self, error: RondeError, doing: str) -> RondeError:
        """Abort the communicator because of an error; returns the error to raise."""
        self._end()
        return self.executor.abort_signal.fail(error, doing)

    def _end(self) -> None:
        self._ended = True
        self._call_back()

    def _over(self) -> bool:
        return self._ended


class HostAccess:
    """The arrays of messages in the host's memory. The GPU room has one that brings arrays of GPUs there."""

    def array(self, x: Any, deadline: float, name: str = "x") -> Array:
        """`x` as a NumPy array, for reading. Raises TypeError; DeadlineExceeded if it does not arrive in time."""
        return as_numpy(x, name)

    def kind(self, x: Any, name: str = "x") -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array. Raises TypeError for anything else."""
        array = as_numpy(x, name)
        return array.shape, array.dtype

    def target(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None) -> Target:
        """The place for a result. Raises as Target."""
        return Target(out, shape, dtype, like)


class PointToPoint:
    """The messages of one communicator. A message begins at once; its Work awaits it. The arguments are those of the
    Communicator's methods."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        arguments: Arguments,
        executor: Executor,
        access: HostAccess,
    ) -> None:
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._arguments = arguments
        self._access = access
        self._executor = executor
        self._retired = ""

    def retire(self, state: str) -> None:
        """Take no more messages; `state` is the state that the errors tell."""
        self._retired = state

    def send(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        array = flat(self._access.array(x, time.monotonic() + self._arguments.timeout(timeout)))
        self._arguments.root(dst, "dst")
        message = self._message(None, tag, timeout)
        self._begin(message, self._transport.isend, "send to", dst, tag, array)
        return message

    def recv(self, x: Any, src: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        shape, dtype = self._access.kind(x)
        self._arguments.root(src, "src")
        target = self._access.target(x, shape, dtype)
        message = self._message(target, tag, timeout)
        self._begin(message, self._transport.irecv, "receive from", src, tag, target.flat)
        return message

    def sendrecv(
        self,
        x: Any,
        dst: int,
        src: int | None = None,
        *,
        out: Any = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Message:
        array = self._access.array(x, time.monotonic() + self._arguments.timeout(timeout))
        source = dst if src is None else src
        shape, dtype = (array.shape, array.dtype) if out is None else self._access.kind(out, "out")
        self._arguments.root(dst, "dst")
        self._arguments.root(source, "src")
        target = self._access.target(out, shape, dtype, like=x)
        outgoing = flat(array)
        if out is not None and np.may_share_memory(outgoing, target.flat):
            outgoing = outgoing.copy()
        message = self._message(target, tag, timeout)
        self._begin(message, self._transport.irecv, "receive from", source, tag, target.flat)
        self._begin(message, self._transport.isend, "send to", dst, tag, outgoing)
        return message

    def _message(self, target: Target | None, tag: int, timeout: float | None) -> Message:
        if not isinstance(tag, (int, np.integer)) or isinstance(tag, bool) or not 0 <= tag <= MAX_USER_TAG:
            raise ValueError(f"tag={tag!r}: must be an int, 0 to 2**31 - 1")
        if self._retired:
            raise ClosedError(f"the communicator of rank {self._transport.rank} is {self._retired}")
        return Message(self._executor, self._arguments.timeout(timeout), target)

    def _begin(
        self,
        message: Message,
        start: Callable[[int, int, memoryview, int], Request],
        doing: str,
        rank: int,
        tag: int,
        array: Array,
    ) -> None:
        """Begin one request of a message."""
        check = zlib.crc32(array.dtype.name.encode())
        try:
            request = start(self._ranks[rank], self._tag | int(tag), as_bytes(array), check)
        except (PeerLost, ConnectError) as error:
            raise message.fail_with(error, f"{doing} rank {rank}") from error
        message.add(request, array, doing, rank)
