"""Communicator: a group of ranks and the collectives among them. The public face of the runtime.

Arguments that methods share
    x           an array: NumPy, or any on the CPU that speaks DLPack or the array interface; or a number. Any shape
                (also empty, 0-d, non-contiguous, read-only), any bool, integer, float, complex dtype or bfloat16.
    out         where the result goes, of exactly the result's shape and dtype; `out=x` works in place. A new array
                otherwise. The result is of the kind of array that `x` is.
    op          sum, average, prod, min, max, band, bor, bxor, land, lor, lxor, as far as the dtype allows; of floats
                allreduce also knows adasum (adasum.py).
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

Names
    Collectives that are given a name, `*_async(..., name="layer1.weight")`, may be called in a different order on each
    rank, also before and after any that have none: each is run once all ranks have called it, and all ranks run them in
    one order. A name may be used again when its Work is over. Raises ValueError for one that is in flight on this rank.
    The Work raises, and nothing else is affected:
    MismatchError       on all ranks, with a table, if they called different things by this name
    DeadlineExceeded    if not all ranks called it within its `timeout`, on those that did, naming the others
    ClosedError         if a rank has closed that did not call it, naming that
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from types import TracebackType
from typing import Any, Final

import numpy as np

from collectives.alarm import Alarm
from collectives.config import Config
from collectives.device_jobs import OnDevices
from collectives.engine import Engine
from collectives.jobs import Jobs
from collectives.meter import Meter
from collectives.methods import begin_message, later, message, method, now
from collectives.observable import Observable
from collectives.point_to_point import PointToPoint
from collectives.prepared import Prepared
from collectives.progress import Stream, Work
from collectives.ready import Ready, ReadyCalls
from collectives.schedule import Geometry
from collectives.select import Selector
from collectives.shrinking import Shrinkable
from collectives.timeline import Timeline
from collectives.trace import Trace
from collectives.watch import Watchman
from collectives.windows import Windows
from transports import registry
from transports.base import Group, Member, Transport
from transports.errors import AbortedError, RondeError
from transports.rendezvous.attentive import AttentiveStore

_MESSAGES: Final = 1 << 31
"""The bit of a tag that tells messages from collectives."""
_NAMED: Final = 1
_ENGINE: Final = 2
"""What is added to the tag of collectives for named ones, and for what the engine says about them."""


class Family:
    """What a communicator shares with all that are split from it: the transport, and the numbers of contexts."""

    def __init__(self, transport: Transport, config: Config) -> None:
        self.transport = transport
        self.alarm = Alarm(transport)
        self.watchman = Watchman(transport.group, self.alarm, heartbeat=config.heartbeat, stall=config.stall)
        self.newest_context = 0
        self.open: list[Communicator] = []
        self.timeline: Timeline | None = None


class Communicator(Prepared, Observable, Shrinkable, OnDevices):
    """Ranks 0..size-1 of a group that compute together. Made by `init`, `run` and `split`."""

    def __init__(self, transport: Transport, config: Config) -> None:
        """The communicator of all ranks of an open transport, which it will close."""
        self._begin(Family(transport, config), config, tuple(range(transport.size)), 0)
        self._family.watchman.start()

    @classmethod
    def connect(cls, group: Group, config: Config, deadline: float) -> Communicator:
        """The communicator of a group, over the transport that the settings name. Collective. Raises as `init`."""
        store, name = AttentiveStore(group.store), config.transport
        group = dataclasses.replace(group, store=store, tls=config.load_tls())
        transport = registry.backend(name).create(group, config.transport_options(name))
        family, communicator = Family(transport, config), cls.__new__(cls)
        try:
            store.failure = lambda: transport.failure
            family.watchman.start()
            transport.open(deadline)
            store.failure = None
            communicator._begin(family, config, tuple(range(group.size)), 0)
        except BaseException as error:  # the others wait for this rank
            cause = error if isinstance(error, RondeError) else AbortedError(f"rank {group.rank} gave up: {error!r}")
            family.alarm.settle(cause)
            family.watchman.close()
            transport.close(deadline)
            raise
        return communicator

    def _begin(self, family: Family, config: Config, ranks: tuple[int, ...], context: int) -> None:
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
        selector = Selector.from_config(config, transport)
        self.trace = Trace(f"of communicator {context}" if context else "")
        self.meter = Meter(self.trace)
        tag, geometry = context << 32, Geometry(self.rank, self.size, hosts=self._hosts)
        self._windows = Windows(transport, family.alarm, ranks, tag)
        parts = geometry, selector, config, family.alarm, self.meter, self._windows
        self._jobs = Jobs(transport, ranks, tag, *parts)
        self._jobs.stage()
        self._executor = self._jobs.executor
        self._named = Jobs(transport, ranks, tag | _NAMED, *parts, "named")
        self._engine = Engine(transport, ranks, tag | _ENGINE, self._named, family.alarm, config)
        self._messages = PointToPoint(transport, ranks, tag | _MESSAGES, self._jobs, self._executor)
        self._ready = ReadyCalls(self._jobs.prepare, self._windows)
        self._stream = Stream(f"communicator {context} of rank {transport.rank}")
        self.process_sets: dict[int, tuple[tuple[int, ...], Communicator | None]] = {}
        """Kept by process_sets.py: number -> ranks, and what those ranks compute with."""
        family.open.append(self)
        self.observe()

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

    # ---- the collectives; their docstrings are in the modules that make their jobs

    def _repeat(self, ready: Ready, x: Any, out: Any) -> Any:
        """Run a plain call. The turn has been taken."""
        executor = self._executor
        try:
            return executor.quiet.run(executor.repeat, ready, x, out, time.monotonic() + self._config.timeout)
        finally:
            self._stream.end()

    @method(Jobs.allreduce, "", "Any")
    def allreduce(self, /, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            ready = self._ready.find("allreduce", x, op, out)
            if ready is not None and self._stream.begin():
                return self._repeat(ready, x, out)
        return self._stream.run(self._jobs.allreduce(x, op, out=out, **options))

    @method(Jobs.reduce_scatter, "", "Any")
    def reduce_scatter(self, /, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            ready = self._ready.find("reduce_scatter", x, op, out)
            if ready is not None and self._stream.begin():
                return self._repeat(ready, x, out)
        return self._stream.run(self._jobs.reduce_scatter(x, op, out=out, **options))

    @method(Jobs.broadcast, "", "Any")
    def broadcast(self, /, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            ready = self._ready.find("broadcast", x, root, out)
            if ready is not None and self._stream.begin():
                return self._repeat(ready, x, out)
        return self._stream.run(self._jobs.broadcast(x, root, out=out, **options))

    @method(Jobs.alltoall, "", "Any")
    def alltoall(self, /, x: Any, splits: Any = None, *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            ready = self._ready.find("alltoall", x, splits, out)
            if ready is not None and self._stream.begin():
                return self._repeat(ready, x, out)
        return self._stream.run(self._jobs.alltoall(x, splits, out=out, **options))

    @method(Jobs.allgather, "", "Any")
    def allgather(self, /, x: Any, *, out: Any = None, **options: Any) -> Any:
        if not options and type(x) is np.ndarray:
            ready = self._ready.find("allgather", x, None, out)
            if ready is not None and self._stream.begin():
                try:
                    return self._jobs.gather_even(ready, x, out, time.monotonic() + self._config.timeout)
                finally:
                    self._stream.end()
        return self._stream.run(self._jobs.allgather(x, out=out, **options))

    allreduce_async = later(Jobs.allreduce)
    reduce, reduce_async = now(Jobs.reduce), later(Jobs.reduce)
    reduce_scatter_async = later(Jobs.reduce_scatter)
    broadcast_async = later(Jobs.broadcast)
    allgather_async = later(Jobs.allgather)
    gather, gather_async = now(Jobs.gather), later(Jobs.gather)
    scatter, scatter_async = now(Jobs.scatter), later(Jobs.scatter)
    alltoall_async = later(Jobs.alltoall)
    barrier, barrier_async = now(Jobs.barrier), later(Jobs.barrier)
    grouped_allreduce, grouped_allreduce_async = now(Jobs.grouped_allreduce), later(Jobs.grouped_allreduce)
    grouped_allgather, grouped_allgather_async = now(Jobs.grouped_allgather), later(Jobs.grouped_allgather)
    compose, compose_async = now(Jobs.compose), later(Jobs.compose)
    broadcast_object, broadcast_object_async = now(Jobs.broadcast_object), later(Jobs.broadcast_object)
    allgather_object, allgather_object_async = now(Jobs.allgather_object), later(Jobs.allgather_object)

    def join(self, *, timeout: float | None = None) -> int:
        """This rank has no more data: until all ranks have joined it gives zeros to named allreduces of the others,
        with op sum or average (of all ranks' number). Returns the last rank to join.

        Other operations raise MismatchError on the ranks that named them, while any rank has joined. A ValueError
        tells that this rank submits a named operation before all have joined.

        timeout  seconds without any named operation of the others. Then DeadlineExceeded is raised on this rank,
                 naming those that have not joined, and it is as if it had not.
        """
        return self.join_async(timeout=timeout).wait()

    def join_async(self, *, timeout: float | None = None) -> Work[int]:
        """Begin what `join` does. Raises ValueError if that has been begun, and is not over."""
        return self._engine.join(self._jobs.timeout(timeout))

    # ---- messages; see point_to_point.py

    send, send_async = message(PointToPoint.send), begin_message(PointToPoint.send)
    recv, recv_async = message(PointToPoint.recv), begin_message(PointToPoint.recv)
    sendrecv, sendrecv_async = message(PointToPoint.sendrecv), begin_message(PointToPoint.sendrecv)

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
        for communicator in mine:  # all before any is waited for: other ranks close them in another order
            communicator._engine.leave()
        try:
            for communicator in reversed(mine):
                communicator._release(deadline)
        finally:
            if self._context == 0:
                self.stop_timeline()
                with contextlib.closing(self._family.watchman) as watchman:
                    watchman.leave()
                    self.transport.close(deadline)

    def _release(self, deadline: float) -> None:
        if self in self._family.open:
            self._family.open.remove(self)
        try:
            with contextlib.ExitStack() as both:
                both.callback(self._stream.close, deadline)
                self._engine.close(deadline)
        finally:
            with contextlib.ExitStack() as rest:
                rest.callback(self.trace.direct, None)
                rest.callback(self._windows.close)
                rest.callback(self._named.close, deadline)
                self._ready.forget()
                rest.callback(self._jobs.close, deadline)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self.current
        if error is not None and mine.failure is None:
            mine.abort(f"{type(error).__name__}: {error}")
        mine.close()
