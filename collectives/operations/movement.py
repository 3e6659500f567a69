"""The collectives that move data: broadcast, allgather, gather, scatter, alltoall; and barrier.

Where sizes differ between ranks, a job begins with an agreement on them (shapes.py). An allgather may first run as if
all parts were equal: if they are not, the run ends without effect and the ranks agree (speculation.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from collectives.arrays import Array, check_dtype
from collectives.execution import UNSCALED
from collectives.operations.arguments import Arguments, as_tuple, dtype_name
from collectives.operations.job import FunctionJob, Job
from collectives.operations.planned_call import ArrayJob, PlannedCall, PlannedCalls
from collectives.operations.shapes import Shapes, agree_on_parts, agree_on_shapes, agree_on_splits
from collectives.operations.signature import Signature
from collectives.operations.space import Result, Space
from collectives.operations.speculation import Speculation, even_call
from collectives.operations.start import Start
from collectives.planning import Call, Selector, WindowOffsets


class Movement:
    """Data movement of arrays in one space. The arguments are those of the Communicator's methods; each method returns
    the product of its Start: a result, or a job."""

    def __init__(
        self,
        space: Space,
        arguments: Arguments,
        selector: Selector,
        calls: PlannedCalls,
        start: Start,
        speculation: Speculation,
    ) -> None:
        self._space = space
        self._arguments = arguments
        self._selector = selector
        self._calls = calls
        self._start = start
        self._speculation = speculation
        self._without_effect = selector.without_effect("allgather")

    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Any:
        arguments = root if type(root) is int else self._arguments.root(root), algorithm
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        planned = self._calls.find_plain("broadcast", x, out, arguments, self._plan_broadcast)
        if planned is not None:
            return self._start.plain(planned, x, out, seconds)
        array = self._space.array(x)
        source, result = self._space.pair(x, array, out)
        planned = self._calls.find("broadcast", array, source, result.flat, arguments, self._plan_broadcast)
        return self._start.job(ArrayJob(planned, source, result, seconds))

    def allgather(self, x: Any, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None) -> Any:
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        if out is not x and self._speculates(algorithm):
            planned = self._calls.find_plain("allgather", x, out, (algorithm,), self._plan_even_allgather)
            if planned is not None and x.ndim:
                return self._start.plain(planned, x, out, seconds)
        return self._start.job(self._gathering("allgather", x, None, out, algorithm, seconds))

    def gather(
        self, x: Any, root: int = 0, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Any:
        root = self._arguments.root(root)
        return self._start.job(self._gathering("gather", x, root, out, algorithm, self._arguments.timeout(timeout)))

    def grouped_allgather(self, xs: Sequence[Any], *, timeout: float | None = None) -> Any:
        seconds = self._arguments.timeout(timeout)
        jobs = [self._gathering("allgather", x, None, None, None, seconds) for x in xs]
        detail = tuple(part for job in jobs for part in job.signature[1:3])
        signature = Signature("grouped_allgather", detail=(*detail, *self._space.detail))

        def run(deadline: float) -> list[Any]:
            return [job.run(deadline) for job in jobs]

        def finish(products: list[Any]) -> list[Any]:
            return [job.finish(product) for job, product in zip(jobs, products, strict=True)]

        return self._start.job(FunctionJob(run, seconds, signature, finish=finish))

    def _gathering(
        self,
        collective: str,
        x: Any,
        root: int | None,
        out: Any,
        algorithm: str | None,
        seconds: float,
        *,
        speculative: bool = True,
    ) -> Job[Any]:
        """The job of a gathering of parts that may differ in their first dimension."""
        space, rank, size = self._space, self._arguments.rank, self._arguments.size
        array = space.array(x)
        self._selector.check(collective, algorithm)
        receives = root is None or root == rank
        source = space.flat(array)
        shape = tuple(array.shape) or (1,)
        if receives:
            source = space.apart(source, out)
        given = None if out is None or not receives else tuple(space.array(out, "out").shape)
        speculative = speculative and root is None

        def finish(product: tuple[Result, tuple[int, ...]] | None) -> Any:
            if product is None:
                return None
            result, whole = product
            if given not in (None, whole):  # the exchange took place, so that the other ranks are not left waiting
                raise ValueError(f"out: has shape {given}, must have {whole}")
            return result.finish()

        def place(whole: tuple[int, ...]) -> Result:
            return space.result(out if given == whole else None, whole, array.dtype, x)

        def run(deadline: float) -> tuple[Result, tuple[int, ...]] | None:
            if speculative and self._speculates(algorithm):
                planned = self._calls.find("allgather", array, source, None, (algorithm,), self._plan_even_allgather)
                whole = (shape[0] * size, *shape[1:])
                result = place(whole)
                if planned.run(source, result.flat, deadline):
                    return result, whole
            shapes = agree_on_shapes(space.executor, collective, shape, array.dtype, deadline)
            if space.speculates:
                self._speculation.agreed(shapes)
            call = Call(collective, array.dtype, shapes.blocks, None, root or 0, None, algorithm)
            if not receives:
                self._exchange(call, source, None, deadline)
                return None
            result = place(shapes.whole)
            self._exchange(call, source, result.flat, deadline)
            return result, shapes.whole

        signature = self._signature(collective, array, shape[1:], root, algorithm)
        return FunctionJob(run, seconds, signature, finish=finish)

    def _speculates(self, algorithm: str | None) -> bool:
        """True if an allgather by this algorithm may run as if all parts were equal."""
        space = self._space
        return space.speculates and (algorithm is None or (space.onesided and algorithm in self._without_effect))

    def _run_even(self, planned: Any, source: Any, target: Any, deadline: float) -> bool:
        """Run an allgather as if all parts were equal. False if they are not, or are not assumed to be."""
        speculation, executor = self._speculation, self._space.executor
        if not speculation.next():
            return False
        assumed = speculation.assumed
        if assumed is None or assumed == planned.call:
            if executor.run(planned, source, target, deadline):
                if assumed is not None:
                    speculation.assumed = planned.call  # the same object: see Speculation.guard
                return True
        else:
            executor.refuse(executor.planner.plan(assumed), deadline)
        speculation.failed()
        return False

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        root = self._arguments.root(root)
        self._selector.check("scatter", algorithm)
        space, rank, seconds = self._space, self._arguments.rank, self._arguments.timeout(timeout)
        given, source = None, None
        if rank == root:
            array = space.array(x)
            rows = self._arguments.rows(array.shape, as_tuple(counts, "counts"), "counts", even=False)
            given = Shapes(array.dtype, rows, tuple(array.shape[1:]))
            source = space.flat(array)
        elif out is not None:
            space.array(out, "out")

        def run(deadline: float) -> Result | Exception:
            shapes = agree_on_parts(space.executor, given, root, deadline)
            mine = (shapes.rows[rank], *shapes.rest)
            call = Call("scatter", shapes.dtype, shapes.blocks, None, root, None, algorithm)
            try:
                result = space.result(out, mine, shapes.dtype, None if given is None else x)
            except (TypeError, ValueError) as error:  # take part all the same: the other ranks are not left waiting
                self._exchange(call, source, space.empty(shapes.blocks[rank], shapes.dtype), deadline)
                return error
            self._exchange(call, None if source is None else space.apart(source, out), result.flat, deadline)
            return result

        def finish(product: Result | Exception) -> Any:
            if isinstance(product, Exception):
                raise product
            return product.finish()

        signature = Signature("scatter", root=root, algorithm=algorithm, detail=space.detail)
        return self._start.job(FunctionJob(run, seconds, signature, finish=finish))

    def alltoall(
        self,
        x: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Any = None,
        return_splits: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        if splits is None and not return_splits and out is not x:
            planned = self._calls.find_plain("alltoall", x, out, (algorithm,), self._plan_even_alltoall)
            if planned is not None:
                return self._start.plain(planned, x, out, seconds)
        return self._start.job(self._exchange_of_rows(x, splits, out, return_splits, algorithm, seconds))

    def _exchange_of_rows(
        self,
        x: Any,
        splits: Sequence[int] | None,
        out: Any,
        return_splits: bool,
        algorithm: str | None,
        seconds: float,
    ) -> Job[Any]:
        """The job of an alltoall of parts that may differ in their first dimension."""
        space = self._space
        array = space.array(x)
        rows = self._arguments.rows(array.shape, as_tuple(splits, "splits"), "splits", even=True)
        self._selector.check("alltoall", algorithm)
        rest = tuple(array.shape[1:])
        source = space.apart(space.flat(array), out)
        given = None if out is None else tuple(space.array(out, "out").shape)

        def run(deadline: float) -> tuple[Result, Shapes]:
            coming = agree_on_splits(space.executor, array.dtype, rows, rest, splits is not None, deadline)
            blocks = row_and_column(self._arguments.rank, Shapes(array.dtype, rows, rest).blocks, coming.blocks)
            call = Call("alltoall", array.dtype, blocks, algorithm=algorithm, uneven=splits is not None)
            fits = given in (None, coming.whole)
            result = space.result(out if fits else None, coming.whole, array.dtype, x)
            self._exchange(call, source, result.flat, deadline)
            return result, coming

        def finish(product: tuple[Result, Shapes]) -> Any:
            result, coming = product
            if given not in (None, coming.whole):
                raise ValueError(f"out: has shape {given}, must have {coming.whole}")
            received = result.finish()
            return (received, np.asarray(coming.rows, np.int64)) if return_splits else received

        signature = self._signature("alltoall", array, rest, None, algorithm)
        agreed = ("splits",) if splits is not None else (f"{array.shape[0]} rows",)
        signature = signature._replace(detail=(*agreed, *signature.detail))
        return FunctionJob(run, seconds, signature, finish=finish)

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> Any:
        self._selector.check("barrier", algorithm)
        call = Call("barrier", np.dtype(np.uint8), (0,), algorithm=algorithm)

        def run(deadline: float) -> None:
            self._space.executor.run_call(call, None, None, deadline)

        return self._start.job(
            FunctionJob(run, self._arguments.timeout(timeout), Signature("barrier", algorithm=algorithm))
        )

    def _exchange(self, call: Call, source: Any, target: Any, deadline: float) -> None:
        """Run a call whose sizes the ranks have just agreed on."""
        offsets = self._space.offsets(call.collective, source, target)
        planned = self._space.plan(call if offsets is None else call._replace(windows=offsets))
        self._space.exchange(planned, source, target, deadline)

    # ---- planning, once for each kind of call

    def _plan_broadcast(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, root: int, algorithm: str | None
    ) -> PlannedCall:
        check_dtype(array.dtype, "x")
        self._arguments.root(root)
        self._selector.check("broadcast", algorithm)
        alias = 0 if in_place and self._arguments.rank == root else None
        call = Call("broadcast", array.dtype, (array.size,), None, root, alias, algorithm, windows=offsets)
        signature = self._signature("broadcast", array, tuple(array.shape), root, algorithm)
        return self._planned(call, array, tuple(array.shape), signature)

    def _plan_even_allgather(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, algorithm: str | None
    ) -> PlannedCall:
        """An allgather of equal parts, which ends without effect if the parts are not equal."""
        check_dtype(array.dtype, "x")
        shape = tuple(array.shape) or (1,)
        call = even_call(array.dtype, shape, algorithm)._replace(windows=offsets)
        signature = self._signature("allgather", array, shape[1:], None, algorithm)

        def agree_first(x: Array, out: Array | None, seconds: float) -> Job[Any]:
            """The same allgather, which begins with the agreement on sizes."""
            return self._gathering("allgather", x, None, out, algorithm, seconds, speculative=False)

        return PlannedCall(
            self._calls.space,
            self._run_even,
            self._space.plan(call),
            array.dtype,
            (shape[0] * self._arguments.size, *shape[1:]),
            signature,
            flat=array.ndim == 1,
            scales=UNSCALED,
            otherwise=agree_first,
            speculation=self._speculation,
        )

    def _plan_even_alltoall(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, algorithm: str | None
    ) -> PlannedCall:
        check_dtype(array.dtype, "x")
        self._selector.check("alltoall", algorithm)
        rows = self._arguments.rows(array.shape, None, "splits", even=True)
        block = rows[0] * prod(array.shape[1:])
        call = Call("alltoall", array.dtype, (block,), algorithm=algorithm, windows=offsets)
        signature = self._signature("alltoall", array, tuple(array.shape[1:]), None, algorithm)
        signature = signature._replace(detail=(f"{array.shape[0]} rows", *signature.detail))
        return self._planned(call, array, tuple(array.shape), signature)

    def _planned(self, call: Call, array: Any, shape: tuple[int, ...], signature: Signature) -> PlannedCall:
        space = self._calls.space
        flat = array.ndim == len(shape) == 1
        return PlannedCall(
            space,
            space.direct or space.exchange,
            space.plan(call),
            array.dtype,
            shape,
            signature,
            flat=flat,
            scales=UNSCALED,
        )

    def _signature(
        self, kind: str, array: Any, shape: tuple[int, ...], root: int | None, algorithm: str | None
    ) -> Signature:
        """The signature of a call; `shape` is the part of the array's shape that must be equal on all ranks."""
        names = (dtype_name(array.dtype),)
        return Signature(kind, names, (shape,), root=root, algorithm=algorithm, detail=self._space.detail)


def row_and_column(rank: int, given: tuple[int, ...], coming: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks of an alltoall as far as one rank knows them: those that it gives and those that come to it."""
    size = len(given)
    if len(set(given)) == 1 and given == coming:
        return given[:1]
    blocks = [-1] * size**2
    blocks[rank::size] = coming
    blocks[rank * size : (rank + 1) * size] = given
    return tuple(blocks)
