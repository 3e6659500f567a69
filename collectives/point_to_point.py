"""send, recv and sendrecv: straight code on the transport, beside the collectives and not ordered with them.

Arrays on GPUs go by way of the host, where messages have tags and no order among each other.
"""

from __future__ import annotations

import contextlib
import copy
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arguments import JobMaker
from collectives.buffers import Array, Target, as_bytes, flat
from collectives.execute import Executor
from collectives.progress import Work
from collectives.staging import HostTarget, kind_of, on_host
from transports.base import Request, Transport
from transports.errors import ClosedError, ConnectError, DeadlineExceeded, MismatchError, PeerLost, RondeError

MAX_USER_TAG: Final = 2**31 - 1


class Message(Work[Any]):
    """A message in flight. It moves along whenever any call of this rank waits; nothing waits on its behalf."""

    def __init__(self, executor: Executor, timeout: float, target: Target | None) -> None:
        super().__init__()
        self.executor = executor
        self._ended = False
        self._deadline = time.monotonic() + timeout
        self._target = target
        self._parts: list[tuple[Request, Array, str, int]] = []

    def add(self, request: Request, array: Array, doing: str, rank: int) -> None:
        """A request that belongs to it, with the memory it uses."""
        self._parts.append((request, array, doing, rank))

    def test(self) -> bool:
        over = True
        with contextlib.suppress(RondeError):  # that is for `wait` to raise
            over = all(request.test() for request, *_ in self._parts)
        if over:
            self._end()
        return over

    def wait(self, timeout: float | None = None) -> Any:
        patience = self._deadline if timeout is None else min(self._deadline, time.monotonic() + timeout)
        for request, array, doing, rank in self._parts:
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
                # the memory is still lent out, so there is no going on
                raise self.give_up(self.executor.alarm.explain(error), f"{doing} rank {rank}") from error
            except (PeerLost, ConnectError) as error:
                raise self.give_up(error, f"{doing} rank {rank}") from error
        self._end()
        return None if self._target is None else self._target.finish()

    def give_up(self, error: RondeError, doing: str) -> RondeError:
        """Abort the communicator because of an error; what to raise for it."""
        self._end()
        own = error.within(doing)
        cause = self.executor.alarm.settle(own)
        return copy.copy(own) if cause is own else cause.within(doing)

    def _end(self) -> None:
        self._ended = True
        self._call_back()

    def _over(self) -> bool:
        return self._ended


class PointToPoint:
    """The messages of one communicator. A message is begun at once; its Work awaits it."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        maker: JobMaker,
        executor: Executor,
    ) -> None:
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._maker = maker
        self._executor = executor
        self._retired = ""

    def retire(self, state: str) -> None:
        """Take no more messages; `state` is what the errors say."""
        self._retired = state

    def send(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        """Send `x` to rank `dst`, which must call recv with an array of the same dtype and number of elements.

        tag   0 to 2**31 - 1; messages between two ranks with one tag arrive in order, with different tags in any
        """
        array = flat(on_host(x, time.monotonic() + self._maker.timeout(timeout)))
        self._maker.check_rank(dst, "dst")
        message = self._message(None, tag, timeout)
        self._begin(message, self._transport.isend, "send to", dst, tag, array)
        return message

    def recv(self, x: Any, src: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        """Receive a message from rank `src` into the array `x`, and return `x`.

        Raises MismatchError if the message has another dtype or number of elements: it is lost, the contents of `x`
        are undefined, and the communicator stays usable.
        """
        shape, dtype = kind_of(x)
        self._maker.check_rank(src, "src")
        target = HostTarget(x, shape, dtype)
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
        """Send `x` to `dst` and receive an array like `x` (or like `out`) from `src`, at the same time; returns it.

        src   by default `dst`
        """
        array = on_host(x, time.monotonic() + self._maker.timeout(timeout))
        source = dst if src is None else src
        shape, dtype = (array.shape, array.dtype) if out is None else kind_of(out, "out")
        self._maker.check_rank(dst, "dst")
        self._maker.check_rank(source, "src")
        target = HostTarget(out, shape, dtype, like=x)
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
        return Message(self._executor, self._maker.timeout(timeout), target)

    def _begin(
        self,
        message: Message,
        start: Callable[[int, int, memoryview, int], Request],
        doing: str,
        rank: int,
        tag: int,
        array: Array,
    ) -> None:
        """Begin a part of a message."""
        check = zlib.crc32(array.dtype.name.encode())
        try:
            request = start(self._ranks[rank], self._tag | int(tag), as_bytes(array), check)
        except (PeerLost, ConnectError) as error:
            raise message.give_up(error, f"{doing} rank {rank}") from error
        message.add(request, array, doing, rank)
