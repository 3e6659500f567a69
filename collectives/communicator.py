"""Communicator: a group of ranks and the collectives among them. The public face of the runtime."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from collectives.annotations import (
    A,
    Number,
    OpName,
    Options,
    ReduceOptions,
    Scalar,
    ScaledOptions,
    SupportsArray,
    T,
)
from collectives.arrays import Array, Op, check_dtype, named_dtype
from collectives.asynchronous import AsynchronousCalls
from collectives.config import TIMELINE_STYLES, Config
from collectives.execution import Peers, Windows
from collectives.family import Family
from collectives.flight import save
from collectives.folders import path_of
from collectives.gpu import DeviceAccess, DeviceCalls, DeviceOperations
from collectives.membership import CONNECT_SECONDS, Standby, ask_to_leave, regroup
from collectives.metering import Endpoint, Header, HorovodTimeline, Meter, Timeline, Trace, prometheus_text, rank_path
from collectives.negotiation import Engine
from collectives.numeric import is_integer
from collectives.operations import (
    MAKE_JOB,
    MESSAGES,
    OWN_CHANNEL,
    CallQueue,
    Channel,
    HostOperations,
    Persistent,
    Pickler,
    PointToPoint,
    ReceiveOptions,
    Repeated,
    RepeatingStarter,
    Starter,
    Status,
    Work,
    begin_by,
    check_list,
    compare_clocks,
    run_by,
    shape_of,
)
from collectives.planning import Selector
from collectives.resources import Resources
from collectives.schedule import Geometry
from transports import registry
from transports.base import Group, LinkCost, Member, Transport
from transports.errors import (
    AbortedError,
    DeadlineExceeded,
    ForkedError,
    RendezvousError,
    RondeError,
    TransportError,
    described,
)
from transports.rendezvous import AttentiveStore

_NAMED: Final = 1
_ENGINE: Final = 2
_MEETING: Final = 4
"""Added to the tag of a communicator's collectives: for named collectives, for their negotiation, and for the agreement
on the numbers of channels."""
_MOST_BYTES: Final = 1 << 62
"""The most bytes of a window, those of all ranks together: addresses have 63 bits."""
_PLANNED: Final = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall", "barrier"),
    *("scan", "exscan", "grouped_allreduce", "grouped_allgather"),
)
_REPEATED: Final = tuple(name for name in _PLANNED if name != "barrier" and not name.startswith("grouped"))


class Communicator(AsynchronousCalls):
    """Ranks 0 to size - 1 of a group that compute together. Made by `init`, `run` and `split`.

    rank, size    this process's number in the group, and the number of ranks
    successor     the communicator that `shrink` or `regroup` made of this one, or None
    process_sets  of the world communicator: number of a process set -> its ranks and, on these, its communicator
    meter, trace  where calls are counted, and where events for the timeline go

    Arrays
        NumPy arrays, and arrays of any library on the CPU that supports DLPack or the array interface; arrays on CUDA
        GPUs. Of any shape (also empty, 0-d, non-contiguous, read-only inputs) and of dtype bool, integer, float,
        complex or bfloat16. Python numbers and NumPy scalars are taken as 0-d arrays. A result is of the same kind of
        array as `x` if its library has `from_dlpack`, as PyTorch and JAX have, else a NumPy array; that of a number is
        a NumPy scalar.

    Order
        The collectives of one communicator run in the order of the calls, one at a time, also the asynchronous ones.
        All ranks must call them in the same order. Every method may be called from any thread. A `*_async` method
        begins the operation and returns a Work; its arrays must not be touched until the Work is done.

    Names
        Collectives with a name, `*_async(..., name="layer1.weight")`, may be called in a different order on each rank,
        also relative to calls without a name. Each runs once all ranks have called it; all ranks run them in the same
        order. A name can be used again when its Work is done. Raises ValueError for a name in flight on this rank. The
        Work raises, and nothing else is affected:
        MismatchError     on all ranks, with a table, if they called different operations by this name
        DeadlineExceeded  if some ranks did not call it within `timeout`; it names them, on the ranks that did call
        ClosedError       if a rank closed without calling it; it names that rank

    Calls without a name
        The ranks' calls must have the same collective, dtype, number of elements, op, root and algorithm. Shapes and
        scale factors are not compared, as in MPI: elements are combined in their order in memory (C), and each rank
        uses its own factors. Named calls compare these too.

    Deadlines
        `timeout` is in seconds, by default those of the setting `timeout`; `math.inf` stands for none. Reports on
        calls that make no progress come in any case.

    Errors of all methods
        TypeError, ValueError  a bad argument, found before anything is sent. The communicator stays usable.
        MismatchError          the ranks' calls do not fit together. The communicator is aborted unless the method says
                               otherwise.
        ForkedError            the process was forked by the rank's process, and is no rank. Nothing is sent. `close`
                               does nothing there
        PeerLost, DeadlineExceeded, AbortedError, ClosedError
                               the exchange failed. The communicator is aborted on every rank. Arrays given as `x` keep
                               their contents unless they were also `out`; the contents of `out` are undefined.
    """

    def __init__(
        self,
        transport: Transport,
        config: Config,
        *,
        family: Family | None = None,
        ranks: tuple[int, ...] | None = None,
        context: int = 0,
        selector: Selector | None = None,
        single_copy: bool = False,
    ) -> None:
        """The communicator of all ranks of an open transport, which `close` will close.

        transport    an open transport
        config       the settings
        family       the family that a split belongs to; by default a new one
        ranks        the transport's ranks that belong to it, in the order of the new ranks; by default all
        context      the number of a split among its family, 1 or more
        selector     its own, with the measurements of the communicator that it was split from; by default they are made
        single_copy  the ranks are known to be able to read each other's memory
        """
        is_first = family is None
        family = Family(transport, config) if family is None else family
        ranks = tuple(range(transport.size)) if ranks is None else ranks
        self._family = family
        self._config = config
        self._ranks = ranks
        self._context = context
        self.successor: Communicator | None = None
        self.rank = ranks.index(transport.rank)
        self.size = len(ranks)
        self._members = tuple(transport.group.members[rank] for rank in ranks)
        numbers = {host: index for index, host in enumerate(dict.fromkeys(member.host for member in self._members))}
        self._hosts = tuple(numbers[member.host] for member in self._members)
        self._selector = Selector.from_config(config, transport) if selector is None else selector
        self.trace = Trace(f"of communicator {context}" if context else "")
        self.meter = Meter(self.trace)
        tag, geometry = context << 32, Geometry(self.rank, self.size, hosts=self._hosts)
        self._windows = Windows(transport, family.abort_signal, ranks, tag)
        parts = config, family.abort_signal, family.positions, self.meter, self._windows, family.flight
        ordered = HostOperations(transport, ranks, tag, geometry, self._selector, *parts, single_copy=single_copy)
        if context == 0:  # the others make their staging window before their first call
            try:
                ordered.stage()
            except BaseException:
                ordered.close()
                raise
            single_copy = ordered.executor.planner.single_copy
        # A selector of its own: named calls are planned before all ranks are known to have made ordered ones
        own, names = copy.copy(self._selector), tag | _NAMED
        named = HostOperations(transport, ranks, names, geometry, own, *parts, named=True, single_copy=single_copy)
        self._ordered, self._named = DeviceCalls(ordered), DeviceCalls(named)
        self._executor, self._arguments = ordered.executor, ordered.arguments
        self._queue = CallQueue(f"communicator {context} of rank {transport.rank}", transport.group, self._executor)
        self._engine = Engine(transport, ranks, tag | _ENGINE, named, family.abort_signal, config)
        self._messages = PointToPoint(transport, ranks, tag | MESSAGES, self._arguments, self._executor, DeviceAccess())
        self._run: Starter[Any] = self._ordered.starter(run_by(self._queue), self._messages.run)
        super().__init__(_begin(self._ordered, self._named, self._queue, self._engine, self._messages))
        self.process_sets: dict[int, tuple[tuple[int, ...], Communicator | None]] = {}
        self._resources = Resources(
            context,
            self.meter,
            family.recorder,
            self._queue,
            self._engine,
            self._messages,
            self._windows,
            (self._ordered, self._named),
        )
        family.communicators.append(self._resources)
        family.recorder.attach(self.meter)
        self._finalizer = None if is_first else weakref.finalize(self, family.dropped.add, self._resources)
        if self._finalizer is not None:
            self._finalizer.atexit = False
        if is_first:
            family.watchdog.start()

    @classmethod
    def connect(cls, group: Group, config: Config, deadline: float, standby: Standby) -> Communicator:
        """The communicator of a group, over the transport that the settings name. Collective.

        group     the ranks and their store
        config    the settings
        deadline  the time of time.monotonic() at which connecting gives up
        standby   the stores that may take over. It belongs to the communicator then, after an error to the caller

        Raises ConfigError, RendezvousError, ConnectError, PeerLost or DeadlineExceeded; if this rank failed because of
        another, the cause that the other rank has told. Nothing else stays open then.
        """
        standby.share(group, deadline)
        store, name = AttentiveStore(group.store), config.transport
        group = dataclasses.replace(group, store=store, tls=config.load_tls())
        transport = registry.backend(name).create(group, config.transport_options(name))
        family = Family(transport, config, standby)
        try:
            store.failure = lambda: transport.failure
            family.watchdog.start()
            transport.open(deadline)
            store.failure = None
            return cls(transport, config, family=family)
        except BaseException as error:  # the other ranks wait for this one
            gave_up = AbortedError(f"rank {group.rank} gave up: {described(error)}", rank=group.rank)
            cause = error if isinstance(error, RondeError) else gave_up
            root = family.abort_signal.resolve(cause)
            family.watchdog.close()
            family.flight.close()
            transport.close(deadline)
            if root is cause or cause is not error:
                raise
            raise root from error

    def __reduce__(self) -> NoReturn:
        """Communicators belong to their process. Raises TypeError."""
        raise TypeError(
            f"{self!r} cannot be pickled or copied: it belongs to this process. Pass a function that calls "
            "ronde.world() on its rank, or send the arrays and objects that the other process needs"
        )

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size} over {self.transport.name}>"

    # ---- the group

    @property
    def members(self) -> tuple[Member, ...]:
        """Host and process of every rank, by rank."""
        return self._members

    @property
    def transport(self) -> Transport:
        """The transport; shared with the communicators split from this one."""
        return self._family.transport

    @property
    def config(self) -> Config:
        """The settings of this communicator."""
        return self._config

    @property
    def link(self) -> LinkCost | None:
        """The cost of messages between hosts, as measured when the world was made: seconds per message and per byte,
        and seconds per byte for each host if their links differ. None if all ranks are on one host, if the setting
        `calibrate` is off, or if the rules contain the cost."""
        return self._selector.link

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this rank's host, ascending."""
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
        """This rank's number among the ranks that have the same local rank, one on each host."""
        return self._counterparts().index(self._hosts[self.rank])

    @property
    def cross_size(self) -> int:
        """The number of ranks that have the same local rank as this one, itself included."""
        return len(self._counterparts())

    def _counterparts(self) -> list[int]:
        """The hosts that have a rank with this rank's local rank."""
        return [host for host in range(max(self._hosts) + 1) if self._hosts.count(host) > self.local_rank]

    @property
    def devices(self) -> DeviceOperations:
        """The operations on arrays of GPUs; made at the first use."""
        return self._ordered.devices

    # ---- collectives

    @overload
    def allreduce(self, x: A, op: OpName | Op = ..., *, out: A | None = ..., **options: Unpack[ScaledOptions]) -> A: ...

    @overload
    def allreduce(
        self, x: Number, op: OpName | Op = ..., *, out: Array | None = ..., **options: Unpack[ScaledOptions]
    ) -> np.number[Any]: ...

    def allreduce(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Combine all ranks' `x` element by element. Every rank gets the result, with the same bits.

        x                    array of any shape and dtype, or a number; the same shape and dtype on all ranks
        op                   reduction: sum, average (also avg, mean), prod, min, max, band, bor, bxor, land, lor, lxor,
                             as far as the dtype allows; of floats also adasum; or an Op, a function of one's own. The
                             average of integers is truncated toward zero
        out                  array for the result, of exactly its shape and dtype; `out=x` works in place; by default a
                             new array of the kind of `x`
        prescale, postscale  factors for every input and for the result
        algorithm            name of an algorithm to use; by default the rule table and the cost model choose
        reproducible         True gives the same bits with every algorithm, transport and segment size: contributions
                             are combined in one fixed tree over the ranks, half-precision sums in float32. Which of
                             several NaNs results is not fixed. By default the setting `reproducible`
        timeout              seconds that the call may take; by default the setting `timeout`
        stream               for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a
                             handle (int); by default the current stream of the arrays' library
        blocking             for arrays on GPUs: True returns when the GPU is done, False when the work has been
                             enqueued

        Raises TypeError or ValueError for a bad argument, before anything is sent.

        Source of adasum: Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation", MLSys.
        """
        return self._run.arrays(
            "allreduce", x, out, (op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )

    @overload
    def reduce(
        self, x: A, op: OpName | Op = ..., root: int = ..., *, out: A | None = ..., **options: Unpack[ScaledOptions]
    ) -> A | None: ...

    @overload
    def reduce(
        self,
        x: Number,
        op: OpName | Op = ...,
        root: int = ...,
        *,
        out: Array | None = ...,
        **options: Unpack[ScaledOptions],
    ) -> np.number[Any] | None: ...

    def reduce(
        self,
        x: Any,
        op: OpName | Op = "sum",
        root: int = 0,
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Combine all ranks' `x` element by element. The root gets the result, the other ranks get None.

        x                    array of any shape and dtype, or a number; the same shape and dtype on all ranks
        op                   reduction: sum, average (also avg, mean), prod, min, max, band, bor, bxor, land, lor, lxor,
                             as far as the dtype allows. The average of integers is truncated toward zero
        root                 rank that gets the result
        out                  array for the result, of exactly its shape and dtype; `out=x` works in place. Ignored off
                             the root; by default a new array of the kind of `x`
        prescale, postscale  factors for every input and for the result
        algorithm            name of an algorithm to use; by default the rule table and the cost model choose
        reproducible         True gives the same bits with every algorithm, transport and segment size: contributions
                             are combined in one fixed tree over the ranks, half-precision sums in float32. Which of
                             several NaNs results is not fixed. By default the setting `reproducible`
        timeout              seconds that the call may take; by default the setting `timeout`
        stream               for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a
                             handle (int); by default the current stream of the arrays' library
        blocking             for arrays on GPUs: True returns when the GPU is done, False when the work has been
                             enqueued
        """
        return self._run.arrays(
            "reduce", x, out, (root, op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )

    def reduce_scatter(
        self,
        x: A,
        op: OpName | Op = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: A | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> A:
        """Combine all ranks' `x` element by element, and split the result along axis 0: every rank gets its part.

        x                    array of at least one dimension; the same shape and dtype on all ranks
        op                   reduction: sum, average (also avg, mean), prod, min, max, band, bor, bxor, land, lor, lxor,
                             as far as the dtype allows. The average of integers is truncated toward zero
        counts               rows for each rank, the same on all ranks; by default as even as possible, larger parts
                             first
        out                  array for the result, of exactly its shape and dtype; by default a new array of the kind of
                             `x`
        prescale, postscale  factors for every input and for the result
        algorithm            name of an algorithm to use; by default the rule table and the cost model choose
        reproducible         True gives the same bits with every algorithm, transport and segment size: contributions
                             are combined in one fixed tree over the ranks, half-precision sums in float32. Which of
                             several NaNs results is not fixed. By default the setting `reproducible`
        timeout              seconds that the call may take; by default the setting `timeout`
        stream               for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a
                             handle (int); by default the current stream of the arrays' library
        blocking             for arrays on GPUs: True returns when the GPU is done, False when the work has been
                             enqueued
        """
        result: A = self._run.arrays(
            "reduce_scatter",
            x,
            out,
            (counts, op, prescale, postscale, algorithm, reproducible),
            timeout,
            stream,
            blocking,
        )
        return result

    @overload
    def broadcast(self, x: A, root: int = ..., *, out: A | None = ..., **options: Unpack[Options]) -> A: ...

    @overload
    def broadcast(
        self, x: Number, root: int = ..., *, out: Array | None = ..., **options: Unpack[Options]
    ) -> np.number[Any]: ...

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Give every rank the root's `x`.

        x          array or number; the same shape and dtype on all ranks. Off the root its contents do not matter
        root       rank that gives the data
        out        array for the result, of exactly its shape and dtype; `out=x` works in place, on the root also for a
                   read-only array; by default a new array of the kind of `x`
        algorithm  name of an algorithm to use; by default the rule table and the cost model choose
        timeout    seconds that the call may take; by default the setting `timeout`
        stream     for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle (int);
                   by default the current stream of the arrays' library
        blocking   for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued
        """
        return self._run.arrays("broadcast", x, out, (root, algorithm), timeout, stream, blocking)

    @overload
    def allgather(
        self,
        x: Scalar,
        *,
        out: Array | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> Array: ...

    @overload
    def allgather(
        self,
        x: A,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> A: ...

    def allgather(
        self,
        x: Any,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Give every rank all ranks' `x`, concatenated along axis 0 in rank order.

        x          array or number. The first dimension may differ between ranks, the others and the dtype may not. A
                   0-d array or a number counts as one row
        out        array for the result, of exactly its shape and dtype; by default a new array of the kind of `x`
        expected   rows that this rank expects from each rank; by default any
        agreed     True if all ranks give the same `expected`: they exchange no sizes first. If their parts are others,
                   they raise MismatchError, and the communicator is aborted
        algorithm  name of an algorithm to use; by default the rule table and the cost model choose
        timeout    seconds that the call may take; by default the setting `timeout`
        stream     for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle (int);
                   by default the current stream of the arrays' library
        blocking   for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises MismatchError on every rank if dtypes or dimensions other than the first differ, or if a part or the
        result is not what a rank expects by `expected` or `out`. The communicator stays usable.
        """
        return self._run.arrays("allgather", x, out, (expected, agreed, algorithm), timeout, stream, blocking)

    @overload
    def gather(
        self,
        x: Scalar,
        root: int = ...,
        *,
        out: Array | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> Array | None: ...

    @overload
    def gather(
        self,
        x: A,
        root: int = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> A | None: ...

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Give the root all ranks' `x`, concatenated along axis 0 in rank order. The other ranks get None.

        x          array or number. The first dimension may differ between ranks, the others and the dtype may not. A
                   0-d array or a number counts as one row
        root       rank that gets the result
        out        array for the result, of exactly its shape and dtype. Ignored off the root; by default a new array of
                   the kind of `x`
        expected   rows that the root expects from each rank; by default any
        agreed     True if all ranks give the same `expected`, as for `allgather`
        algorithm  name of an algorithm to use; by default the rule table and the cost model choose
        timeout    seconds that the call may take; by default the setting `timeout`
        stream     for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle (int);
                   by default the current stream of the arrays' library
        blocking   for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises MismatchError on every rank if dtypes or dimensions other than the first differ, or if a part or the
        result is not what a rank expects by `expected` or `out`. The communicator stays usable.
        """
        return self._run.arrays("gather", x, out, (root, expected, agreed, algorithm), timeout, stream, blocking)

    @overload
    def scatter(
        self,
        x: None = ...,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> Array: ...

    @overload
    def scatter(
        self,
        x: A | None = ...,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: A | None = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> A: ...

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Split the root's `x` along axis 0: every rank gets its part.

        x          array of at least one dimension. Ignored off the root
        root       rank that gives the array
        counts     rows for each rank; by default as even as possible, larger parts first. Ignored off the root
        agreed     True if all ranks give the same `counts`, and `out`: they exchange no sizes first. If these differ,
                   they raise MismatchError, and the communicator is aborted
        out        array for the result, of exactly its shape and dtype; by default a new array of the kind of `x`
        algorithm  name of an algorithm to use; by default the rule table and the cost model choose
        timeout    seconds that the call may take; by default the setting `timeout`
        stream     for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle (int);
                   by default the current stream of the arrays' library
        blocking   for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises MismatchError on every rank if `out` of one has not shape and dtype of its part. The communicator stays
        usable.
        """
        return self._run.arrays("scatter", x, out, (root, counts, agreed, algorithm), timeout, stream, blocking)

    @overload
    def alltoall(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: Literal[False] = ...,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> A: ...

    @overload
    def alltoall(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: Literal[True],
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> tuple[A, NDArray[np.int64]]: ...

    @overload
    def alltoall(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: bool,
        agreed: bool = ...,
        **options: Unpack[Options],
    ) -> A | tuple[A, NDArray[np.int64]]: ...

    def alltoall(
        self,
        x: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        return_splits: bool = False,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Split every rank's `x` along axis 0, part i for rank i. The result is all parts for this rank, in rank order.

        x              array of at least one dimension. The first may differ between ranks, the others and the dtype may
                       not
        splits         rows for each rank. Either all ranks give them, or none does; then the parts are equal, and the
                       first dimension must be a multiple of `size`
        out            array for the result, of exactly its shape and dtype; by default a new array of the kind of `x`
        expected       rows that this rank expects from each rank, besides `splits`. Either all ranks give them, or none
                       does; by default any
        agreed         True if all ranks give `splits` and `expected`, and these fit: they exchange no sizes first. If
                       they do not fit, the ranks raise MismatchError, and the communicator is aborted
        return_splits  True also returns the rows that came from each rank: (result, array of ints)
        algorithm      name of an algorithm to use; by default the rule table and the cost model choose
        timeout        seconds that the call may take; by default the setting `timeout`
        stream         for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle
                       (int); by default the current stream of the arrays' library
        blocking       for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises MismatchError on every rank if the rows that come to a rank are not what it expects by `expected` or
        `out`. The communicator stays usable.
        """
        return self._run.arrays(
            "alltoall", x, out, (splits, expected, return_splits, agreed, algorithm), timeout, stream, blocking
        )

    @overload
    def scan(self, x: A, op: OpName | Op = ..., *, out: A | None = ..., **options: Unpack[ReduceOptions]) -> A: ...

    @overload
    def scan(
        self, x: Number, op: OpName | Op = ..., *, out: Array | None = ..., **options: Unpack[ReduceOptions]
    ) -> np.number[Any]: ...

    def scan(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Combine the `x` of this rank and of all lower ranks element by element. Every rank gets its own result.

        x             array of any shape and dtype, or a number; the same shape and dtype on all ranks
        op            reduction: sum, prod, min, max, band, bor, bxor, land, lor, lxor, as far as the dtype allows; or
                      an Op, a function of one's own. Contributions are combined in rank order
        out           array for the result, of exactly its shape and dtype; `out=x` works in place; by default a new
                      array of the kind of `x`
        algorithm     name of an algorithm to use; by default the rule table and the cost model choose
        reproducible  True gives the same bits with every algorithm and transport: contributions are combined from left
                      to right, half-precision sums in float32. By default the setting `reproducible`
        timeout       seconds that the call may take; by default the setting `timeout`
        stream        for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle
                      (int); by default the current stream of the arrays' library
        blocking      for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises TypeError or ValueError for a bad argument, before anything is sent.

        Source: MPI_Scan of MPI 4.1, section 6.11.
        """
        return self._run.arrays("scan", x, out, (op, None, None, algorithm, reproducible), timeout, stream, blocking)

    @overload
    def exscan(
        self, x: A, op: OpName | Op = ..., *, out: A | None = ..., **options: Unpack[ReduceOptions]
    ) -> A | None: ...

    @overload
    def exscan(
        self, x: Number, op: OpName | Op = ..., *, out: Array | None = ..., **options: Unpack[ReduceOptions]
    ) -> np.number[Any] | None: ...

    def exscan(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> Any:
        """Combine the `x` of all lower ranks element by element. Every rank gets its own result, rank 0 None.

        x             array of any shape and dtype, or a number; the same shape and dtype on all ranks
        op            reduction, as for `scan`
        out           array for the result, of exactly its shape and dtype; by default a new array of the kind of `x`.
                      Ignored on rank 0
        algorithm     name of an algorithm to use; by default the rule table and the cost model choose
        reproducible  True gives the same bits with every algorithm and transport: contributions are combined from left
                      to right, half-precision sums in float32. By default the setting `reproducible`
        timeout       seconds that the call may take; by default the setting `timeout`
        stream        for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle
                      (int); by default the current stream of the arrays' library
        blocking      for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises TypeError or ValueError for a bad argument, before anything is sent.

        Source: MPI_Exscan of MPI 4.1, section 6.11.
        """
        return self._run.arrays("exscan", x, out, (op, None, None, algorithm, reproducible), timeout, stream, blocking)

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> None:
        """Return when every rank has called it.

        algorithm  name of an algorithm to use; by default the rule table and the cost model choose
        timeout    seconds that the call may take; by default the setting `timeout`
        """
        self._run.job("barrier", algorithm, timeout)

    def grouped_allreduce(
        self,
        xs: Sequence[A],
        op: OpName | Op = "sum",
        *,
        out: Sequence[A] | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> list[A]:
        """allreduce of several arrays as one operation. Returns the results in the order of `xs`.

        xs                   arrays of any shapes and dtypes; the same on all ranks
        op                   reduction: sum, average (also avg, mean), prod, min, max, band, bor, bxor, land, lor, lxor,
                             as far as the dtype allows; of floats also adasum; or an Op, a function of one's own. The
                             average of integers is truncated toward zero
        out                  arrays for the results, as many as `xs`; `out=xs` works in place, also if an array is in
                             `xs` twice. They may be in the memory of any input. By default new arrays
        prescale, postscale  factors for every input and for the result
        algorithm            name of an algorithm to use; by default the rule table and the cost model choose
        reproducible         True gives the same bits with every algorithm, transport and segment size: contributions
                             are combined in one fixed tree over the ranks, half-precision sums in float32. Which of
                             several NaNs results is not fixed. By default the setting `reproducible`
        timeout              seconds that the call may take; by default the setting `timeout`
        stream               for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a
                             handle (int); by default the current stream of the arrays' library
        blocking             for arrays on GPUs: True returns when the GPU is done, False when the work has been
                             enqueued

        Small arrays of one dtype are packed and travel together. With a name this is the cheapest way to hand over many
        arrays: the ranks agree on one operation, and there is one Work to wait for. Arrays that are slices of one array
        of `empty` are combined in place.

        Raises ValueError if `out` has another number of arrays than `xs`.
        """
        result: list[A] = self._run.arrays(
            "grouped_allreduce", xs, out, (op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )
        return result

    def grouped_allgather(
        self,
        xs: Sequence[A],
        *,
        expected: Sequence[Sequence[int]] | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
    ) -> list[A]:
        """allgather of several arrays as one operation. Returns the results in the order of `xs`.

        xs        arrays, as many on all ranks; each as `x` of `allgather`
        expected  for each array, the rows that this rank expects from each rank; by default any
        timeout   seconds that the call may take; by default the setting `timeout`
        stream    for arrays on GPUs: the CUDA stream for the work, an object with `__cuda_stream__` or a handle (int);
                  by default the current stream of the arrays' library
        blocking  for arrays on GPUs: True returns when the GPU is done, False when the work has been enqueued

        Raises as `allgather` does.
        """
        result: list[A] = self._run.arrays("grouped_allgather", xs, None, (expected,), timeout, stream, blocking)
        return result

    def compose(self, body: Callable[[Peers], T], what: str, *, timeout: float | None = None) -> T:
        """Run `body(peers)` as one collective operation, and return its result. All ranks must call it.

        body     function that exchanges data through `peers` (see operations.Peers). NumPy's warnings of overflow and
                 the like are off in it
        what     name of the operation in messages. Ranks that give different ones get a MismatchError from the first
                 exchange
        timeout  seconds that the call may take; by default the setting `timeout`

        An exception of `body` aborts the communicator and is raised.
        """
        result: T = self._run.job("compose", body, what, timeout)
        return result

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout: float | None = None, pickler: Pickler | None = None
    ) -> Any:
        """Give every rank the root's object.

        obj      object that can be pickled. Ignored off the root
        root     rank that gives the object
        timeout  seconds that the call may take; by default the setting `timeout`
        pickler  has `dumps` and `loads`, such as the module dill or cloudpickle; the same on all ranks. By default
                 pickle, with the buffers of arrays apart from the rest (protocol 5), so that they are copied less often

        Raises TypeError if it cannot be pickled, on the root alone. Raises TransportError on every rank if the
        transport's links are not authenticated, since unpickling can run any code. The communicator stays usable after
        both.
        """
        return self._run.job("broadcast_object", obj, root, timeout, pickler)

    def allgather_object(self, obj: T, *, timeout: float | None = None, pickler: Pickler | None = None) -> list[T]:
        """Give every rank the list of all ranks' objects, in rank order.

        obj      object that can be pickled
        timeout  seconds that the call may take; by default the setting `timeout`
        pickler  as for `broadcast_object`

        Raises as `broadcast_object` does.
        """
        result: list[T] = self._run.job("allgather_object", obj, timeout, pickler)
        return result

    def gather_object(
        self, obj: T, root: int = 0, *, timeout: float | None = None, pickler: Pickler | None = None
    ) -> list[T] | None:
        """Give the root the list of all ranks' objects, in rank order. Returns None on the other ranks.

        obj      object that can be pickled
        root     rank that gets the list
        timeout  seconds that the call may take; by default the setting `timeout`
        pickler  as for `broadcast_object`

        Raises as `broadcast_object` does.
        """
        result: list[T] | None = self._run.job("gather_object", obj, root, timeout, pickler)
        return result

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        pickler: Pickler | None = None,
    ) -> Any:
        """Give each rank one of the root's objects: rank i gets `objs[i]`.

        objs     objects that can be pickled, one for each rank. Ignored off the root
        root     rank that gives the objects
        timeout  seconds that the call may take; by default the setting `timeout`
        pickler  as for `broadcast_object`

        Raises ValueError on the root alone if there are not as many objects as ranks; else as `broadcast_object`.
        """
        return self._run.job("scatter_object", objs, root, timeout, pickler)

    def join(self, *, timeout: float | None = None) -> int:
        """Tell the other ranks that this one has no more data, and wait until all ranks have joined.

        Until then this rank contributes zeros to named allreduces of the others, of any op (a mean is one over all
        ranks), and takes part in their named barriers. Returns the last rank to join.

        timeout  seconds without any named operation of the other ranks; by default the setting `timeout`

        Other named operations raise MismatchError on the ranks that called them while any rank has joined. Raises
        DeadlineExceeded after `timeout`, on this rank alone, naming the ranks that have not joined; this rank has not
        joined then. A named operation of this rank before all have joined raises ValueError.
        """
        return self.join_async(timeout=timeout).wait()

    def join_async(self, *, timeout: float | None = None) -> Work[int]:
        """Begin `join`, with the same arguments, and return its Work. Raises ValueError if a join is in flight."""
        return self._engine.join(self._arguments.timeout(timeout))

    # ---- messages

    def send(
        self,
        x: SupportsArray | Number,
        dst: int,
        *,
        tag: int = 0,
        synchronous: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Send `x` to rank `dst`, which must call `recv` with an array of the same dtype and number of elements, with
        `shorter=True` and a longer array, or without an array.

        x            array or number
        dst          rank to send to
        tag          0 to 2**31 - 1. The receiver chooses messages by their rank and tag
        synchronous  True returns no earlier than a receive of rank `dst` has matched the message; that rank may be in
                     any call of Ronde then
        timeout      seconds that the call may take; by default the setting `timeout`

        Returns when `x` may be changed, which may be before or after the message is received. Messages between two
        ranks of a communicator that match one receive are received in the order sent; with different tags they do not
        wait for each other. They are not ordered with collectives, and those of different communicators never mix. A
        message has no shape. Arrays on GPUs are copied through the host's memory.
        """
        self._run.message(PointToPoint.send, x, dst, tag, timeout, synchronous)

    @overload
    def recv(self, x: A, src: int | None = ..., **options: Unpack[ReceiveOptions]) -> A: ...

    @overload
    def recv(self, x: None = ..., src: int | None = ..., **options: Unpack[ReceiveOptions]) -> Array: ...

    def recv(
        self,
        x: Any = None,
        src: int | None = None,
        *,
        tag: int | None = 0,
        timeout: float | None = None,
        status: Status | None = None,
        shorter: bool = False,
    ) -> Any:
        """Receive a message from rank `src`, or from any rank, and return the array with it.

        x        array of the dtype and number of elements of the message, which is received into it and returned; None
                 makes a new NumPy array with one dimension
        src      rank to receive from; None takes the next message of any rank of the communicator
        tag      tag that the message was sent with; None takes any tag
        timeout  seconds that the call may take; by default the setting `timeout`
        status   filled with the rank and the tag of the message, and with what it holds
        shorter  True takes a message of fewer elements than `x` too, into its first elements; the others keep their
                 values, and `status.count` is the number of those that came

        Takes the first message that matches: messages of one rank do not overtake each other, and a message goes to the
        receive that was begun first of those that it matches. No rank is kept waiting by others that send more.

        Raises MismatchError if the message has another dtype or number of elements than `x`, or is an object; with
        `shorter` if it has another dtype or more elements. The message is lost, the contents of `x` are undefined, and
        the communicator stays usable. Raises PeerLost if `src`, or for any rank every other rank, has closed.
        """
        return self._run.message(PointToPoint.recv, x, src, tag, timeout, status, shorter)

    def probe(self, src: int | None = None, *, tag: int | None = 0, timeout: float | None = None) -> Status:
        """Wait until a message has arrived that `recv` with the same `src` and `tag` would receive; its envelope.

        src      rank to receive from; None looks for messages of any rank
        tag      tag that the message was sent with; None looks for any tag
        timeout  seconds that the call may take; by default the setting `timeout`

        The message stays. To receive it, give the `source` and the `tag` of the result to `recv` or `recv_object`. If
        several threads receive, another one may be faster: receive without a probe, into a new array.

        Raises DeadlineExceeded if there is no message in time; the communicator stays usable. Other errors as `recv`.
        """
        return self._messages.probe(src, tag, timeout)

    def iprobe(self, src: int | None = None, *, tag: int | None = 0) -> Status | None:
        """The envelope of a message that `probe` would find now; None if there is none. Never waits.

        src  rank to receive from; None looks for messages of any rank
        tag  tag that the message was sent with; None looks for any tag

        Raises the error that aborted the communicator, if it was aborted.
        """
        return self._messages.iprobe(src, tag)

    def send_object(
        self,
        obj: Any,
        dst: int,
        *,
        tag: int = 0,
        synchronous: bool = False,
        timeout: float | None = None,
        pickler: Pickler | None = None,
    ) -> None:
        """Send an object to rank `dst`, which must call `recv_object`.

        obj          object that can be pickled. It may be changed when the call, also an asynchronous one, returns
        dst          rank to send to
        tag          0 to 2**31 - 1, as for `send`
        synchronous  as for `send`
        timeout      seconds that the call may take; by default the setting `timeout`
        pickler      as for `broadcast_object`; the receiver gives the same

        Raises TypeError if the object cannot be pickled. Raises TransportError if the transport's links are not
        authenticated, since unpickling can run any code. Nothing is sent then, and the communicator stays usable.
        """
        self._run.message(PointToPoint.send_object, obj, dst, tag, timeout, synchronous, pickler)

    def recv_object(
        self,
        src: int | None = None,
        *,
        tag: int | None = 0,
        timeout: float | None = None,
        status: Status | None = None,
        pickler: Pickler | None = None,
    ) -> Any:
        """Receive an object from rank `src`, or from any rank, and return it.

        src      rank to receive from; None takes the next message of any rank of the communicator
        tag      tag that the message was sent with; None takes any tag
        timeout  seconds that the call may take; by default the setting `timeout`
        status   filled with the rank and the tag of the message, and with the number of its bytes
        pickler  as for `broadcast_object`; that of the sender

        Takes the first message that matches, as `recv` does. Raises MismatchError if it holds an array: the message is
        lost, and the communicator stays usable. Raises TransportError as `send_object` does, and PeerLost as `recv`.
        """
        return self._run.message(PointToPoint.recv_object, src, tag, timeout, status, pickler)

    @overload
    def sendrecv(
        self, x: A, dst: int, src: int | None = ..., *, out: A | None = ..., tag: int = ..., timeout: float | None = ...
    ) -> A: ...

    @overload
    def sendrecv(
        self,
        x: Number,
        dst: int,
        src: int | None = ...,
        *,
        out: Array | None = ...,
        tag: int = ...,
        timeout: float | None = ...,
    ) -> np.number[Any]: ...

    def sendrecv(
        self, x: Any, dst: int, src: int | None = None, *, out: Any = None, tag: int = 0, timeout: float | None = None
    ) -> Any:
        """Send `x` to rank `dst` and receive an array from rank `src` at the same time. Returns the received array.

        x        array or number to send
        dst      rank to send to
        src      rank to receive from; by default `dst`
        out      array for the received data, which may be `x`; by default a new one with the shape and dtype of `x`
        tag      tag of both messages, as for `send`
        timeout  seconds that the call may take; by default the setting `timeout`

        Raises MismatchError as `recv` does.
        """
        return self._run.message(PointToPoint.sendrecv, x, dst, src, out, tag, timeout)

    # ---- repeated calls

    @property
    def maps(self) -> bool:
        """True if arrays of `empty` lie in memory that all ranks map."""
        return self._windows.onesided is not None

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.float64,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Make an array of zeros in memory that all ranks of the communicator map. Collective.

        shape    the array's shape, the same on all ranks
        dtype    the array's dtype, the same on all ranks
        name     ranks may make named arrays in a different order; see Names above
        timeout  seconds that the call may take; by default the setting `timeout`

        Ranks can map each other's memory on one host, over a transport with shared memory. Elsewhere the array is an
        ordinary one: nothing is communicated, and the sizes are not compared.

        Such arrays are several times as fast from a few KiB on, since nothing is staged: for allreduce from one to
        another (or in place), for allgather into one, for reduce_scatter and alltoall from one. All ranks must give
        arrays of the same call of `empty`, or the same slices of them; or none may. Otherwise the call raises
        MismatchError.

        The next call of `empty` (with a name, if this one had a name) releases the memory, once all ranks have dropped
        their array and its views. `close` releases it too.

        Raises on all ranks, and the communicator stays usable: MismatchError if they ask for different sizes,
        RendezvousError if there is no room; with a name also the errors of named calls.
        """
        try:
            kind = named_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        except TypeError as error:
            raise TypeError(f"dtype={dtype!r}: must be a dtype: {error}") from error
        check_dtype(kind, "dtype")
        lengths = shape_of(shape)
        if (nbytes := kind.itemsize * math.prod(lengths)) > _MOST_BYTES // self.size:
            raise ValueError(f"shape={shape!r}: {nbytes} bytes of {self.size} ranks have no addresses")
        self._check_process()
        self._messages.check_open()
        if self._windows.onesided is None:
            return self._windows.make(lengths, kind, time.monotonic() + self._arguments.timeout(timeout))
        job = (self._ordered if name is None else self._named).host.empty(lengths, kind, timeout)
        return self._queue.run(job) if name is None else self._engine.submit(name, job).wait()

    def plan(self, collective: str, /, *arguments: Any, **options: Any) -> Persistent:
        """Check and plan a call once, to make it many times on the same arrays. Nothing is communicated.

            step = comm.plan("allreduce", gradients, "average", out=gradients)
            for ...:
                step.run()

        collective          name of a method: allreduce, reduce, reduce_scatter, broadcast, allgather, gather, scatter,
                            alltoall, barrier, scan, exscan, grouped_allreduce or grouped_allgather
        arguments, options  the arguments of that method

        Every run does the same as the plain call on the present contents of the arrays. Other ranks may make the plain
        call instead. Raises ValueError for an unknown collective, and the errors of the method for bad arguments.

        Source: the persistent collectives of MPI 4.0, section 6.12.
        """
        if collective not in _PLANNED:
            raise ValueError(f"collective={collective!r}: must be one of {', '.join(_PLANNED)}")
        jobs = AsynchronousCalls(self._jobs)
        return Persistent(self._queue, functools.partial(getattr(jobs, f"{collective}_async"), *arguments, **options))

    def repeated(self, collective: str, /, *arguments: Any, in_bytes: bool = False, **options: Any) -> Repeated[Any]:
        """Keep the arguments of a call, to make it many times on other arrays. Nothing is communicated.

            add = comm.repeated("allreduce", gradients, "sum", out=gradients)
            for array in arrays:
                add(array, array)

        collective          name of a method: allreduce, reduce, reduce_scatter, broadcast, allgather, gather, scatter,
                            alltoall, scan or exscan
        arguments, options  the arguments of that method. The arrays among them are neither used nor kept
        in_bytes            True makes the call on the memory of contiguous arrays, as arrays of bytes

        The result is called with `x` and `out`, NumPy arrays of any shape and dtype; `out=None` makes a new array, and
        `x` is None where the method takes None. It does the same as the plain call, which other ranks may make instead,
        and raises the same errors. Raises ValueError for an unknown collective or a bad timeout.
        """
        if collective not in _REPEATED:
            raise ValueError(f"collective={collective!r}: must be one of {', '.join(_REPEATED)}")
        calls = AsynchronousCalls(lambda _: RepeatingStarter(self._run, in_bytes=in_bytes))
        made: Repeated[Any] = getattr(calls, f"{collective}_async")(*arguments, **options)
        return made

    def _jobs(self, name: str | None) -> Starter[Any]:
        """The calls that become jobs, for persistent ones, which keep the communicator."""
        if name is not None:
            raise TypeError(f"name={name!r}: is not for plan, whose calls are made in the order of calls")
        return self._ordered.starter(MAKE_JOB, self._messages.begin)

    # ---- metrics and timeline

    def metrics(self) -> dict[str, Any]:
        """The counts of this communicator since it was made or `reset_metrics` was called. Not collective.

        collectives  for each collective: calls; bytes (the size of the arrays; of all parts together where every rank
                     has a part; of `x` for alltoall); moved (bytes that this rank sent to other ranks or read from
                     their memory); seconds; calls by algorithm
        parts        the same for exchanges inside other operations: agreement on sizes, compression, Adasum
        waited       seconds by rank of the world: the time for which this rank waited for it or for its memory
        plans        made, and reused by later calls
        events       other events by name, such as stalls

        Calls and bytes are exact. Seconds are estimates from samples: calls of a millisecond and more are all timed,
        shorter ones now and then, so that timing takes half a percent of the time. For arrays on GPUs they are the time
        to enqueue the work. Splits of the communicator have counts of their own; messages are not counted.
        """
        return self.meter.snapshot()

    def reset_metrics(self) -> None:
        """Set all counts to zero."""
        self.meter.reset()

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format (version 0.0.4), for an endpoint or a file."""
        return prometheus_text(self.meter, self.rank, self._context)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Serve the metrics of this rank over HTTP for Prometheus, until `close`. Returns the port.

        port  the port, another one for each rank of a host: `9400 + comm.local_rank`; 0 for a free one
        host  the address to listen at; "0.0.0.0" or "::" for all addresses of this host. There is no authentication

        For the world communicator only; the communicators split from it are included. prometheus_client, the extra
        `metrics`, answers the requests in a thread of its own. `close` takes up to half a second longer.

        Raises ModuleNotFoundError without prometheus_client; TypeError or ValueError for a bad argument, if the metrics
        are served already, or for a communicator made by `split`; OSError if the port is not free.
        """
        self._check_process()
        self._messages.check_open()
        if not isinstance(port, int) or isinstance(port, bool) or not isinstance(host, str):
            raise TypeError(f"port={port!r}, host={host!r}: must be an int and a str")
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port={port}: must be 0 to 65535")
        if self._context:
            raise ValueError("serve_metrics: must be called on the world communicator; its splits are included")
        if self._family.endpoint is not None:
            raise ValueError(f"port={port}: the metrics are served at port {self._family.endpoint.port} already")
        self._family.endpoint = Endpoint(self._meters, self.rank, host, port)
        return self._family.endpoint.port

    def _meters(self) -> list[tuple[Meter, int]]:
        """The meters of the family, each with the number of its communicator."""
        return [(resources.meter, resources.context) for resources in list(self._family.communicators)]

    def start_timeline(self, path: str | os.PathLike[str], style: str = "ronde") -> None:
        """Write the events of this rank to a file until `stop_timeline` or `close`.

        path   the file's name; '{rank}' in it stands for the rank. Without that, '.rank0' and so on precede its suffix
        style  "ronde"; "horovod" for the file that Horovod writes: only rank 0 writes, exactly to `path`, and only the
               named operations, with Horovod's names of events; "horovod-cycles" for that file with marks where a batch
               of operations begins

        The events are negotiation, queueing, fusion, every collective and every step of it. Open the file in Perfetto
        (ui.perfetto.dev); `ronde timeline merge` makes one file of those of all ranks. The settings `timeline` and
        `timeline_style` start it at the beginning.

        For the world communicator only; the communicators split from it are included. Collective if the ranks are on
        several hosts, since their clocks are compared. Calls take about 0.2 us longer per step, and from time to time a
        millisecond for writing.

        Raises TypeError for a bad path; ValueError for a bad style, if a timeline is open, or for a communicator made
        by `split`; OSError on this rank alone if the file cannot be written. The communicator stays usable.
        """
        self._check_process()
        self._messages.check_open()
        if self._context:
            raise ValueError("start_timeline: must be called on the world communicator; its splits are included")
        recorder = self._family.recorder
        file = recorder.file(path)
        if style not in TIMELINE_STYLES:
            raise ValueError(f"style={style!r}: must be one of {', '.join(TIMELINE_STYLES)}")
        if style != "ronde":
            if self.rank == 0:
                recorder.start(lambda: HorovodTimeline(file, cycles=style == "horovod-cycles"))
            return
        offset, error = 0, 0
        if len(set(self._hosts)) > 1:
            offset, error = self.compose(compare_clocks, "a comparison of clocks")
        own = self._members[self.rank]
        header = Header(self.rank, self.size, own.hostname, own.pid, offset, error)
        recorder.start(lambda: Timeline(rank_path(file, self.rank), header))

    def stop_timeline(self) -> None:
        """End the timeline, if there is one. The file then holds every event until now."""
        self._check_process()
        self._family.recorder.stop()

    def save_flight_record(self, folder: str | os.PathLike[str]) -> Path | None:
        """Copy the flight record of this rank, its last calls, into a folder; returns the path of the copy. None if
        this rank keeps no record: the setting `flight_record` is off, there is only one rank, ranks are threads, or
        the system is Windows.

        folder  is made if it does not exist; the copies of all ranks may lie in one, for `ronde why`

        Not collective; also after a failure. A communicator made by `split` has the record of its world.

        Raises TypeError for a bad folder; OSError if the copy cannot be written.
        """
        self._check_process()
        target, path = path_of(folder, "folder"), self._family.flight.path
        return None if path is None else save(path, target)

    # ---- groups, failure, end

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """Divide the communicator: ranks that give the same color form a new one. Collective.

        color    0 or more; a rank that gives None joins no group and gets None
        key      orders the ranks of a group; ranks with equal keys keep their order
        timeout  seconds that the call may take; by default the setting `timeout`

        The new communicator shares the transport, and costs one small exchange, no memory and no descriptor. Before its
        first collective its ranks make the memory that they share on one host; where a rank has no room or descriptor
        for it, all of them send messages instead. It must be closed before this one, or is closed with it. One that
        nothing refers to any more is released by a later `split`. Threads may split different communicators at the same
        time.
        """
        for name, value in (("color", color), ("key", key)):
            none = name == "color"
            if not (none and value is None) and not is_integer(value):
                raise TypeError(f"{name}={value!r}: must be an int" + (" or None" if none else ""))
        color, key = None if color is None else int(color), int(key)
        if color is not None and not 0 <= color < 2**63:
            raise ValueError(f"color={color}: must be 0 to 2**63 - 1, or None to join no group")
        if not -(2**63) <= key < 2**63:
            raise ValueError(f"key={key}: must be -2**63 to 2**63 - 1")
        mine = np.array([-1 if color is None else color, key, self._family.new_context()], np.int64)
        table = self.allgather(mine, timeout=timeout).reshape(self.size, 3)
        self._family.release_dropped()
        if color is None:
            return None
        found = sorted((int(table[rank, 1]), rank) for rank in range(self.size) if table[rank, 0] == color)
        chosen = [rank for _, rank in found]
        return self._smaller(chosen, int(table[chosen[0], 2]), "in split")

    def _smaller(self, chosen: Sequence[int], context: int, doing: str) -> Communicator:
        """The communicator of some of the ranks, in this order, with this number. Collective among them."""
        ranks = tuple(self._ranks[rank] for rank in chosen)
        selector = self._selector.on_hosts(dict.fromkeys(self._hosts[rank] for rank in chosen))
        try:
            return Communicator(
                self.transport,
                self._config,
                family=self._family,
                ranks=ranks,
                context=context,
                selector=selector,
                single_copy=self._executor.planner.single_copy,
            )
        except TransportError as error:  # the other ranks wait for this one, or this one waits for them in vain
            raise self._executor.abort_signal.fail(error, doing) from None

    def channel(self, ranks: Sequence[int] | None = None, *, tag: int = 0, timeout: float | None = None) -> Channel:
        """Make a channel for messages of bytes among some of the ranks, apart from all other messages. Collective among
        them: the other ranks have no part in it. It costs a few small messages, and no memory.

        ranks    ranks of this communicator, each once, this rank among them: the same on all of them, in the order of
                 their numbers in the channel. None for the channel of all ranks, of which there is one: no rank waits
        tag      0 to 2**28 - 1: tells calls of `channel` and `subset` apart that threads make at the same time
        timeout  seconds that the call may take; by default the setting `timeout`

        Raises MismatchError on all ranks if one lists the same ranks in another order, or other ranks than the one that
        it hears from; DeadlineExceeded if it hears from none.
        """
        new_context = self._family.new_context
        self._messages.check_open()
        if not is_integer(tag) or not 0 <= tag < 1 << 28:
            raise ValueError(f"tag={tag!r}: must be an int, 0 to 2**28 - 1")
        seconds = self._arguments.timeout(timeout)
        if ranks is None:
            own = OWN_CHANNEL | self._context
            return Channel(self.transport, self._ranks, own, MESSAGES, self._executor, new_context)
        check_list(ranks, "ranks", "ranks")
        chosen = [self._arguments.root(rank, "ranks") for rank in ranks]
        if len(set(chosen)) != len(chosen) or self.rank not in chosen:
            raise ValueError(f"ranks={list(ranks)!r}: must contain each rank once, and this rank, {self.rank}")
        self._check_process()
        meeting = Channel(self.transport, self._ranks, self._context, _MEETING, self._executor, new_context)
        return meeting.among(chosen, int(tag) << 3, seconds)

    def subset(self, ranks: Sequence[int] | Channel, *, tag: int = 0, timeout: float | None = None) -> Communicator:
        """Make a communicator of some of the ranks. Collective among them: the other ranks have no part in it.

        ranks    as for `channel`; or a channel, whose number and ranks the communicator takes, once
        tag      as for `channel`
        timeout  seconds that the agreement may take; by default the setting `timeout`

        Raises as `split`. The communicator shares the transport. It must be closed before this one, or is closed with
        it.

        Source: MPI_Comm_create_group of MPI 4.1, section 7.4.2.
        """
        self._messages.check_open()
        channel = ranks if isinstance(ranks, Channel) else self.channel(ranks, tag=tag, timeout=timeout)
        self._family.release_dropped()
        numbers = {rank: number for number, rank in enumerate(self._ranks)}
        return self._smaller([numbers[rank] for rank in channel.ranks], channel.context, "in subset")

    def abort(self, reason: str) -> None:
        """Give up: pending and later calls of every rank raise AbortedError.

        reason  text for the error
        """
        self._check_process()
        cause = AbortedError(f"rank {self.rank} aborted: {reason}", rank=self.transport.rank)
        self._executor.abort_signal.raise_abort(cause)

    @property
    def failure(self) -> RondeError | None:
        """The error that aborted the communicator; None while it is usable."""
        return self.transport.failure

    @property
    def departure(self) -> RondeError | None:
        """The error of an asynchronous or named operation that could not run, since another rank had closed the
        communicator or a split of it; None if there is none. It aborts nothing, but operations of all ranks cannot run
        any more: the ranks that are left may `shrink` or `regroup`."""
        return self._executor.abort_signal.departure

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Make a new communicator of the ranks that are left after a failure. Collective among them.

        timeout  seconds that the other ranks have to call it; those that do not are left out. By default the setting
                 `timeout`

        The new ranks are numbered from 0 in the old order; settings and transport are the same. This communicator is
        closed, with all its splits and its timeline. Ranks whose process has ended or is stopped, that have closed, or
        that the failure is blamed on are not waited for. It also works without a failure.

        Raises RuntimeError, with nothing done, for a communicator made by `split`: shrink the one that it was split
        from, and split again. ClosedError if it is closed. RendezvousError if the others went on without this rank, or
        if neither the store in which the ranks met nor a standby of it (setting `standbys`) can be reached. The errors
        of `init` if the survivors cannot connect. The communicator is closed then too.

        Source: MPI_Comm_shrink of ULFM (user-level failure mitigation; Bland et al. 2013).
        """
        smaller = self._succeed("shrink", "shrunk", None, timeout)
        assert smaller is not None  # nobody leaves
        return smaller

    def regroup(self, *, timeout: float | None = None) -> Communicator | None:
        """Make a new communicator of the ranks that are left and of the newcomers that wait. Collective among the
        ranks that are left. Returns None on a rank that leaves: it was asked to, by `leave` or by the launcher.

        timeout  seconds that the other ranks have to call it, and that newcomers have to come if the ranks are fewer
                 than the launcher's minimum. By default the setting `timeout`

        As `shrink`, after a failure or without one: `changes_pending` tells when ranks come or leave. Losses,
        leavers and newcomers are one decision, the same on all ranks. The ranks that go on come first, in their old
        order, so that rank 0 has the state of the computation; the newcomers follow. Newcomers beyond the launcher's
        maximum keep waiting. A newcomer that dies before it is connected is left out again.

        Raises as `shrink`; RendezvousError too if the ranks are too few. The communicator is closed then too.
        """
        return self._succeed("regroup", "regrouped", self._config.terms, timeout)

    def changes_pending(self) -> bool:
        """True if all ranks are to call `regroup` now, since newcomers wait or ranks are to leave. Collective: every
        rank calls it as often as the others, for example after each step, and gets the same result.

        It sends no message and compares two integers. A change is agreed in the background, by way of the store. Only
        then do ranks wait here for each other, for a few requests to the store.

        Raises RuntimeError for a communicator made by `split`. The errors of all methods; RendezvousError if the store
        failed while a change was being agreed. The communicator is aborted then.
        """
        if self._context != 0:
            raise RuntimeError("changes_pending: made by split; ask the communicator that it was split from")
        self._messages.check_open()
        try:
            return self._family.fence.passed(self._config.timeout)
        except RondeError as error:
            raise self._executor.abort_signal.fail(error, "changes_pending") from None

    def leave(self, reason: str) -> None:
        """Ask that this rank leaves at the next change of ranks: `changes_pending` becomes true on all ranks, and
        `regroup` returns None on this one. Not collective; any thread may call it.

        reason  text for the other ranks and the launcher

        Raises RendezvousError if the store in which the ranks met cannot be reached.
        """
        self._check_process()
        group = self.transport.group
        if group.parent_store is None:
            raise RendezvousError("leave: the ranks did not meet in a store, so they cannot meet again")
        ask_to_leave(group.parent_store, [group.numbers[group.rank]], reason)

    def _succeed(self, name: str, done: str, terms: str | None, timeout: float | None) -> Communicator | None:
        """The communicator of the next generation; None on a rank that leaves.

        name, done  the public method and its participle, for messages
        terms       see `membership.regroup`
        """
        self._check_process()
        if self._context != 0:
            raise RuntimeError(
                f"{name}: made by split; {name} the communicator that it was split from, and split again"
            )
        seconds = self._arguments.timeout(timeout)
        transport, config = self.transport, self._config
        if transport.group.parent_store is None:
            raise RendezvousError(f"{name}: the ranks did not meet in a store, so they cannot meet again")
        state = f"closed: its world was {done}; use the communicator that {name} returned"
        splits = [one for one in list(self._family.communicators) if one is not self._resources]
        for resources in (self._resources, *splits):  # a closed one is in no family, and refuses
            resources.retire(state)

        standby, self._family.standby = self._family.standby, Standby()

        def leave() -> None:
            with contextlib.suppress(DeadlineExceeded):  # everything is released all the same
                self.close(seconds)

        def connect(group: Group) -> Communicator:
            deadline = time.monotonic() + min(config.connect_timeout, CONNECT_SECONDS)
            return self.connect(group, config, deadline, standby)

        try:
            group, failure = transport.group, transport.failure
            self.successor = regroup(
                group, failure, seconds, config.heartbeat, terms=terms, standby=standby, leave=leave, connect=connect
            )
        except BaseException as error:
            self.abort(f"it cannot go on: {described(error)}")
            leave()
            raise
        finally:
            if self.successor is None:
                standby.close()
        return self.successor

    @property
    def current(self) -> Communicator:
        """The communicator that `shrink` or `regroup` made of this one, after any number of them; itself if there was
        none."""
        latest = self
        while latest.successor is not None:
            latest = latest.successor
        if latest is not self:
            self.successor = latest  # so that those between can be freed
        return latest

    def close(self, timeout: float | None = None, *, flush: float | None = None) -> None:
        """Finish the operations in flight and release everything; of the world communicator the transport too.

        timeout  seconds for that; by default the setting `timeout`
        flush    seconds for the other ranks to take the messages that were sent to them, of the world communicator; by
                 default the rest of `timeout`

        Raises DeadlineExceeded if the operations do not end in time; everything is released all the same. A second call
        does nothing.
        """
        if isinstance(self.failure, ForkedError):
            return
        seconds = self._arguments.timeout(timeout)
        if self.transport.entered or any(one.entered for one in list(self._family.communicators)):
            self.abort("a signal handler or a destructor closed it in the middle of a call")
            self.transport.unlocked(functools.partial(self._close, seconds, flush))
        else:
            self._close(seconds, flush)

    def _close(self, seconds: float, flush: float | None) -> None:
        begun, family = time.monotonic(), self._family
        deadline = begun + seconds
        mine = [self._resources] if self._resources in family.communicators else []
        if self._context == 0:
            mine = list(family.communicators)
        for resources in mine:  # all before any is waited for: other ranks close them in another order
            resources.leave()
        try:
            with contextlib.ExitStack() as all_of_them:
                for resources in mine:
                    all_of_them.callback(resources.release, deadline)
        finally:
            family.forget(mine)
            if self._finalizer is not None:
                self._finalizer.detach()
            if self._context == 0:
                family.close(deadline if flush is None else begun + flush)

    def _check_process(self) -> None:
        """Raise ForkedError in a forked child of the rank's process."""
        if isinstance(self.failure, ForkedError):
            raise copy.copy(self.failure)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self.current
        if error is not None and mine.failure is None:
            mine.abort(described(error))
        mine.close()


def _begin(
    ordered: DeviceCalls, named: DeviceCalls, queue: CallQueue, engine: Engine, messages: PointToPoint
) -> Callable[[str | None], Starter[Work[Any]]]:
    """The function that gives the starter of calls with a name, or with None of those in their order. It does not refer
    to the communicator."""
    in_order = ordered.starter(begin_by(queue.submit), messages.begin)

    def begin(name: str | None) -> Starter[Work[Any]]:
        if name is None:
            return in_order
        return named.starter(begin_by(functools.partial(engine.submit, name)), messages.begin)

    return begin
