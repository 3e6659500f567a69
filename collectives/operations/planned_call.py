"""PlannedCall: one kind of call, checked and planned once; every later call of the kind finds it in one look-up.

allreduce(x, "sum", out=x)
    |  key: collective, dtype, shape, in place, offsets in windows, the arguments that decide (Collective.key)
    v
PlannedCalls --> PlannedCall --> Job --> CallQueue.run, submit, a persistent call, or the engine by name
                                  |
                                  +--> Executor.run(plan, source, target, deadline)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import Array, Op
from collectives.execution import Scales
from collectives.jit import UNFIT, ArrayKind, JobRing
from collectives.operations.job import Job, Packable, Part
from collectives.operations.reduction import Reduction
from collectives.operations.signature import Signature
from collectives.operations.space import Result, Space
from collectives.operations.speculation import Speculation
from collectives.written import Span, span
from transports.locks import let_go

new_array: Final[Callable[..., Array]] = np.empty
_ndarray: Final = np.ndarray
_BYTE: Final = np.dtype(np.uint8)
_MOST_CALLS: Final = 4096
"""Kinds of calls that are kept. A program may scale by another factor in each step."""


def _always_done(*_: Any) -> Any:
    """The `otherwise` of calls that are not speculative."""
    raise AssertionError("a call that is not speculative has ended without effect")


def _never(x: Any, out: Any) -> bool:
    """The `fits` of a call that is always looked up."""
    return False


class PlannedCall:
    """One kind of call.

    plan       the exchange, as Space.plan gives it
    shape      of this rank's result; None if this rank gets none
    flat       x and the result have one dimension
    reduction  the arithmetic around the exchange, for collectives that reduce
    signature  the description of a named call of this kind, which must be equal on all ranks
    otherwise  (x, out, seconds) -> job: the call another way, to be run if it has ended without effect
    fits       (x, out): True if both are arrays as those that the call was planned for; False if it has to be looked up
    table      of a call that is nothing but a table; None for others
    begin      (source, target), of any shape: begins what `run` does, in machine code, and mostly ends it; then it
               returns None, and otherwise what `go_on` wants; None if there is no such code
    again      (deadline): the same call, planned after the ranks have made their staging window; None if they have, or
               have none
    """

    __slots__ = (
        "_exchange",
        "_executor",
        "_quietly",
        "_speculation",
        "_table",
        "again",
        "begin",
        "dtype",
        "fits",
        "flat",
        "otherwise",
        "plan",
        "reduction",
        "shape",
        "signature",
        "table",
    )

    def __init__(
        self,
        space: Space,
        function: Callable[..., Any],
        plan: Any,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] | None,
        signature: Signature,
        *,
        flat: bool = False,
        reduction: Reduction | None = None,
        scales: Scales | None = None,
        otherwise: Callable[..., Any] = _always_done,
        speculation: Speculation | None = None,
    ) -> None:
        """
        function     (plan, source, target, deadline): does the call between flat arrays; False: it had no effect
        scales       the factors if the call is nothing but an exchange with factors
        speculation  decides whether a speculative call is tried
        """
        self._quietly = space.quietly
        self._exchange = partial(space.quietly, function, plan)
        self.plan = plan
        self.dtype = dtype
        self.shape = shape
        self.signature = signature
        self.flat = flat
        self.reduction = reduction
        self.otherwise = otherwise
        self._executor = space.executor
        self._speculation = speculation
        table = None if scales is None else space.table(plan)
        self._table = None if table is None or scales is None else table.scaled(scales)
        alone = speculation is None and self._table is not None and self._table.runs_alone
        self.table = self._table if alone else None
        self.begin: Callable[[Any, Any], int | None] | None = None
        if self._table is not None:
            run = self._table.run
            self.begin = run if speculation is None else speculation.guard(run, plan.call)
        self.fits: Callable[[Any, Any], bool] = _never
        self.again: Callable[[float], PlannedCall] | None = None

    def go_on(self, answer: int, x: Any, out: Any, result: Any, seconds: float) -> Callable[[], Any] | None:
        """End a call on x after `begin` has returned `answer`, or UNTRIED if there is none. Raises as Executor.run.
        Returns None if the result is in `result`, or else the function that makes it, for after the call.

        out, result   as the caller gave it, and the array for the result
        seconds       that the call may take
        """
        deadline = time.monotonic() + seconds
        if answer <= UNFIT:  # nothing was done
            if self.again is not None:
                return self.again(deadline).go_on(answer, x, out, result, seconds)
            if self.flat:
                source, target = x, result
            else:
                target = result.reshape(-1)
                source = target if out is x else x.reshape(-1)
            done = self._exchange(source, target, deadline)
        else:
            assert self._table is not None
            done = self._quietly(self._executor.go_on, self._table, answer, x, result, deadline)
            if self._speculation is not None and not done:
                self._speculation.failed()
        return self.run_otherwise(x, out, seconds, deadline) if done is False else None

    def run_otherwise(self, x: Any, out: Any, seconds: float, deadline: float) -> Callable[[], Any]:
        """Do the call another way, after it has had no effect; returns the function that makes the result."""
        job: Job[Any] = self.otherwise(x, out, seconds)
        return partial(job.finish, job.run(deadline))

    def job_ring(self) -> JobRing | None:
        """A new ring for calls with a `table`; see Executor.job_ring."""
        return self._executor.job_ring()

    def report_times(self) -> None:
        """See Executor.report_times."""
        assert self.table is not None
        self._executor.report_times(self.table)

    def left(self, error: BaseException) -> None:
        """See Executor.left."""
        self._executor.left(error)

    def run(self, source: Any, target: Any, deadline: float) -> Any:
        """Run it between flat arrays; `target` is None where this rank gets no result. Raises as Executor.run."""
        if self.again is not None:
            return self.again(deadline).run(source, target, deadline)
        return self._exchange(source, target, deadline)

    @property
    def exchanges_only(self) -> bool:
        """True if nothing but the exchange reads the source and writes the result."""
        return self.reduction is None or not self.reduction.surrounds(self.plan)


class InBytes:
    """A planned call on bytes as one on whole arrays of any dtype and shape, which are used in the place of a
    PlannedCall. `fits`: True for the arrays that it is for."""

    __slots__ = ("_planned", "begin", "dtype", "fits", "reduction", "shape", "signature", "table")

    def __init__(self, planned: PlannedCall, fits: Callable[[Any, Any], bool]) -> None:
        self._planned = planned
        self.fits = fits
        self.begin = planned.begin  # it reads addresses alone
        self.shape = planned.shape
        self.dtype = planned.dtype
        self.signature = planned.signature
        self.reduction = None
        self.table = None

    def go_on(self, answer: int, x: Any, out: Any, result: Any, seconds: float) -> Callable[[], Any] | None:
        """See PlannedCall. `out` is an array."""
        source, target = as_bytes(x, out)
        return self._planned.go_on(answer, source, target, target, seconds)

    def run(self, source: Any, target: Any, deadline: float) -> Any:
        """See PlannedCall."""
        return self._planned.run(*as_bytes(source, target), deadline)

    def run_otherwise(self, x: Any, out: Any, seconds: float, deadline: float) -> Callable[[], Any]:
        """See PlannedCall."""
        return self._planned.run_otherwise(*as_bytes(x, out), seconds, deadline)


def as_bytes(x: Any, out: Any) -> tuple[Any, Any]:
    """The memory of two contiguous arrays, of which each may be None, as bytes; one array if they are one."""
    source = None if x is None else x.reshape(-1).view(_BYTE)
    if out is x:
        return source, source
    return source, None if out is None else out.reshape(-1).view(_BYTE)


def _as_given(x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return arguments


class Collective(NamedTuple):
    """A collective on the arrays of one space: the way from the arguments of a call to its plan. The arguments are one
    tuple, without x, out and the timeout.

    name      the method of the Communicator
    plan      (array, in_place, offsets, key): checks the rest and plans the call, once for each kind of call
    key       (x, arguments): the arguments that decide the plan, checked; None if the call is not planned before it
              runs, since the ranks have to agree on sizes
    in_place  `out` may be `x`
    receives  (key): True if this rank gets a result; None: every rank gets one
    keeps     (key): True if a call in place does not write on this rank, whose array may be read-only; None: it writes
    job       (x, out, arguments, seconds): makes the job of a call that is not planned before it runs; None: there are
              no such calls
    """

    name: str
    plan: Callable[..., PlannedCall] | None = None
    key: Callable[[Any, tuple[Any, ...]], tuple[Any, ...] | None] = _as_given
    in_place: bool = False
    receives: Callable[[tuple[Any, ...]], bool] | None = None
    keeps: Callable[[tuple[Any, ...]], bool] | None = None
    job: Callable[..., Job[Any]] | None = None


class PlannedCalls:
    """The planned calls of one space, forgotten with its plans (Executor.forget_plans).

    space   the memory in which the exchanges and the arithmetic around them take place
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._windows = space.executor.windows
        self._known: dict[Any, PlannedCall] = space.executor.planner.cache()
        self._in_place: dict[str, dict[Any, PlannedCall]] = space.executor.planner.cache()
        """Collective -> key -> the call in place that was found last. `PlannedCall.fits` tells whether it is the right
        one, in a tenth of the time of the look-up."""
        self._apart: dict[str, dict[Any, PlannedCall]] = space.executor.planner.cache()
        """The same for calls that are not in place."""
        self.repeated: dict[Any, PlannedCall | InBytes] = space.executor.planner.cache()
        """The same for each `Repeated`."""

    def plain(self, collective: Collective, x: Array, out: Any, arguments: tuple[Any, ...]) -> PlannedCall | None:
        """The planned call on NumPy arrays that can be used as they are: contiguous, and `out` (None: a new array) is
        `x` or fits and does not overlap it. None for other arrays, and for calls that are not planned before they
        run."""
        key = collective.key(x, arguments)
        if key is None:
            return None
        in_place = out is x
        latest = self._in_place if in_place else self._apart
        if latest:
            try:
                planned = latest[collective.name][key]
            except (KeyError, TypeError):  # the first one; or an argument cannot be hashed
                planned = None
            if planned is not None and planned.fits(x, out):
                return planned
        flags = x.flags
        if not (flags.carray and collective.in_place if in_place else flags.c_contiguous):  # carray: writeable, aligned
            return None
        if collective.plan is None or (collective.receives is not None and not collective.receives(key)):
            return None
        planned = self.find(collective, x, x, out, key)
        if out is not None and not in_place:
            if type(out) is not _ndarray or out.dtype != planned.dtype or out.shape != planned.shape:
                return None
            into = out.flags
            if not (into.c_contiguous and into.writeable):
                return None
            if not (into.owndata and flags.owndata) and np.may_share_memory(out, x):  # which is slow to ask
                return None
        if planned.fits is not _never:
            latest.setdefault(collective.name, {})[key] = planned
        return planned

    def plain_in_bytes(self, collective: Collective, x: Array, out: Any, arguments: tuple[Any, ...]) -> InBytes | None:
        """The same as `plain` of the memory of both arrays as bytes. `out` is an array, or None."""
        source, target = as_bytes(x, out)
        planned = None if out is None else self.plain(collective, source, target, arguments)
        if planned is None:
            return None
        fits: Callable[[Any, Any], bool] | None = None
        if planned.fits is not _never:
            offsets = self.space.offsets(collective.name, source, target) if self._windows.pieces else None
            kind, in_place = ArrayKind(out.dtype, out.shape), out is x
            fits = self.space.executor.fitting(collective.name, x, kind, offsets, in_place=in_place)
        return InBytes(planned, fits or _never)

    def job(
        self, space: Space, collective: Collective, x: Any, out: Any, arguments: tuple[Any, ...], seconds: float
    ) -> Job[Any]:
        """The job of a call on any arrays of a space: this one, or mirrors of other memory. Raises TypeError or
        ValueError for bad arguments."""
        if collective.job is not None:
            return collective.job(x, out, arguments, seconds)
        key = collective.key(x, arguments)
        assert key is not None
        array = space.array(x, records=any(isinstance(each, Op) for each in key))
        result: Result | None = None
        receives = collective.receives is None or collective.receives(key)
        if collective.in_place and receives:
            read_only = out is x and isinstance(x, _ndarray) and not x.flags.writeable
            if read_only and collective.keeps is not None and collective.keeps(key):
                source = space.flat(array)
                result = Kept(x, source)
            else:
                source, result = space.pair(x, array, out)
        else:
            source = space.flat(array)
            if receives:  # before the call is planned: a copy is in no window, where other ranks would read
                source = space.apart(source, out)
        planned = self.find(collective, array, source, None if result is None else result.flat, key)
        if result is None and planned.shape is not None:
            result = space.result(out, planned.shape, array.dtype, x)
        return ArrayJob(planned, source, result, seconds)

    def find(self, collective: Collective, array: Any, source: Any, target: Any, key: tuple[Any, ...]) -> PlannedCall:
        """The planned call of a collective on `array`, from `source` into `target` (the same object: in place). Raises
        what `Collective.plan` raises, if there is none yet."""
        offsets = self.space.offsets(collective.name, source, target) if self._windows.pieces else None
        kind = collective.name, key, target is source, array.dtype, array.shape, offsets
        try:
            return self._known[kind]
        except KeyError:
            keep = True
        except TypeError:  # an argument that cannot be hashed
            keep = False
        assert collective.plan is not None
        return self._make(kind, array, collective.plan, keep)  # here, since its errors are no errors of the look-up

    def _make(self, kind: tuple[Any, ...], array: Any, plan: Callable[..., PlannedCall], keep: bool) -> PlannedCall:
        lock = self.space.executor.planning
        try:
            with lock:
                planned = self._known.get(kind) if keep else None  # another thread has made it meanwhile
                return self._made(kind, array, plan, keep) if planned is None else planned
        except BaseException:
            let_go(lock)
            raise

    def _made(self, kind: tuple[Any, ...], array: Any, plan: Callable[..., PlannedCall], keep: bool) -> PlannedCall:
        name, key, in_place, _, _, offsets = kind
        if len(self._known) >= _MOST_CALLS:
            self.space.executor.forget_plans()
        planned = plan(array, in_place, offsets, key)
        executor = self.space.executor
        if executor.unready:
            like = np.broadcast_to(np.empty((), array.dtype), array.shape)  # takes no memory, as `array` does

            @cache
            def made_anew() -> PlannedCall:
                return plan(like, in_place, None, key)

            def again(deadline: float) -> PlannedCall:
                executor.ready(deadline)
                return made_anew()

            planned.again = again
        elif keep:
            if planned.shape is not None:
                fitting = ArrayKind(planned.dtype, planned.shape)
                planned.fits = executor.fitting(name, array, fitting, offsets, in_place=in_place) or _never
            self._known[kind] = planned
        return planned


class Kept:
    """The result of a call in place that does not write: see Result."""

    def __init__(self, x: Any, flat: Any) -> None:
        self.flat = flat
        self._x = x

    def finish(self) -> Any:
        """The array that was given."""
        return self._x


class PlainJob(Job[Any]):
    """A planned call on NumPy arrays that are used as they are."""

    __slots__ = ("out", "planned", "x")

    def __init__(self, planned: PlannedCall, x: Array, out: Array | None, timeout: float) -> None:
        self.timeout = timeout
        self.planned = planned
        self.out = out
        """The result; None until it is made."""
        self.x = x

    @property
    def signature(self) -> Signature:
        return self.planned.signature

    @property
    def packable(self) -> Packable | None:
        reduction = self.planned.reduction
        if reduction is None or not reduction.packs or self.planned.signature.kind != "allreduce":
            return None
        out = self.result()
        source, target = self.arrays(out)
        return Packable((Part(reduction, source.size, source, target),), lambda: out)

    @property
    def written(self) -> Sequence[Span]:
        return () if self.out is None or self.planned.signature.kind != "allreduce" else (span(self.out),)

    def run(self, deadline: float) -> Callable[[], Any] | None:
        planned, given = self.planned, self.out
        if planned.run(*self.arrays(self.result()), deadline) is False:
            return planned.run_otherwise(self.x, given, self.timeout, deadline)
        return None

    def finish(self, product: Callable[[], Any] | None) -> Any:
        return self.out if product is None else product()

    def arrays(self, out: Array) -> tuple[Array, Array]:
        """Flat source and target."""
        target = out.reshape(-1)
        return (target if out is self.x else self.x.reshape(-1)), target

    def result(self) -> Array:
        """The array for the result."""
        if self.out is None:
            self.out = new_array(self.planned.shape, self.planned.dtype)
        return self.out


class ArrayJob(Job[Any]):
    """A planned call on flat arrays, of which the result is made afterwards."""

    __slots__ = ("_result", "_source", "planned")

    def __init__(self, planned: PlannedCall, source: Any, result: Result | None, timeout: float) -> None:
        self.timeout = timeout
        self.planned = planned
        self._source = source
        self._result = result

    @property
    def signature(self) -> Signature:
        return self.planned.signature

    @property
    def packable(self) -> Packable | None:
        reduction, result = self.planned.reduction, self._result
        if reduction is None or not reduction.packs or self.signature.kind != "allreduce" or self.signature.detail:
            return None
        assert result is not None
        return Packable((Part(reduction, self._source.size, self._source, result.flat),), result.finish)

    @property
    def written(self) -> Sequence[Span]:
        result = self._result
        if result is None or self.signature.kind != "allreduce" or not isinstance(result.flat, np.ndarray):
            return ()
        return (span(result.flat),)

    def run(self, deadline: float) -> None:
        result = self._result
        self.planned.run(self._source, None if result is None else result.flat, deadline)

    def finish(self, product: Any) -> Any:
        return None if self._result is None else self._result.finish()
