"""A group of ranks with an NCCL communicator: native collectives, sends and receives on device memory.

The communicator is non-blocking: a call returns at once, and is polled until NCCL has begun it. A lock is held in every
call, and never while waiting, so that whoever finds the job aborted can abort the communicator: NCCL allows that only
when no thread is in one of its calls. Nothing is left to `__del__`.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from transports.base import FIRST_SLICE, LAST_SLICE, Request
from transports.errors import ClosedError, DeadlineExceeded, PeerLost, RondeError, TransportError
from transports.native import NativeGroup
from transports.nccl.api import IN_PROGRESS, REMOTE, SUCCESS, SYSTEM, NcclApi, NcclError
from transports.nccl.bootstrap import Meeting
from transports.nccl.streams import Flights
from transports.nccl.types import UINT8, combination, divides, premultiplies

if TYPE_CHECKING:
    from transports.nccl.companion import NcclCollectives

_FROM_OUTSIDE: Final = (SYSTEM, REMOTE)
"""Results that NCCL gives when another rank is gone."""
_EMPTY: Final = memoryview(b"")


class NcclGroup(NativeGroup):
    """See NativeGroup; made by NcclCollectives.join."""

    def __init__(
        self,
        home: NcclCollectives,
        api: NcclApi,
        ranks: tuple[int, ...],
        device: int,
        tag: int,
        meeting: Meeting,
    ) -> None:
        """The communicator is begun; `await_made` waits until it is made. Raises NcclError."""
        self._home = home
        self._api = api
        self._tag = tag
        self._transport = transport = home.transport
        self._version = meeting.version
        self._capability = meeting.capability
        self.rank = ranks.index(transport.rank)
        self.size = len(ranks)
        self.device = device
        self._left = ranks[(self.rank - 1) % self.size]
        self._right = ranks[(self.rank + 1) % self.size]
        self._lock = threading.RLock()
        self._flights = Flights(api)
        self._factors: dict[tuple[int, float], int] = {}
        self._greetings: list[Request] = []
        self._deadline = 0.0
        self._doing = "no call"
        self._together = False
        self._comm: Any = None
        api.use(device)
        self._comm = api.init(self.size, self.rank, meeting.unique_id)

    # ---- what can be done

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
                self._flights.land()  # here too, or a program that calls much would keep much
            except (NcclError, RondeError) as error:
                raise self._give_up(self._explained(error)) from error
        if self.size > 1:
            self._greetings = [
                self._transport.irecv(self._left, self._tag, memoryview(bytearray()), check),
                self._transport.isend(self._right, self._tag, _EMPTY, check),
            ]

    def leave(self, stream: int, keep: object) -> None:
        greetings, self._greetings = self._greetings, []
        with self._lock:
            self._check()
            with self._failing():
                self._flights.add(stream, self._deadline, self._doing, keep, greetings)
        self._home.watch()

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
                        with contextlib.suppress(NcclError):  # what was begun cannot be taken back, only aborted
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

    # ---- NCCL, its failures, and the end

    def _call(self, function: Callable[..., None], *args: int) -> None:
        """One call of NCCL; it has begun when this returns, or is part of what is done together."""
        if self._together:
            function(self._comm, *args)  # the lock is held, and the failures are seen to, by `together`
            return
        with self._lock:
            self._check()
            with self._failing():
                function(self._comm, *args)
        self._settle()

    def await_made(self, attend: Callable[[], None], deadline: float) -> None:
        """Wait until the communicator is made. Raises NcclError, DeadlineExceeded, and what `attend`, which is called
        now and then, raises; it is to be abandoned then."""
        pause = FIRST_SLICE
        while (code := self._api.async_error(self._comm)) == IN_PROGRESS:
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("NCCL did not make a communicator in time", rank=self._transport.rank)
            time.sleep(pause)  # NCCL tells only those who ask
            pause = min(2 * pause, LAST_SLICE)
            attend()
        if code != SUCCESS:
            raise NcclError(code, self._api.error_text(code))

    def _settle(self) -> None:
        """Wait until NCCL has begun what it was last given. Raises as the methods of a call do."""
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
            self._home.attend()

    def look(self) -> bool:
        """What the watch does again and again: let go of what is done, and give up if something is wrong, which the
        next call then raises. True if something came to its end."""
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
                landed = self._flights.land()
                late = self._flights.late()
            except (NcclError, RondeError) as error:
                self._give_up(self._explained(error))
                return True
        if late is not None:
            self._give_up(DeadlineExceeded(f"NCCL did not end in time: {late.doing}", rank=self._transport.rank))
        return landed

    @property
    def busy(self) -> bool:
        """True while something that was enqueued is not known to be done."""
        return bool(self._flights)

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
        """Give up if what is within fails."""
        try:
            yield
        except NcclError as error:
            raise self._give_up(self._explained(error)) from error
        except RondeError:
            raise
        except BaseException as error:
            self._give_up(TransportError(f"left in the middle of {self._doing}: {error!r}", rank=self._transport.rank))
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
        """Abort the transport and the communicator; what to raise for it."""
        self._transport.abort(cause)
        with self._lock:
            self._abort()
        return copy.copy(self._transport.failure or cause)

    def _abort(self) -> None:
        """Abort the communicator, with the lock held, so that nothing that is enqueued waits for other ranks."""
        comm, self._comm = self._comm, None
        if comm is not None:
            with contextlib.suppress(NcclError):  # what for: it is gone either way
                self._api.abort(comm)
            with contextlib.suppress(NcclError):
                self._flights.drop()

    def abandon(self) -> None:
        """Abort the communicator alone; the transport beneath is well."""
        with self._lock:
            self._abort()

    def close(self, deadline: float) -> None:
        self._home.part(self)
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
        """Wait while something holds of the communicator, or until it is gone. Raises DeadlineExceeded, NcclError."""
        pause = FIRST_SLICE
        while True:
            self.look()
            with self._lock:
                if self._comm is None or not holds():
                    return
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(f"NCCL did not end in time: {self._doing}", rank=self._transport.rank)
            time.sleep(pause)
            pause = min(2 * pause, LAST_SLICE)
            with contextlib.suppress(RondeError):  # the next look notices it
                self._home.attend()


def _parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each part begins, and how large it is."""
    return zip(accumulate(sizes, initial=0), sizes, strict=False)
