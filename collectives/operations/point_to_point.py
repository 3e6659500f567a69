"""Messages between two ranks: straight code on the transport, beside the collectives and not ordered with them.

A receive from one rank, with one tag, into an array is a receive of the transport. Any other (from any rank, with any
tag, of unknown length) uses the transport's ability `AnySource`, which matches both kinds in the order in which they
were posted.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import Array, Target, as_numpy, as_view, flat, type_name
from collectives.execution import CallPosition, Executor
from collectives.numeric import is_integer
from collectives.operations.arguments import Arguments, check_pickler
from collectives.operations.envelope import OBJECT_CHECK, SENDABLE, Status, check_of, dtype_of
from collectives.operations.objects import Pickler, decode, encode, require_authenticated
from collectives.operations.work import Work
from transports.anysource import AnyRequest, AnySource, Arrival, Taken
from transports.base import Request, Transport
from transports.errors import (
    ClosedError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    ReentryError,
    RondeError,
    TransportError,
    Withdrawn,
)

MAX_USER_TAG: Final = 2**31 - 1
FAILURES: Final = (PeerLost, ConnectError, MismatchError)
"""The errors of a call of the transport that end the world: AbortSignal.fail makes the error for the caller."""

_OR_ANY: Final = "or None for any tag"
_ndarray: Final = np.ndarray


class Transfer(NamedTuple):
    """One request of a message, in one direction.

    doing     'send to rank 3', 'receive from any rank'
    peers     the ranks of the world that can complete it
    memory    the array that the transport uses; None if the transport allocates memory
    """

    request: Request
    doing: str
    peers: tuple[int, ...]
    memory: Array | None

    def position(self, executor: Executor) -> CallPosition:
        """The position of a wait for the request."""
        return _position(executor, self.doing, self.peers, id(self.request))

    def misfit(self, error: MismatchError) -> MismatchError:
        """The error of a message that does not fit the array."""
        memory = self.memory
        expected = "" if memory is None else f"expected {memory.size} elements of {memory.dtype}; "
        return MismatchError(f"{self.doing}: {expected}{error.message}", rank=error.rank, peer=error.peer)


def _position(executor: Executor, doing: str, peers: tuple[int, ...], step: int) -> CallPosition:
    return CallPosition(executor, 0, step, f"a call to {doing}", peers, peers[0] if len(peers) == 1 else None)


class Message(Work[Any]):
    """A message in flight. It progresses whenever any call of this rank waits; only with a callback does a thread wait
    for it alone.

    Any error ends it, in one way: `_settle`. Only a wait that gives up before the message's own timeout, and an
    interrupt, leave it in flight.
    """

    ends_by_itself = False

    def __init__(self, executor: Executor, timeout: float) -> None:
        super().__init__()
        self._executor = executor
        self._ended = False
        self._error: Exception | None = None
        self._withdrawn: Exception | None = None
        self._has_thread = False
        self._deadline = time.monotonic() + timeout
        self._transfers: list[Transfer] = []
        self._awaited: Transfer | None = None
        self._finish: Callable[[], Any] | None = None
        self._tell: Callable[[], None] | None = None

    def add(self, transfer: Transfer) -> None:
        """Add a request of the message."""
        self._transfers.append(transfer)

    def finish_with(self, finish: Callable[[], Any], tell: Callable[[], None] | None) -> None:
        """Once all requests have ended well, `finish` gives the result of `wait`. `tell` fills the caller's status."""
        self._finish = finish
        self._tell = tell

    @property
    def ended(self) -> bool:
        """True once it has ended, well or not, as `test` or `wait` has found."""
        return self._ended

    def test(self) -> bool:
        if self._ended:
            return True
        try:
            if not all(transfer.request.test() for transfer in self._transfers):
                return False
        except ReentryError:  # this thread is in the middle of another call
            return False
        except RondeError as error:  # that is for `wait` to raise
            self._settle(error)
        else:
            self._settle()
        return True

    def cancel(self) -> bool:
        """See Work. A receive is taken back by the transport."""
        return self.take_back(CancelledError("was cancelled"))

    def take_back(self, error: Exception) -> bool:
        """End a receive that has matched no message with an error, as `cancel` does."""
        if self._ended or len(self._transfers) != 1:
            return False
        transfer = self._transfers[0]
        self._withdrawn = type(error)(f"{transfer.doing}: {error}")  # another thread may wait, and raises it
        if not transfer.request.withdraw():
            return False
        self._error = self._withdrawn
        self._ended = True
        self.call_back()
        return True

    def position(self) -> CallPosition | None:
        """The transfer that `wait` waits for; None before it waits. From any thread."""
        transfer = self._awaited
        return None if transfer is None else transfer.position(self._executor)

    def wait(self, timeout: float | None = None) -> Any:
        self._executor.positions.add(self)
        try:
            now = time.monotonic()
            self._wait(self._deadline if timeout is None else min(self._deadline, now + self.seconds_of(timeout)))
        except BaseException as error:
            if not isinstance(error, RondeError):  # the message goes on
                self._executor.interrupted()
            raise
        finally:
            self._executor.positions.remove(self)
        return None if self._finish is None else self._finish()

    def add_done_callback(self, callback: Callable[[Work[Any]], object]) -> None:
        super().add_done_callback(callback)
        if not self._ended and not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._wait_for_callbacks, name="ronde message with a callback", daemon=True).start()

    def _wait_for_callbacks(self) -> None:
        with contextlib.suppress(RondeError, CancelledError):  # that is for `wait` to raise
            self._wait(self._deadline)

    def _wait(self, patience: float) -> None:
        if self._error is not None:
            raise self._error
        for transfer in self._transfers:
            self._awaited = transfer
            try:
                transfer.request.wait(patience)
            except ReentryError:  # the message goes on: only this thread cannot wait for it now
                raise
            except Withdrawn as error:
                raise self._withdrawn or error from None
            except RondeError as error:
                if isinstance(error, DeadlineExceeded) and time.monotonic() < self._deadline:
                    raise error.within(transfer.doing) from error  # it is still in flight
                raise self._fail(error, transfer) from error
        self._settle()

    def _fail(self, error: RondeError, transfer: Transfer) -> RondeError:
        """End the message because of an error of one of its requests; returns the error to raise. The communicator is
        aborted if a rank is lost or late: then the transport still owns the memory."""
        signal = self._executor.abort_signal
        if isinstance(error, PeerLost | ConnectError | DeadlineExceeded):
            self._error = signal.fail(error, transfer.doing)
        elif isinstance(error, MismatchError) and signal.failure is None:
            self._error = transfer.misfit(error)
        else:
            self._error = signal.told(error).within(transfer.doing)
        self._settle(error)
        return self._error

    def _settle(self, error: RondeError | None = None) -> None:
        """End the message: all requests have ended well, or one has failed with an error. Idempotent."""
        self._ended = True
        if self._tell is not None and (error is None or isinstance(error, MismatchError)):
            self._tell()
        self.call_back()

    def _over(self) -> bool:
        return self._ended


class Ended(Work[Any]):
    """A message that has ended well as it began."""

    ends_by_itself = False
    ended = True

    def __init__(self, result: Any) -> None:
        self._result = result

    def test(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> Any:
        return self._result

    def add_done_callback(self, callback: Callable[[Work[Any]], object]) -> None:
        self._callbacks = []
        super().add_done_callback(callback)

    def _over(self) -> bool:
        return True


class Waiting:
    """The position of a probe that waits."""

    def __init__(self, executor: Executor, doing: str, peers: tuple[int, ...]) -> None:
        self._position = _position(executor, doing, peers, id(self))

    def position(self) -> CallPosition | None:
        """The call that waits."""
        return self._position


class HostAccess:
    """The arrays of messages in the host's memory. The GPU room has one that brings arrays of GPUs there."""

    def array(self, x: Any, deadline: float, name: str = "x") -> Array:
        """`x` as a NumPy array, for reading. Raises TypeError; DeadlineExceeded if it does not arrive in time."""
        return as_numpy(x, name)

    def kind(self, x: Any, name: str = "x") -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array. Raises TypeError for anything else."""
        array = as_numpy(x, name)
        return array.shape, array.dtype

    def target(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None, name: str = "out"
    ) -> Target:
        """The place for a result. Raises as Target."""
        return Target(out, shape, dtype, like, name)


class PointToPoint:
    """The messages of one communicator. A message begins at once; its Work awaits it. The arguments are those of the
    Communicator's methods; `waits`: the caller waits for the message before anything else.

    A small message between plain arrays takes a short way, without request: the transport takes the whole frame, or has
    it, or has it in a moment (`AnySource.take`).
    """

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
        self._ability = transport.ability(AnySource)
        self._authenticated = False
        """True once that is known."""
        self._retired = ""
        self._in_flight: dict[int, weakref.ref[Message]] = {}
        self._begun = 0
        """Number of requests that were begun, or were about to be."""
        self._everyone = frozenset(ranks)
        self._numbers = {rank: number for number, rank in enumerate(ranks)}
        self._any_tag = range(tag, tag + MAX_USER_TAG + 1)

    def retire(self, state: str) -> None:
        """Take no more messages, and take back the receives that have matched none; `state` is the state that the
        errors tell. The first one is kept."""
        if self._retired:
            return
        self._retired = state
        if self._transport.failure is None:
            for found in list(self._in_flight.values()):
                message = found()
                if message is not None:
                    message.take_back(ClosedError(f"the communicator of rank {self._transport.rank} is {state}"))

    def check_open(self) -> None:
        """Raise ClosedError if no more messages are taken."""
        if self._retired:
            raise ClosedError(f"the communicator of rank {self._transport.rank} is {self._retired}")

    def begin(self, method: Callable[..., Message | Ended], *arguments: Any) -> Work[Any]:
        """Begin a message by one of the methods below. An interrupt after its first request has begun aborts the
        communicator: what comes next would go to a request that nobody waits for."""
        before = self._begun
        try:
            return method(self, False, *arguments)
        except BaseException as error:
            self._interrupted(error, self._begun != before)
            raise

    def run(self, method: Callable[..., Message | Ended], *arguments: Any) -> Any:
        """`begin` a message and wait for it. An interrupt before its end aborts the communicator."""
        before, message = self._begun, None
        try:
            message = method(self, True, *arguments)
            return message.wait()
        except BaseException as error:
            self._interrupted(error, self._begun != before if message is None else not message.ended)
            raise

    def _interrupted(self, error: BaseException, begun: bool) -> None:
        if not isinstance(error, RondeError):
            self._executor.interrupted()
            if begun:
                self._executor.left(error, "a message")

    def send(
        self, waits: bool, x: Any, dst: int, tag: int, timeout: float | None, synchronous: bool
    ) -> Message | Ended:
        if type(x) is _ndarray and x.dtype in SENDABLE and x.flags.c_contiguous:
            array: Array = x
        else:
            array = flat(self._access.array(x, time.monotonic() + self._arguments.timeout(timeout)))
        return self._send(dst, tag, as_view(array), check_of(array.dtype), timeout, synchronous, array)

    def send_object(
        self, waits: bool, obj: Any, dst: int, tag: int, timeout: float | None, synchronous: bool, pickler: Any
    ) -> Message | Ended:
        check_pickler(pickler)
        if not self._authenticated:
            self._check_authenticated()
        return self._send(dst, tag, encode(obj, "obj", pickler), OBJECT_CHECK, timeout, synchronous)

    def recv(
        self,
        waits: bool,
        x: Any,
        src: int | None,
        tag: int | None,
        timeout: float | None,
        status: Status | None,
        shorter: bool,
    ) -> Message | Ended:
        if x is None:
            return self._receive(waits, src, tag, None, None, timeout, status, self._array_of)
        finish: Callable[..., Any]
        if type(x) is _ndarray and x.dtype in SENDABLE and x.flags.c_contiguous and x.flags.writeable:
            memory: Array = x
            finish = lambda *_: x  # noqa: E731
        else:
            shape, dtype = self._access.kind(x)
            target = self._access.target(x, shape, dtype, name="x")
            memory, finish = target.flat, lambda *_: target.finish()
        view, check = as_view(memory), check_of(memory.dtype)
        if not shorter:
            return self._receive(waits, src, tag, view, check, timeout, status, finish, memory)

        def finish_shorter(arrival: Arrival, _: memoryview) -> Any:
            if arrival.check != check:
                raise self._misfit(arrival, f"elements of {memory.dtype} were expected")
            return finish()

        return self._receive(waits, src, tag, view, None, timeout, status, finish_shorter, memory)

    def recv_object(
        self, waits: bool, src: int | None, tag: int | None, timeout: float | None, status: Status | None, pickler: Any
    ) -> Message | Ended:
        check_pickler(pickler)
        if not self._authenticated:
            self._check_authenticated()
        finish = functools.partial(self._object_of, pickler)
        return self._receive(waits, src, tag, None, None, timeout, status, finish)

    def sendrecv(
        self, waits: bool, x: Any, dst: int, src: int | None, out: Any, tag: int, timeout: float | None
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
        full = self._tag | check_tag(tag)
        message, ranks = self._message(timeout), self._ranks
        for start, doing, rank, memory in (
            (self._transport.irecv, _receiving, source, target.flat),
            (self._transport.isend, _sending, dst, outgoing),
        ):
            request = self._start(start, doing, rank, ranks[rank], full, as_view(memory), check_of(memory.dtype))
            message.add(Transfer(request, doing(rank), (ranks[rank],), memory))
        message.finish_with(target.finish, None)
        return message

    def probe(self, src: int | None, tag: int | None, timeout: float | None) -> Status:
        seconds = self._arguments.timeout(timeout)
        found = self._probe(src, tag, time.monotonic() + seconds, wait=True)
        if found is None:
            with_tag = "any tag" if tag is None else f"tag {tag}"
            late = f"probe: no message from {_sender(src)} with {with_tag} came within {seconds} s"
            raise DeadlineExceeded(late, rank=self._transport.rank)
        return found

    def iprobe(self, src: int | None, tag: int | None) -> Status | None:
        return self._probe(src, tag, time.monotonic(), wait=False)

    # ---- how they run

    def _message(self, timeout: float | None) -> Message:
        self.check_open()
        return self._tracked(self._arguments.timeout(timeout))

    def _tracked(self, seconds: float) -> Message:
        """A new message, which `retire` finds as long as anybody has it."""
        message, forget = Message(self._executor, seconds), self._in_flight.pop
        key = id(message)
        self._in_flight[key] = weakref.ref(message, lambda _: forget(key, None))
        return message

    def _check_authenticated(self) -> None:
        require_authenticated(self._executor)
        self._authenticated = True

    def _send(
        self,
        dst: int,
        tag: int,
        view: memoryview,
        check: int,
        timeout: float | None,
        synchronous: bool,
        memory: Array | None = None,
    ) -> Message | Ended:
        if type(dst) is not int or not 0 <= dst < len(self._ranks):
            dst = self._arguments.root(dst, "dst")
        if type(tag) is not int or not 0 <= tag <= MAX_USER_TAG:
            tag = check_tag(tag)
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        if self._retired:
            self.check_open()
        start = self._any_source().issend if synchronous else self._transport.isend
        request = self._start(start, _sending, dst, self._ranks[dst], self._tag | tag, view, check)
        if has_ended(request):
            return Ended(None)
        message = Message(self._executor, seconds)
        message.add(Transfer(request, _sending(dst), (self._ranks[dst],), memory))
        return message

    def _start(self, start: Callable[..., Any], doing: Callable[[Any], str], rank: int | None, *arguments: Any) -> Any:
        """The request that `start` begins with these arguments, in the name of a call with one rank or any."""
        self._begun += 1
        try:
            return start(*arguments)
        except FAILURES as error:
            raise self._executor.abort_signal.fail(error, doing(rank)) from error

    def _receive(
        self,
        waits: bool,
        src: int | None,
        tag: int | None,
        view: memoryview | None,
        check: int | None,
        timeout: float | None,
        status: Status | None,
        finish: Callable[[Arrival, memoryview], Any],
        memory: Array | None = None,
    ) -> Message | Ended:
        """Receive into `view`, a message with this check and length; or into new memory, or with None one that may be
        shorter. `finish` makes the result of what has come."""
        if src is not None and (type(src) is not int or not 0 <= src < len(self._ranks)):
            src = self._arguments.root(src, "src")
        if tag is not None and (type(tag) is not int or not 0 <= tag <= MAX_USER_TAG):
            tag = check_tag(tag, _OR_ANY)
        if status is not None and not isinstance(status, Status):
            raise TypeError(f"status={status!r}: must be a Status, not {type_name(status)}")
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        if self._retired:
            self.check_open()
        ability = self._ability
        if waits and ability is not None:
            first = self._tag | (tag or 0)
            tags = self._any_tag if tag is None else range(first, first + 1)
            sources = self._ranks if src is None else (self._ranks[src],)
            found: Taken | None = self._start(ability.take, _receiving, src, sources, tags, view, check)
            if found is not None:
                arrival = Arrival(found.source, found.tag, found.check, len(found.view))
                if status is not None:
                    self._fill(status, arrival)
                return Ended(finish(arrival, found.view))
        message = self._tracked(seconds)
        if src is not None and tag is not None and view is not None and check is not None:
            self._receive_one(message, src, tag, view, check, status, finish, memory)
        else:
            self._receive_any(message, src, tag, view, check, status, finish, memory)
        return message

    def _receive_one(
        self,
        message: Message,
        src: int,
        tag: int,
        view: memoryview,
        check: int,
        status: Status | None,
        finish: Callable[[Arrival, memoryview], Any],
        memory: Array | None,
    ) -> None:
        """Begin a receive that needs no ability of the transport."""
        arrival = Arrival(self._ranks[src], self._tag | tag, check, len(view))
        request = self._start(self._transport.irecv, _receiving, src, arrival.source, arrival.tag, view, check)
        message.add(Transfer(request, _receiving(src), (arrival.source,), memory))

        def tell() -> None:
            if status is not None:
                self._fill(status, arrival)

        message.finish_with(functools.partial(finish, arrival, view), None if status is None else tell)

    def _receive_any(
        self,
        message: Message,
        src: int | None,
        tag: int | None,
        view: memoryview | None,
        check: int | None,
        status: Status | None,
        finish: Callable[[Arrival, memoryview], Any],
        memory: Array | None,
    ) -> None:
        """Begin a receive that only the ability can carry out."""
        start, sources, tags = self._any_source().irecv_any, self._sources(src), self._tags(tag)
        request: AnyRequest = self._start(start, _receiving, src, sources, tags, view, check)
        message.add(Transfer(request, _receiving(src), self._peers(src), memory))

        def tell() -> None:
            if status is not None and request.arrival is not None:
                self._fill(status, request.arrival)

        def end() -> Any:
            arrival = request.arrival
            assert arrival is not None
            return finish(arrival, request.view)

        message.finish_with(end, tell)

    def _array_of(self, arrival: Arrival, view: memoryview) -> Array:
        """The array in a received message. Raises MismatchError for an object."""
        dtype = dtype_of(arrival.check)
        if dtype is None:
            raise self._misfit(arrival, "an array was expected; recv_object receives objects")
        return np.frombuffer(view, np.uint8).view(dtype)

    def _object_of(self, pickler: Pickler | None, arrival: Arrival, view: memoryview) -> Any:
        """The object in a received message. Raises MismatchError for an array."""
        if arrival.check != OBJECT_CHECK:
            raise self._misfit(arrival, "an object was expected; recv receives arrays")
        return decode(view, pickler)

    def _misfit(self, arrival: Arrival, expected: str) -> MismatchError:
        status = self._fill(Status(), arrival)
        return MismatchError(f"{status}; {expected}", rank=self._transport.rank, peer=arrival.source)

    def _probe(self, src: int | None, tag: int | None, deadline: float, *, wait: bool) -> Status | None:
        sources, tags, ability = self._sources(src), self._tags(tag), self._any_source()
        self.check_open()
        positions, abort_signal = self._executor.positions, self._executor.abort_signal
        doing = f"probe for a message from {_sender(src)}"
        waiting = Waiting(self._executor, doing, self._peers(src))
        if wait:
            positions.add(waiting)
        try:
            arrival = ability.probe(sources, tags, deadline)
            if arrival is None and wait and not ability.reachable(sources):
                text = f"all ranks that could send the message have closed: {_sender(src)}"
                raise PeerLost(text, rank=self._transport.rank, peer=None if src is None else self._ranks[src])
        except FAILURES as error:
            raise abort_signal.fail(error, doing) from error
        finally:
            positions.remove(waiting)
        return None if arrival is None else self._fill(Status(), arrival)

    def _fill(self, status: Status, arrival: Arrival) -> Status:
        status.fill(self._numbers[arrival.source], arrival.tag & MAX_USER_TAG, dtype_of(arrival.check), arrival.nbytes)
        return status

    def _sources(self, src: int | None) -> frozenset[int]:
        return self._everyone if src is None else frozenset((self._ranks[self._arguments.root(src, "src")],))

    def _peers(self, src: int | None) -> tuple[int, ...]:
        """The ranks of the world that can send the message."""
        return self._ranks if src is None else (self._ranks[src],)

    def _tags(self, tag: int | None) -> range:
        if tag is None:
            return self._any_tag
        first = self._tag | check_tag(tag, _OR_ANY)
        return range(first, first + 1)

    def _any_source(self) -> AnySource:
        ability = self._ability
        if ability is None:
            name = self._transport.name
            text = f"transport {name!r} can only receive from one rank with one tag into an array: give x, src and tag"
            raise TransportError(text, rank=self._transport.rank)
        return ability


def check_tag(tag: int, otherwise: str = "") -> int:
    """A tag as an int. Raises ValueError for a bad one; `otherwise` tells what else is allowed."""
    if (type(tag) is not int and not is_integer(tag)) or not 0 <= tag <= MAX_USER_TAG:
        raise ValueError(f"tag={tag!r}: must be an int, 0 to 2**31 - 1{', ' if otherwise else ''}{otherwise}")
    return int(tag)


def has_ended(request: Request) -> bool:
    """True if a request has ended well. Errors are for its wait."""
    try:
        return request.test()
    except RondeError:
        return False


def _sending(dst: int) -> str:
    return f"send to rank {dst}"


def _receiving(src: int | None) -> str:
    return f"receive from {_sender(src)}"


def _sender(src: int | None) -> str:
    return "any rank" if src is None else f"rank {src}"
