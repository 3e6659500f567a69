"""Communicator: a group of ranks and the collectives among them. The public face of the runtime.

Arguments that methods share
    x           an array: NumPy, or any on the CPU that speaks DLPack or the array interface; or a number. Any shape
                (also empty, 0-d, non-contiguous, read-only), any bool, integer, float, complex dtype or bfloat16.
    out         where the result goes, of exactly the result's shape and dtype; `out=x` works in place. A new array
                otherwise. The result is of the kind of array that `x` is.
    op          sum, average, prod, min, max, band, bor, bxor, land, lor, lxor, as far as the dtype allows.
    root        a rank of this communicator.
    algorithm   the name of an algorithm, to force it; otherwise the cost model and the rule table choose.
    timeout     seconds until the call gives up; None takes the configured one.

Errors that methods raise
    TypeError, ValueError   a bad argument, found before anything was sent: nothing is lost, go on.
    MismatchError           ranks made calls that do not fit together. The communicator is aborted, unless the method
                            says otherwise.
    PeerLost, DeadlineExceeded, AbortedError, ClosedError   the exchange failed. The communicator is aborted, on every
                            rank; arrays given as `x` are as they were, unless they were `out` too.

Collectives of one communicator run in the order in which they were called, one at a time, also the asynchronous ones;
all ranks must call them in the same order. Every method may be called from any thread. Each `*_async` method begins
what the method without the suffix does and returns a Work; its arrays must not be touched until that is done.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from collectives.config import Config
from collectives.execute import Executor
from collectives.objects import ObjectJobs
from collectives.plan import Planner
from collectives.point_to_point import Message, PointToPoint
from collectives.progress import Job, Stream, Work
from collectives.reduction_jobs import ReductionJobs
from collectives.schedule import Geometry
from collectives.select import Selector
from transports.base import Member, Transport
from transports.errors import AbortedError, RondeError
from transports.onesided import OneSided

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

_MESSAGES: Final = 1 << 31
"""The bit of a tag that tells messages from collectives."""


class Jobs(ReductionJobs, ObjectJobs):
    """All collectives, as jobs."""


def _method(make: Callable[Concatenate[S, P], object], suffix: str, returns: str) -> Callable[[T], T]:
    """Decorates a method so that it reads like `make`: name, docstring, arguments."""

    def dress(call: T) -> T:
        method: Any = functools.wraps(make)(call)  # type: ignore[arg-type]
        method.__name__ = make.__name__ + suffix
        method.__qualname__ = f"Communicator.{method.__name__}"
        method.__signature__ = inspect.signature(make).replace(return_annotation=returns)
        return call

    return dress


def _now(make: Callable[Concatenate[Jobs, P], Job[T]]) -> Callable[Concatenate[Communicator, P], T]:
    """The method that runs a job and returns its result."""

    @_method(make, "", "Any")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._stream.run(make(self._jobs, *args, **kwargs))

    return call


def _later(make: Callable[Concatenate[Jobs, P], Job[T]]) -> Callable[Concatenate[Communicator, P], Work[T]]:
    """The method that queues a job and returns its Work."""

    @_method(make, "_async", "Work[Any]")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Work[T]:
        return self._stream.submit(make(self._jobs, *args, **kwargs))

    return call


def _message(make: Callable[Concatenate[PointToPoint, P], Message]) -> Callable[Concatenate[Communicator, P], Any]:
    """The method that sends or receives and returns when that is done."""

    @_method(make, "", "Any")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return make(self._messages, *args, **kwargs).wait()

    return call


def _begin_message(
    make: Callable[Concatenate[PointToPoint, P], Message],
) -> Callable[Concatenate[Communicator, P], Work[Any]]:
    """The method that begins to send or receive and returns the Work."""

    @_method(make, "_async", "Work[Any]")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Work[Any]:
        return make(self._messages, *args, **kwargs)

    return call


class _Family:
    """What a communicator shares with all that are split from it: the transport, and the numbers of contexts."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.newest_context = 0
        self.open: list[Communicator] = []


class Communicator:
    """Ranks 0..size-1 of a group that compute together. Made by `init`, `run` and `split`."""

    def __init__(self, transport: Transport, config: Config) -> None:
        """The communicator of all ranks of an open transport, which it will close."""
        self._begin(_Family(transport), config, tuple(range(transport.size)), 0)

    def _begin(self, family: _Family, config: Config, ranks: tuple[int, ...], context: int) -> None:
        transport = family.transport
        self._family = family
        self._config = config
        self._ranks = ranks
        self._context = context
        self.rank = ranks.index(transport.rank)
        self.size = len(ranks)
        self._members = tuple(transport.group.members[rank] for rank in ranks)
        numbers = {host: index for index, host in enumerate(dict.fromkeys(member.host for member in self._members))}
        self._hosts = tuple(numbers[member.host] for member in self._members)
        onesided = transport.ability(OneSided)
        window = None
        if self.size > 1 and onesided is not None and onesided.reaches(ranks):
            deadline = time.monotonic() + config.connect_timeout
            window = onesided.expose(f"stage/{context}/{ranks[0]}", ranks, 2 * config.stage_bytes, deadline)
        selector = Selector.from_config(config, transport)
        planner = Planner(
            Geometry(self.rank, self.size, hosts=self._hosts), selector, 0 if window is None else config.stage_bytes
        )
        self._executor = Executor(transport, ranks, context << 32, planner, window)
        self._jobs = Jobs(self.rank, self.size, self._executor, selector, config)
        self._messages = PointToPoint(transport, ranks, context << 32 | _MESSAGES, self._jobs, self._executor.abort)
        self._stream = Stream(f"communicator {context} of rank {transport.rank}")
        family.open.append(self)

    # ---- who and where

    @property
    def members(self) -> tuple[Member, ...]:
        """Host and process of every rank."""
        return self._members

    @property
    def transport(self) -> Transport:
        """The transport beneath; shared with the communicators split from this one."""
        return self._family.transport

    @property
    def config(self) -> Config:
        """The settings that it was made with."""
        return self._config

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this rank's host."""
        return tuple(rank for rank in range(self.size) if self._hosts[rank] == self._hosts[self.rank])

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks on its host."""
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host."""
        return len(self.local_ranks)

    @property
    def cross_rank(self) -> int:
        """This rank's number among the ranks that have its local rank on their hosts."""
        return self._counterparts().index(self._hosts[self.rank])

    @property
    def cross_size(self) -> int:
        """The number of ranks that have this rank's local rank on their hosts, itself included."""
        return len(self._counterparts())

    def _counterparts(self) -> list[int]:
        """The hosts that have a rank with this rank's local rank."""
        return [host for host in range(max(self._hosts) + 1) if self._hosts.count(host) > self.local_rank]

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size} over {self.transport.name}>"

    # ---- the collectives; their docstrings are in reduction_jobs.py, movement_jobs.py and objects.py

    @_method(Jobs.allreduce, "", "Any")
    def allreduce(self, /, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            small = self._jobs.small_allreduce(x, op, out)
            if small is not None and self._stream.begin():
                executor = self._executor
                try:
                    deadline = time.monotonic() + self._config.timeout
                    return executor.quiet.run(executor.repeat, small, x, out, deadline)
                finally:
                    self._stream.end()
        return self._stream.run(self._jobs.allreduce(x, op, out=out, **options))

    allreduce_async = _later(Jobs.allreduce)
    reduce, reduce_async = _now(Jobs.reduce), _later(Jobs.reduce)
    reduce_scatter, reduce_scatter_async = _now(Jobs.reduce_scatter), _later(Jobs.reduce_scatter)
    broadcast, broadcast_async = _now(Jobs.broadcast), _later(Jobs.broadcast)
    allgather, allgather_async = _now(Jobs.allgather), _later(Jobs.allgather)
    gather, gather_async = _now(Jobs.gather), _later(Jobs.gather)
    scatter, scatter_async = _now(Jobs.scatter), _later(Jobs.scatter)
    alltoall, alltoall_async = _now(Jobs.alltoall), _later(Jobs.alltoall)
    barrier, barrier_async = _now(Jobs.barrier), _later(Jobs.barrier)
    grouped_allreduce, grouped_allreduce_async = _now(Jobs.grouped_allreduce), _later(Jobs.grouped_allreduce)
    grouped_allgather, grouped_allgather_async = _now(Jobs.grouped_allgather), _later(Jobs.grouped_allgather)
    broadcast_object, broadcast_object_async = _now(Jobs.broadcast_object), _later(Jobs.broadcast_object)
    allgather_object, allgather_object_async = _now(Jobs.allgather_object), _later(Jobs.allgather_object)

    # ---- messages; see point_to_point.py

    send, send_async = _message(PointToPoint.send), _begin_message(PointToPoint.send)
    recv, recv_async = _message(PointToPoint.recv), _begin_message(PointToPoint.recv)
    sendrecv, sendrecv_async = _message(PointToPoint.sendrecv), _begin_message(PointToPoint.sendrecv)

    # ---- groups and life

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """Divide the communicator: ranks that give the same `color` form a new one, ordered by `key`, then by rank.

        A rank that gives None joins none and gets None. Collective. The new communicator shares this one's transport
        and must be closed before it, or is closed with it.
        """
        for name, value in (("color", color), ("key", key)):
            if value is not None and (not isinstance(value, (int, np.integer)) or isinstance(value, bool)):
                raise TypeError(f"{name}={value!r}: must be an int" + (" or None" if name == "color" else ""))
        if color is not None and not 0 <= color < 2**62:
            raise ValueError(f"color={color}: must be 0 or more, or None to join no group")
        mine = np.array([-1 if color is None else color, key, self._family.newest_context], np.int64)
        table = np.asarray(self.allgather(mine, timeout=timeout)).reshape(self.size, 3)
        context = int(table[:, 2].max()) + 1
        self._family.newest_context = context
        if color is None:
            return None
        chosen = sorted((int(table[rank, 1]), rank) for rank in range(self.size) if table[rank, 0] == color)
        child = Communicator.__new__(Communicator)
        child._begin(self._family, self._config, tuple(self._ranks[rank] for _, rank in chosen), context)
        return child

    def abort(self, reason: str) -> None:
        """Give up: every rank's pending and later calls raise AbortedError with this reason."""
        cause = AbortedError(f"rank {self.rank} aborted: {reason}", rank=self.transport.rank, peer=self.transport.rank)
        self._executor.abort(cause)

    @property
    def failure(self) -> RondeError | None:
        """Why the communicator is aborted, None while it is sound."""
        return self.transport.failure

    def close(self, timeout: float | None = None) -> None:
        """Finish what was begun and release everything; with the world communicator, the transport too. Idempotent.

        Raises DeadlineExceeded if that does not end in time; everything is released all the same.
        """
        deadline = time.monotonic() + self._jobs.timeout(timeout)
        mine = list(self._family.open) if self._context == 0 else [self]
        try:
            for communicator in reversed(mine):
                communicator._release(deadline)
        finally:
            if self._context == 0:
                self.transport.close(deadline)

    def _release(self, deadline: float) -> None:
        if self in self._family.open:
            self._family.open.remove(self)
        try:
            self._stream.close(deadline)
        finally:
            self._jobs.forget()
            self._executor.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.failure is None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()
