"""send, recv and sendrecv: straight code on the transport, beside the collectives and not ordered with them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arguments import JobMaker
from collectives.buffers import Array, Target, as_bytes, as_numpy, flat
from collectives.progress import Work
from transports.base import Request, Transport
from transports.errors import DeadlineExceeded, MismatchError, RondeError

MAX_USER_TAG: Final = 2**31 - 1


class Message(Work[Any]):
    """A message in flight. It moves along whenever any call of this rank waits; nothing waits on its behalf."""

    def __init__(self, abort: Callable[[RondeError], None], timeout: float, target: Target | None) -> None:
        self._abort = abort
        self._deadline = time.monotonic() + timeout
        self._target = target
        self._parts: list[tuple[Request, Array, str, int]] = []

    def add(self, request: Request, array: Array, doing: str, rank: int) -> None:
        """A request that belongs to it, with the memory it uses."""
        self._parts.append((request, array, doing, rank))

    def test(self) -> bool:
        try:
            return all(request.test() for request, *_ in self._parts)
        except RondeError:
            return True

    def wait(self, timeout: float | None = None) -> Any:
        patience = self._deadline if timeout is None else min(self._deadline, time.monotonic() + timeout)
        for request, array, doing, rank in self._parts:
            try:
                request.wait(patience)
            except MismatchError as error:
                raise MismatchError(
                    f"{doing} rank {rank}: expected {array.size} elements of {array.dtype}; {error.message}",
                    rank=error.rank,
                    peer=rank,
                ) from error
            except DeadlineExceeded as error:
                failure = error.within(f"{doing} rank {rank}")
                if time.monotonic() >= self._deadline:  # the memory is still lent out, so there is no going on
                    self._abort(failure)
                raise failure from error
        return None if self._target is None else self._target.finish()


class PointToPoint:
    """The messages of one communicator. A message is begun at once; its Work awaits it."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        maker: JobMaker,
        abort: Callable[[RondeError], None],
    ) -> None:
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._maker = maker
        self._abort = abort

    def send(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        """Send `x` to rank `dst`, which must call recv with an array of the same dtype and number of elements.

        tag   0 to 2**31 - 1; messages between two ranks with one tag arrive in order, with different tags in any
        """
        array = flat(as_numpy(x))
        self._maker.check_rank(dst, "dst")
        message = self._message(None, tag, timeout)
        message.add(self._begin(self._transport.isend, dst, tag, array), array, "send to", dst)
        return message

    def recv(self, x: Any, src: int, *, tag: int = 0, timeout: float | None = None) -> Message:
        """Receive a message from rank `src` into the array `x`, and return `x`.

        Raises MismatchError if the message has another dtype or number of elements: it is lost, the contents of `x`
        are undefined, and the communicator stays usable.
        """
        shaped = as_numpy(x)
        self._maker.check_rank(src, "src")
        target = Target(x, shaped.shape, shaped.dtype)
        message = self._message(target, tag, timeout)
        message.add(self._begin(self._transport.irecv, src, tag, target.flat), target.flat, "receive from", src)
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
        array = as_numpy(x)
        source = dst if src is None else src
        shape, dtype = (array.shape, array.dtype) if out is None else (np.shape(out), as_numpy(out, "out").dtype)
        self._maker.check_rank(dst, "dst")
        self._maker.check_rank(source, "src")
        target = Target(out, shape, dtype, like=x)
        outgoing = flat(array)
        if out is not None and np.may_share_memory(outgoing, target.flat):
            outgoing = outgoing.copy()
        message = self._message(target, tag, timeout)
        message.add(self._begin(self._transport.irecv, source, tag, target.flat), target.flat, "receive from", source)
        message.add(self._begin(self._transport.isend, dst, tag, outgoing), outgoing, "send to", dst)
        return message

    def _message(self, target: Target | None, tag: int, timeout: float | None) -> Message:
        if not isinstance(tag, (int, np.integer)) or isinstance(tag, bool) or not 0 <= tag <= MAX_USER_TAG:
            raise ValueError(f"tag={tag!r}: must be an int, 0 to 2**31 - 1")
        return Message(self._abort, self._maker.timeout(timeout), target)

    def _begin(
        self, start: Callable[[int, int, memoryview, int], Request], rank: int, tag: int, array: Array
    ) -> Request:
        check = zlib.crc32(array.dtype.name.encode())
        return start(self._ranks[rank], self._tag | int(tag), as_bytes(array), check)
