"""A group of ranks with an NCCL communicator: native collectives, sends and receives on device memory.

The communicator is non-blocking: a call returns at once, and is polled until NCCL has begun it. A lock is held in every
call of NCCL, but not while waiting, so that any thread can abort the communicator: NCCL allows an abort only when no
thread is in one of its calls. Nothing is left to `__del__`.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from transports.base import FIRST_SLICE, LAST_SLICE, Request, Transport
from transports.errors import ClosedError, DeadlineExceeded, PeerLost, RondeError, TransportError, described
from transports.native import NativeGroup
from transports.nccl.api import IN_PROGRESS, REMOTE, SUCCESS, SYSTEM, NcclApi, NcclError
from transports.nccl.bootstrap import Meeting
from transports.nccl.enqueued import EnqueuedCalls
from transports.nccl.types import UINT8, combination, divides, premultiplies

_FROM_OUTSIDE: Final = (SYSTEM, REMOTE)
"""Results of NCCL after the death of another rank."""
_EMPTY: Final = memoryview(b"")


class Owner(Protocol):
    """The owner of a group. Its thread polls the calls that the group has enqueued."""

    transport: Transport

    def watch(self) -> None:
        """Begin to poll the group after a call was enqueued."""

    def unwatch(self, group: NcclGroup) -> None:
        """Stop polling a group."""

    def poll(self) -> None:
        """Make progress on the transport. Raises its first failure."""


class NcclGroup(NativeGroup):
    """See NativeGroup; made by NcclCollectives.join."""

    def __init__(
        self,
        owner: Owner,
        api: NcclApi,
        ranks: tuple[int, ...],
        device: int,
        tag: int,
        meeting: Meeting,
    ) -> None:
        """Begin to make the communicator; `await_made` waits for it. Raises NcclError."""
        self._owner = owner
        self._api = api
        self._tag = tag
        self._transport = transport = owner.transport
        self._version = meeting.version
        self._capability = meeting.capability
        self.rank = ranks.index(transport.rank)
        self.size = len(ranks)
        self.device = device
        self._left = ranks[(self.rank - 1) % self.size]
        self._right = ranks[(self.rank + 1) % self.size]
        self._lock = threading.RLock()
        self._enqueued = EnqueuedCalls(api)
        self._factors: dict[tuple[int, float], int] = {}
        self._check_frames: list[Request] = []
        self._deadline = 0.0
        self._doing = "no call"
        self._together = False
        self._comm: Any = None
        api.use(device)
        self._comm = api.init(self.size, self.rank, meeting.unique_id)

    # ---- supported operations

    def obstacle(self, collective: str, dtype: str, op: str | None) -> str:
        if op is None:
            return ""
        found = combination(dtype, op, self._version, self._capability)
        return found if isinstance(found, str) else ""

    def divides(self, dtype: str) -> bool:
        return divides(dtype)

    def premultiplies(self, dtype: str, op: str) -> bool:
        return premultiplies(dtype, op)

    # ---- a call

    def enter(self, check: int, deadline: float, doing: str) -> None:
        self._deadline, self._doing = deadline, doing
        with self._lock:
            self._check()
            try:
                self._enqueued.release_completed()  # here too, so that frequent calls do not keep many arrays
            except (NcclError, RondeError) as error:
                raise self._give_up(self._explained(error)) from error
        if self.size > 1:
            self._check_frames = [
                self._transport.irecv(self._left, self._tag, memoryview(bytearray()), check),
                self._transport.isend(self._right, self._tag, _EMPTY, check),
            ]

    def leave(self, stream: int, keep: object) -> None:
        check_frames, self._check_frames = self._check_frames, []
        with self._lock:
            self._check()
            with self._failing():
                self._enqueued.add(stream, self._deadline, self._doing, keep, check_frames)
        self._owner.watch()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._lock:
            self._check()
            self._together = True
            try:
                with self._failing():
                    self._api.group_start()
                    try:
                        yield
                    except BaseException:
                        with contextlib.suppress(NcclError):  # a begun call can only be aborted
                            self._api.group_end()
                        raise
                    self._api.group_end()
            finally:
                self._together = False
        self._settle()

    def send(self, peer: int, source: int, nbytes: int, stream: int) -> None:
        self._call(self._api.send, source, nbytes, UINT8, peer, stream)

    def receive(self, peer: int, target: int, nbytes: int, stream: int) -> None:
        self._call(self._api.recv, target, nbytes, UINT8, peer, stream)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int, factor: float | None = None
    ) -> None:
        kind, number, width = self._combination(dtype, op, factor)
        self._call(self._api.all_reduce, source, target, count * width, kind, number, stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int, factor: float | None
    ) -> None:
        kind, number, width = self._combination(dtype, op, factor)
        self._call(self._api.reduce, source, target, count * width, kind, number, root, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int, factor: float | None = None
    ) -> None:
        kind, number, width = self._combination(dtype, op, factor)
        self._call(self._api.reduce_scatter, source, target, count * width, kind, number, stream)

    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        self._call(self._api.broadcast, source, target, nbytes, UINT8, root, stream)

    def all_gather(self, source: int, target: int, sizes: Sequence[int], stream: int) -> None:
        if len(set(sizes)) == 1:
            self._call(self._api.all_gather, source, target, sizes[0], UINT8, stream)
            return
        with self.together():
            for root, (start, nbytes) in enumerate(_parts(sizes)):
                if nbytes:
                    self.broadcast(source, target + start, nbytes, root, stream)

    def gather(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        with self.together():
            if sizes[self.rank]:
                self.send(root, source, sizes[self.rank], stream)
            for peer, (start, nbytes) in enumerate(_parts(sizes)):
                if self.rank == root and nbytes:
                    self.receive(peer, target + start, nbytes, stream)

    def scatter(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        with self.together():
            for peer, (start, nbytes) in enumerate(_parts(sizes)):
                if self.rank == root and nbytes:
                    self.send(peer, source + start, nbytes, stream)
            if sizes[self.rank]:
                self.receive(root, target, sizes[self.rank], stream)

    def alltoall(self, source: int, target: int, sent: Sequence[int], received: Sequence[int], stream: int) -> None:
        with self.together():
            for peer, (start, nbytes) in enumerate(_parts(sent)):
                if nbytes:
                    self.send(peer, source + start, nbytes, stream)
            for peer, (start, nbytes) in enumerate(_parts(received)):
                if nbytes:
                    self.receive(peer, target + start, nbytes, stream)

    def _combination(self, dtype: str, op: str, factor: float | None) -> tuple[int, int, int]:
        found = combination(dtype, op, self._version, self._capability)
        if isinstance(found, str):
            raise TypeError(found)
        if factor is None:
            return found
        scale = factor / self.size if op == "average" else factor
        number = self._factors.get((found.kind, scale))
        if number is None:
            with self._lock:
                self._check()
                with self._failing():
                    number = self._api.premultiplied_sum(self._comm, scale, found.kind)
            self._factors[found.kind, scale] = number
        return found.kind, number, found.width

    # ---- calls of NCCL, failures, close

    def _call(self, function: Callable[..., None], *args: int) -> None:
        """One call of NCCL. It has begun on return, or is a part of the group of calls of `together`."""
        if self._together:
            function(self._comm, *args)  # `together` holds the lock and handles failures
            return
        with self._lock:
            self._check()
            with self._failing():
                function(self._comm, *args)
        self._settle()

    def await_made(self, poll: Callable[[], None], deadline: float) -> None:
        """Wait until the communicator is made, calling `poll` periodically. Raises NcclError, DeadlineExceeded, and the
        errors of `poll`; then abandon the group."""
        pause = FIRST_SLICE
        while (code := self._api.async_error(self._comm)) == IN_PROGRESS:
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("NCCL did not make a communicator in time", rank=self._transport.rank)
            time.sleep(pause)  # NCCL offers no event to wait for
            pause = min(2 * pause, LAST_SLICE)
            poll()
        if code != SUCCESS:
            raise NcclError(code, self._api.error_text(code))

    def _settle(self) -> None:
        """Wait until NCCL has begun the last call. Raises as the methods of a call do."""
        pause = FIRST_SLICE
        while True:
            with self._lock:
                self._check()
                with self._failing():
                    code = self._api.async_error(self._comm)
                    if code not in (SUCCESS, IN_PROGRESS):
                        raise NcclError(code, self._api.error_text(code))
            if code == SUCCESS:
                return
            if time.monotonic() >= self._deadline:
                raise self._give_up(
                    DeadlineExceeded(f"NCCL did not begin in time: {self._doing}", rank=self._transport.rank)
                )
            time.sleep(pause)
            pause = min(2 * pause, LAST_SLICE)
            self._owner.poll()

    def poll(self) -> bool:
        """Release completed calls, and abort after a failure, which the next call raises. True if a call ended. The
        watch thread calls it periodically."""
        with self._lock:
            if self._comm is None:
                return False
            if self._transport.failure is not None:
                self._abort()
                return True
            try:
                code = self._api.async_error(self._comm)
                if code not in (SUCCESS, IN_PROGRESS):
                    raise NcclError(code, self._api.error_text(code))
                released = self._enqueued.release_completed()
                late = self._enqueued.overdue()
            except (NcclError, RondeError) as error:
                self._give_up(self._explained(error))
                return True
        if late is not None:
            self._give_up(DeadlineExceeded(f"NCCL did not end in time: {late.doing}", rank=self._transport.rank))
        return released

    @property
    def busy(self) -> bool:
        """True while an enqueued call is not known to be complete."""
        return bool(self._enqueued)

    def _check(self) -> None:
        """Raises the transport's first failure, or ClosedError."""
        failure = self._transport.failure
        if failure is not None:
            self._abort()
            raise copy.copy(failure)
        if self._comm is None:
            raise ClosedError("the NCCL communicator was closed", rank=self._transport.rank)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Abort if the block fails."""
        try:
            yield
        except NcclError as error:
            raise self._give_up(self._explained(error)) from error
        except RondeError:
            raise
        except BaseException as error:
            text = f"left in the middle of {self._doing}: {described(error)}"
            self._give_up(TransportError(text, rank=self._transport.rank))
            raise

    def _explained(self, error: NcclError | RondeError) -> RondeError:
        """A failure in Ronde's terms."""
        if isinstance(error, RondeError):
            return error
        more = ""
        with contextlib.suppress(NcclError):
            more = self._api.last_error(self._comm)
        text = f"NCCL: {error}{f' ({more})' if more else ''}, {self._doing}"
        kind = PeerLost if error.code in _FROM_OUTSIDE else TransportError
        return kind(text, rank=self._transport.rank)

    def _give_up(self, cause: RondeError) -> RondeError:
        """Abort the transport and the communicator; return the error to raise."""
        self._transport.abort(cause)
        with self._lock:
            self._abort()
        return copy.copy(self._transport.failure or cause)

    def _abort(self) -> None:
        """Abort the communicator, so that no enqueued call waits for other ranks. Call it with the lock held."""
        comm, self._comm = self._comm, None
        if comm is not None:
            with contextlib.suppress(NcclError):  # the communicator is released in any case
                self._api.abort(comm)
            with contextlib.suppress(NcclError):
                self._enqueued.clear()

    def forget(self) -> None:
        """Drop the communicator in a forked child, without a call of NCCL or CUDA."""
        self._lock = threading.RLock()
        self._comm = None
        self._enqueued = EnqueuedCalls(self._api)

    def abandon(self) -> None:
        """Abort the communicator, but not the transport."""
        with self._lock:
            self._abort()

    def close(self, deadline: float) -> None:
        self._owner.unwatch(self)
        self._doing = "closing an NCCL communicator"
        try:
            self._wait_while(lambda: self.busy, deadline)
            with self._lock:
                if self._comm is not None:
                    self._api.finalize(self._comm)
            self._wait_while(lambda: self._api.async_error(self._comm) == IN_PROGRESS, deadline)
            with self._lock:
                if self._comm is not None:
                    self._api.destroy(self._comm)
                    self._comm = None
        except NcclError as error:
            raise self._explained(error) from error
        finally:
            self.abandon()

    def _wait_while(self, holds: Callable[[], bool], deadline: float) -> None:
        """Wait while `holds()` is true, or until the communicator is gone. Raises DeadlineExceeded, NcclError."""
        pause = FIRST_SLICE
        while True:
            self.poll()
            with self._lock:
                if self._comm is None or not holds():
                    return
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(f"NCCL did not end in time: {self._doing}", rank=self._transport.rank)
            time.sleep(pause)
            pause = min(2 * pause, LAST_SLICE)
            with contextlib.suppress(RondeError):  # the next `self.poll` handles it
                self._owner.poll()


def _parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and size of each part."""
    return zip(accumulate(sizes, initial=0), sizes, strict=False)
