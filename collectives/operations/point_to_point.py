"""Messages between two ranks: straight code on the transport, beside the collectives and not ordered with them.

A receive from one rank, with one tag, into an array is a receive of the transport. Any other (from any rank, with any
tag, of unknown length) uses the transport's ability `AnySource`, which matches both kinds in the order in which they
were posted.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import Array, Target, as_bytes, as_numpy, flat
from collectives.execution import CallPosition, Executor
from collectives.operations.arguments import Arguments
from collectives.operations.envelope import OBJECT_CHECK, Status, check_of, dtype_of
from collectives.operations.objects import encode, require_authenticated
from collectives.operations.work import Work
from transports.anysource import AnyRequest, AnySource, Arrival
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
)

MAX_USER_TAG: Final = 2**31 - 1


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
        self._error: RondeError | None = None
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

    def position(self) -> CallPosition | None:
        """The transfer that `wait` waits for; None before it waits. From any thread."""
        transfer = self._awaited
        return None if transfer is None else transfer.position(self._executor)

    def wait(self, timeout: float | None = None) -> Any:
        self._executor.positions.add(self)
        try:
            self._wait(self._deadline if timeout is None else min(self._deadline, time.monotonic() + timeout))
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
        with contextlib.suppress(RondeError):  # that is for `wait` to raise
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
            self._error = error.within(transfer.doing)
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
        self._begun = 0
        """Number of requests that were begun, or were about to be."""
        self._everyone = frozenset(ranks)
        self._numbers = {rank: number for number, rank in enumerate(ranks)}

    def retire(self, state: str) -> None:
        """Take no more messages; `state` is the state that the errors tell."""
        self._retired = state

    def begin(self, method: Callable[..., Message], *arguments: Any) -> Message:
        """Begin a message by one of the methods below. An interrupt after its first request has begun aborts the
        communicator: what comes next would go to a request that nobody waits for."""
        before = self._begun
        try:
            return method(self, *arguments)
        except BaseException as error:
            self._interrupted(error, self._begun != before)
            raise

    def run(self, method: Callable[..., Message], *arguments: Any) -> Any:
        """`begin` a message and wait for it. An interrupt before its end aborts the communicator."""
        before, message = self._begun, None
        try:
            message = method(self, *arguments)
            return message.wait()
        except BaseException as error:
            self._interrupted(error, self._begun != before if message is None else not message.ended)
            raise

    def _interrupted(self, error: BaseException, begun: bool) -> None:
        if not isinstance(error, RondeError):
            self._executor.interrupted()
            if begun:
                self._executor.left(error, "a message")

    def send(self, x: Any, dst: int, tag: int, timeout: float | None) -> Message:
        array = flat(self._access.array(x, time.monotonic() + self._arguments.timeout(timeout)))
        self._arguments.root(dst, "dst")
        tag = check_tag(tag)
        message = self._message(timeout)
        self._begin_send(message, dst, tag, array, check_of(array.dtype))
        return message

    def send_object(self, obj: Any, dst: int, tag: int, timeout: float | None) -> Message:
        require_authenticated(self._executor)
        self._arguments.root(dst, "dst")
        tag = check_tag(tag)
        message = self._message(timeout)
        self._begin_send(message, dst, tag, encode(obj, "obj"), OBJECT_CHECK)
        return message

    def recv(self, x: Any, src: int | None, tag: int | None, timeout: float | None, status: Status | None) -> Message:
        if x is None:
            return self._receive_any(src, tag, timeout, status, self._array_of)
        shape, dtype = self._access.kind(x)
        if src is not None:
            self._arguments.root(src, "src")
        target = self._access.target(x, shape, dtype)
        if src is None or tag is None:
            return self._receive_any(src, tag, timeout, status, lambda _: target.finish(), target.flat)
        tag = check_tag(tag, "or None for any tag")
        message = self._message(timeout)
        self._begin_receive(message, src, tag, target.flat)
        tell = None if status is None else functools.partial(status.fill, int(src), tag, dtype, target.flat.nbytes)
        message.finish_with(target.finish, tell)
        return message

    def recv_object(self, src: int | None, tag: int | None, timeout: float | None, status: Status | None) -> Message:
        require_authenticated(self._executor)
        return self._receive_any(src, tag, timeout, status, self._object_of)

    def sendrecv(self, x: Any, dst: int, src: int | None, out: Any, tag: int, timeout: float | None) -> Message:
        array = self._access.array(x, time.monotonic() + self._arguments.timeout(timeout))
        source = dst if src is None else src
        shape, dtype = (array.shape, array.dtype) if out is None else self._access.kind(out, "out")
        self._arguments.root(dst, "dst")
        self._arguments.root(source, "src")
        target = self._access.target(out, shape, dtype, like=x)
        outgoing = flat(array)
        if out is not None and np.may_share_memory(outgoing, target.flat):
            outgoing = outgoing.copy()
        tag = check_tag(tag)
        message = self._message(timeout)
        self._begin_receive(message, source, tag, target.flat)
        self._begin_send(message, dst, tag, outgoing, check_of(outgoing.dtype))
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
        self._check_open()
        return Message(self._executor, self._arguments.timeout(timeout))

    def _check_open(self) -> None:
        if self._retired:
            raise ClosedError(f"the communicator of rank {self._transport.rank} is {self._retired}")

    def _begin_send(self, message: Message, dst: int, tag: int, array: Array, check: int) -> None:
        self._begin(message, self._transport.isend, f"send to rank {dst}", dst, tag, array, check)

    def _begin_receive(self, message: Message, src: int, tag: int, array: Array) -> None:
        self._begin(message, self._transport.irecv, f"receive from rank {src}", src, tag, array, check_of(array.dtype))

    def _begin(
        self,
        message: Message,
        start: Callable[[int, int, memoryview, int], Request],
        doing: str,
        rank: int,
        tag: int,
        array: Array,
        check: int,
    ) -> None:
        """Begin one request of a message."""
        peer = self._ranks[rank]
        self._begun += 1
        try:
            request = start(peer, self._tag | int(tag), as_bytes(array), check)
        except (PeerLost, ConnectError) as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        message.add(Transfer(request, doing, (peer,), array))

    def _receive_any(
        self,
        src: int | None,
        tag: int | None,
        timeout: float | None,
        status: Status | None,
        finish: Callable[[AnyRequest], Any],
        memory: Array | None = None,
    ) -> Message:
        """Begin a receive that only the ability can carry out; into `memory`, or into new memory of any length."""
        sources, tags, ability = self._sources(src), self._tags(tag), self._any_source()
        message = self._message(timeout)
        doing = f"receive from {_sender(src)}"
        view, check = (None, None) if memory is None else (as_bytes(memory), check_of(memory.dtype))
        self._begun += 1
        try:
            request = ability.irecv_any(sources, tags, view, check)
        except (PeerLost, ConnectError) as error:
            raise self._executor.abort_signal.fail(error, doing) from error
        message.add(Transfer(request, doing, self._peers(src), memory))

        def tell() -> None:
            if status is not None and request.arrival is not None:
                self._fill(status, request.arrival)

        message.finish_with(lambda: finish(request), tell)
        return message

    def _array_of(self, request: AnyRequest) -> Array:
        """The array in a received message. Raises MismatchError for an object."""
        arrival = self._arrival(request)
        dtype = dtype_of(arrival.check)
        if dtype is None:
            raise self._misfit(arrival, "an array was expected; recv_object receives objects")
        return np.frombuffer(request.view, np.uint8).view(dtype)

    def _object_of(self, request: AnyRequest) -> Any:
        """The object in a received message. Raises MismatchError for an array."""
        arrival = self._arrival(request)
        if arrival.check != OBJECT_CHECK:
            raise self._misfit(arrival, "an object was expected; recv receives arrays")
        return pickle.loads(request.view)

    def _arrival(self, request: AnyRequest) -> Arrival:
        arrival = request.arrival
        assert arrival is not None
        return arrival

    def _misfit(self, arrival: Arrival, expected: str) -> MismatchError:
        status = self._fill(Status(), arrival)
        return MismatchError(f"{status}; {expected}", rank=self._transport.rank, peer=arrival.source)

    def _probe(self, src: int | None, tag: int | None, deadline: float, *, wait: bool) -> Status | None:
        sources, tags, ability = self._sources(src), self._tags(tag), self._any_source()
        self._check_open()
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
        except (PeerLost, ConnectError) as error:
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
            return range(self._tag, self._tag + MAX_USER_TAG + 1)
        first = self._tag | check_tag(tag, "or None for any tag")
        return range(first, first + 1)

    def _any_source(self) -> AnySource:
        ability = self._transport.ability(AnySource)
        if ability is None:
            name = self._transport.name
            text = f"transport {name!r} can only receive from one rank with one tag into an array: give x, src and tag"
            raise TransportError(text, rank=self._transport.rank)
        return ability


def check_tag(tag: int, otherwise: str = "") -> int:
    """A tag as an int. Raises ValueError for a bad one; `otherwise` tells what else is allowed."""
    if not isinstance(tag, (int, np.integer)) or isinstance(tag, bool) or not 0 <= tag <= MAX_USER_TAG:
        raise ValueError(f"tag={tag!r}: must be an int, 0 to 2**31 - 1{', ' if otherwise else ''}{otherwise}")
    return int(tag)


def _sender(src: int | None) -> str:
    return "any rank" if src is None else f"rank {src}"
