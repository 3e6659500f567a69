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
from collectives.operations.arguments import Arguments, as_tuple, check_list, dtype_name
from collectives.operations.job import FunctionJob, Job
from collectives.operations.planned_call import Collective, PlannedCall, PlannedCalls
from collectives.operations.shapes import (
    NOTHING,
    Shapes,
    Stated,
    agree_on_shapes,
    agree_on_splits,
    agree_on_stated_parts,
)
from collectives.operations.signature import Signature
from collectives.operations.space import Result, Space
from collectives.operations.speculation import Speculation, even_call
from collectives.planning import Call, Selector, WindowOffsets


class Movement:
    """Data movement of arrays in one space."""

    def __init__(
        self,
        space: Space,
        arguments: Arguments,
        selector: Selector,
        calls: PlannedCalls,
        speculation: Speculation,
    ) -> None:
        self._space = space
        self._arguments = arguments
        self._selector = selector
        self._calls = calls
        self._speculation = speculation
        self._without_effect = selector.without_effect("allgather")

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The movements, with these arguments of the Communicator's methods: root, counts or splits, expected,
        return_splits, agreed, algorithm. Nothing here keeps them; see Reductions."""
        return (
            Collective("broadcast", self._plan_broadcast, self._rooted, in_place=True, keeps=self._is_root),
            self._even_allgather,
            Collective("gather", job=self._gather),
            Collective("scatter", job=self._scatter),
            Collective("alltoall", self._plan_even_alltoall, _key_of_even_alltoall, job=self._alltoall),
            Collective("grouped_allgather", job=self._grouped_allgather),
        )

    @property
    def _even_allgather(self) -> Collective:
        return Collective("allgather", self._plan_even_allgather, self._key_of_even_allgather, job=self._allgather)

    def _is_root(self, key: tuple[Any, ...]) -> bool:
        return bool(key[0] == self._arguments.rank)

    def _rooted(self, x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments if type(arguments[0]) is int else (self._arguments.root(arguments[0]), *arguments[1:])

    def _key_of_even_allgather(self, x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        expected, agreed, algorithm = arguments
        if agreed:
            _check_agreed(expected, "expected")
        # The usual case of `_speculates` comes without another call.
        speculates = self._space.speculates if algorithm is None else self._speculates(algorithm)
        if not x.ndim or not speculates or (agreed and not self._space.onesided):
            return None
        if expected is None:
            return algorithm, False
        rows = self._arguments.expected(expected)
        return (algorithm, True) if rows.count(x.shape[0]) == len(rows) else None

    def _allgather(self, x: Any, out: Any, arguments: tuple[Any, ...], seconds: float) -> Job[Any]:
        expected, agreed, algorithm = arguments
        return self._gathering("allgather", x, None, out, expected, algorithm, seconds, agreed=agreed)

    def _gather(self, x: Any, out: Any, arguments: tuple[Any, ...], seconds: float) -> Job[Any]:
        root, expected, agreed, algorithm = arguments
        root = self._arguments.root(root)
        return self._gathering("gather", x, root, out, expected, algorithm, seconds, agreed=agreed)

    def _grouped_allgather(self, xs: Sequence[Any], out: None, arguments: tuple[Any, ...], seconds: float) -> Job[Any]:
        (expected,) = arguments
        check_list(xs, "xs", "arrays")
        if expected is not None:
            check_list(expected, "expected", "rows from each rank")
            if len(expected) != len(xs):
                raise ValueError(f"expected: has {len(expected)} entries, must have {len(xs)}, one for each array")
        stated = [None] * len(xs) if expected is None else expected
        jobs = [
            self._gathering("allgather", x, None, None, rows, None, seconds, index=f"[{index}]")
            for index, (x, rows) in enumerate(zip(xs, stated, strict=True))
        ]
        signature = Signature(
            "grouped_allgather",
            tuple(name for job in jobs for name in job.signature.dtypes),
            tuple(shape for job in jobs for shape in job.signature.shapes),
            detail=self._space.detail,
        )

        def run(deadline: float) -> list[Any]:
            return [job.run(deadline) for job in jobs]

        def finish(products: list[Any]) -> list[Any]:
            return [job.finish(product) for job, product in zip(jobs, products, strict=True)]

        return FunctionJob(run, seconds, signature, finish=finish)

    def _gathering(
        self,
        collective: str,
        x: Any,
        root: int | None,
        out: Any,
        expected: Sequence[int] | None,
        algorithm: str | None,
        seconds: float,
        *,
        speculative: bool = True,
        agreed: bool = False,
        index: str = "",
    ) -> Job[Any]:
        """The job of a gathering of parts that may differ in their first dimension. `agreed`: all ranks expect the same
        rows. `index`: in messages, the place of the array in a list of them, as '[2]'."""
        space, rank, size = self._space, self._arguments.rank, self._arguments.size
        rows = None if expected is None else self._arguments.expected(expected, f"expected{index}")
        array = space.array(x, f"xs{index}" if index else "x")
        self._selector.check(collective, algorithm)
        receives = root is None or root == rank
        source = space.flat(array)
        shape = tuple(array.shape) or (1,)
        stated = NOTHING
        if receives:
            source = space.apart(source, out)
            stated = Stated(rows, self._shape_of(out, array, x))
        even = Shapes(array.dtype, (shape[0],) * size, shape[1:])
        speculative = speculative and root is None
        known: Shapes | None = None
        if agreed:
            _check_agreed(rows, "expected")
            known = Shapes(array.dtype, rows or (), shape[1:])
            if known.rows[rank] != shape[0]:
                raise ValueError(f"expected={known.rows}: has {known.rows[rank]} rows of this rank, x has {shape[0]}")
            if complaint := stated.complaint(rank, known):
                raise ValueError(complaint)
            if root is None and space.onesided and self._speculates(algorithm) and len(set(known.rows)) == 1:
                known = None  # other ranks may have arrays for which this is planned: see _key_of_even_allgather

        def finish(result: Result | None) -> Any:
            return None if result is None else result.finish()

        def run(deadline: float) -> Result | None:
            space.executor.ready(deadline)
            if known is not None:
                return exchange(known, deadline)
            if speculative and self._speculates(algorithm):
                if stated.complaint(rank, even):  # so it cannot be as if all parts were equal
                    self._refuse_even(array, source, algorithm, deadline)
                else:
                    key = algorithm, rows is not None
                    planned = self._calls.find(self._even_allgather, array, source, None, key)
                    result = space.result(out, even.whole, array.dtype, x)
                    if planned.run(source, result.flat, deadline):
                        return result
            shapes = agree_on_shapes(space.executor, collective, shape, array.dtype, deadline, stated)
            if space.speculates:
                self._speculation.agreed(shapes)
            return exchange(shapes, deadline)

        def exchange(shapes: Shapes, deadline: float) -> Result | None:
            call = Call(collective, array.dtype, shapes.blocks, None, root or 0, None, algorithm)
            if not receives:
                self._exchange(call, source, None, deadline)
                return None
            result = space.result(out, shapes.whole, array.dtype, x)
            self._exchange(call, source, result.flat, deadline)
            return result

        signature = self._signature(collective, array, shape[1:], root, algorithm)
        return FunctionJob(run, seconds, signature, finish=finish)

    def _shape_of(self, out: Any, array: Any, x: Any) -> tuple[int, ...] | None:
        """The shape of `out`, if it is given. Raises TypeError or ValueError if nothing like `array` fits into it."""
        if out is None:
            return None
        shape = tuple(self._space.array(out, "out").shape)
        self._space.result(out, shape, array.dtype, x)
        return shape

    def _speculates(self, algorithm: str | None) -> bool:
        """True if an allgather by this algorithm may run as if all parts were equal."""
        space = self._space
        return space.speculates and (algorithm is None or (space.onesided and algorithm in self._without_effect))

    def _refuse_even(self, array: Any, source: Any, algorithm: str | None, deadline: float) -> None:
        """Take part in an allgather as if all parts were equal, on a rank that states other sizes: it ends without
        effect on all ranks."""
        shape = tuple(array.shape) or (1,)
        call = even_call(array.dtype, shape, algorithm)
        unlike = self._space.plan(call._replace(shape=(-1, *shape[1:])))
        nowhere = self._space.empty(call.blocks[0] * self._arguments.size, array.dtype)
        self._run_even(unlike, source, nowhere, deadline)

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

    def _scatter(self, x: Any, out: Any, arguments: tuple[Any, ...], seconds: float) -> Job[Any]:
        root, counts, agreed, algorithm = arguments
        root = self._arguments.root(root)
        self._selector.check("scatter", algorithm)
        space, rank = self._space, self._arguments.rank
        given, source, stated = None, None, None
        if out is not None:
            target = space.array(out, "out")
            stated = tuple(target.shape), target.dtype
            space.result(out, *stated, None)  # raises if it cannot be written
        if rank == root:
            array = space.array(x)
            rows = self._arguments.rows(array.shape, as_tuple(counts, "counts"), "counts", even=False)
            given = Shapes(array.dtype, rows, tuple(array.shape[1:]))
            source = space.flat(array)
        known = self._agreed_parts(given, as_tuple(counts, "counts"), stated) if agreed else None

        def run(deadline: float) -> Result:
            shapes = known or agree_on_stated_parts(space.executor, given, stated, root, deadline)
            mine = (shapes.rows[rank], *shapes.rest)
            call = Call("scatter", shapes.dtype, shapes.blocks, None, root, None, algorithm)
            result = space.result(out, mine, shapes.dtype, None if given is None else x)
            self._exchange(call, None if source is None else space.apart(source, out), result.flat, deadline)
            return result

        signature = Signature("scatter", root=root, algorithm=algorithm, detail=space.detail)
        return FunctionJob(run, seconds, signature, finish=lambda result: result.finish())

    def _agreed_parts(
        self, given: Shapes | None, counts: tuple[int, ...] | None, stated: tuple[tuple[int, ...], Any] | None
    ) -> Shapes:
        """The parts of a scatter whose counts all ranks know. Raises ValueError for arguments that tell too little, or
        that do not fit each other."""
        _check_agreed(counts, "counts")
        parts = given
        if parts is None:
            if stated is None:
                raise ValueError("out: must be given with agreed=True, off the root")
            parts = Shapes(stated[1], self._arguments.expected(counts or (), "counts"), stated[0][1:])
        mine = (parts.rows[self._arguments.rank], *parts.rest), parts.dtype
        if stated is not None and stated != mine:
            raise ValueError(f"out: has shape {stated[0]} and dtype {stated[1]}, must have {mine[0]} and {mine[1]}")
        return parts

    def _alltoall(self, x: Any, out: Any, arguments: tuple[Any, ...], seconds: float) -> Job[Any]:
        """The job of an alltoall of parts that may differ in their first dimension."""
        splits, expected, return_splits, agreed, algorithm = arguments
        if agreed:
            _check_agreed(splits, "splits")
            _check_agreed(expected, "expected")
        stated = Stated(None if expected is None else self._arguments.expected(expected))
        space = self._space
        array = space.array(x)
        rows = self._arguments.rows(array.shape, as_tuple(splits, "splits"), "splits", even=True)
        self._selector.check("alltoall", algorithm)
        rest = tuple(array.shape[1:])
        source = space.apart(space.flat(array), out)
        stated = stated._replace(whole=self._shape_of(out, array, x))
        known = Shapes(array.dtype, rows if splits is None else stated.rows or (), rest)
        agrees = splits is not None and not agreed
        if known.rows and (text := stated.complaint(self._arguments.rank, known)):
            raise ValueError(text)

        def run(deadline: float) -> tuple[Result, Shapes]:
            coming = known
            if agrees:
                coming = agree_on_splits(space.executor, array.dtype, rows, rest, stated, deadline)
            blocks = row_and_column(self._arguments.rank, Shapes(array.dtype, rows, rest).blocks, coming.blocks)
            call = Call("alltoall", array.dtype, blocks, algorithm=algorithm, uneven=splits is not None)
            result = space.result(out, coming.whole, array.dtype, x)
            self._exchange(call, source, result.flat, deadline)
            return result, coming

        def finish(product: tuple[Result, Shapes]) -> Any:
            result, coming = product
            received = result.finish()
            return (received, np.asarray(coming.rows, np.int64)) if return_splits else received

        signature = self._signature("alltoall", array, rest, None, algorithm)
        agreed = ("splits",) if splits is not None else (f"{array.shape[0]} rows",)
        signature = signature._replace(detail=(*agreed, *signature.detail))
        return FunctionJob(run, seconds, signature, finish=finish)

    def barrier(self, algorithm: str | None, timeout: float | None) -> Job[None]:
        """The job of a barrier. Raises ValueError for a bad argument."""
        self._selector.check("barrier", algorithm)
        call = Call("barrier", np.dtype(np.uint8), (0,), algorithm=algorithm)

        def run(deadline: float) -> None:
            self._space.executor.run_call(call, None, None, deadline)

        return FunctionJob(run, self._arguments.timeout(timeout), Signature("barrier", algorithm=algorithm))

    def _exchange(self, call: Call, source: Any, target: Any, deadline: float) -> None:
        """Run a call whose sizes the ranks know."""
        self._space.executor.ready(deadline)
        offsets = self._space.offsets(call.collective, source, target)
        planned = self._space.plan(call if offsets is None else call._replace(windows=offsets))
        self._space.exchange(planned, source, target, deadline)

    # ---- planning, once for each kind of call

    def _in(self, space: Space) -> Movement:
        """The same in another space."""
        return Movement(space, self._arguments, self._selector, self._calls, self._speculation)

    def _plan_broadcast(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, key: tuple[int, str | None]
    ) -> PlannedCall:
        root, algorithm = key
        check_dtype(array.dtype, "x")
        self._arguments.root(root)
        self._selector.check("broadcast", algorithm)
        alias = 0 if in_place and self._arguments.rank == root else None
        call = Call("broadcast", array.dtype, (array.size,), None, root, alias, algorithm, windows=offsets)
        signature = self._signature("broadcast", array, tuple(array.shape), root, algorithm)
        return self._planned(call, array, tuple(array.shape), signature)

    def _plan_even_allgather(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, key: tuple[str | None, bool]
    ) -> PlannedCall:
        """An allgather of equal parts, which the caller expects if it has `stated` sizes. It ends without effect
        if the parts are not equal."""
        algorithm, stated = key
        check_dtype(array.dtype, "x")
        shape = tuple(array.shape) or (1,)
        call = even_call(array.dtype, shape, algorithm)._replace(windows=offsets)
        signature = self._signature("allgather", array, shape[1:], None, algorithm)
        expected = (shape[0],) * self._arguments.size if stated else None
        home = self if self._space is self._calls.space else self._in(self._calls.space)  # others will use the plan

        def agree_first(x: Array, out: Array | None, seconds: float) -> Job[Any]:
            """The same allgather, which begins with the agreement on sizes."""
            return home._gathering("allgather", x, None, out, expected, algorithm, seconds, speculative=False)

        return PlannedCall(
            self._calls.space,
            home._run_even,
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
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, key: tuple[str | None]
    ) -> PlannedCall:
        (algorithm,) = key
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


def _check_agreed(rows: Sequence[int] | None, name: str) -> None:
    """Raise ValueError unless the rows are given, as they must be if all ranks know them."""
    if rows is None:
        raise ValueError(f"{name}: must be given with agreed=True")


def _key_of_even_alltoall(x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    splits, expected, return_splits, agreed, algorithm = arguments
    if agreed:
        return None
    return (algorithm,) if splits is None and expected is None and not return_splits else None


def row_and_column(rank: int, given: tuple[int, ...], coming: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks of an alltoall as far as one rank knows them: those that it gives and those that come to it."""
    size = len(given)
    if len(set(given)) == 1 and given == coming:
        return given[:1]
    blocks = [-1] * size**2
    blocks[rank::size] = coming
    blocks[rank * size : (rank + 1) * size] = given
    return tuple(blocks)
