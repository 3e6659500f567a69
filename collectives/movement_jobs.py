"""The jobs of the collectives that move data: broadcast, allgather, gather, scatter, alltoall; and barrier.

The docstrings are those of the communicator's methods, which are made from these. Where sizes differ between ranks the
job begins by agreeing on them (agree.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from collectives.agree import Shapes, agree_on_parts, agree_on_shapes, agree_on_splits
from collectives.arguments import JobMaker, apart, dtype_name
from collectives.buffers import Array, Target, as_numpy, check_dtype, flat
from collectives.config import Config
from collectives.execute import Executor
from collectives.plan import Call
from collectives.progress import Job
from collectives.ready import Ready
from collectives.select import Selector
from collectives.terms import Terms

_AFTER_UNEVEN: Final = 16
"""How many gatherings do not hope for equal parts after one that had others."""


class MovementJobs(JobMaker):
    """Makes the jobs of data movement."""

    def __init__(self, rank: int, size: int, executor: Executor, selector: Selector, config: Config) -> None:
        super().__init__(rank, size, executor, selector, config)
        self._cautious = 0

    def ready_broadcast(self, x: Array, root: Any, in_place: bool) -> Ready:
        """A broadcast without options. Raises TypeError or ValueError as `broadcast` does."""
        check_dtype(x.dtype, "x")
        self.check_rank(root, "root")
        reads = self.rank == root
        call = Call("broadcast", x.dtype, (x.size,), None, int(root), 0 if reads and in_place else None)
        return Ready(self._executor.planner.plan(call), x.shape, reads)

    def ready_allgather(self, x: Array, argument: Any, in_place: bool) -> Ready | None:
        """An allgather of equal parts, for `gather_even`. Raises TypeError as `allgather` does."""
        check_dtype(x.dtype, "x")
        if in_place or not x.ndim or not self._executor.onesided:
            return None
        return Ready(self._executor.planner.plan(_even(x.dtype, x.shape)), (x.shape[0] * self.size, *x.shape[1:]))

    def gather_even(self, ready: Ready, x: Array, out: Array | None, deadline: float) -> Any:
        """An allgather that is likely to have equal parts. Raises as `allgather` does."""
        if not self._cautious:
            result = self._executor.quiet.run(self._executor.repeat, ready, x, out, deadline)
            if result is not None:
                return result
            self._cautious = _AFTER_UNEVEN + 1
        return self.allgather(x, out=out).run(deadline)

    def ready_alltoall(self, x: Array, splits: Any, in_place: bool) -> Ready | None:
        """An alltoall of equal parts. Raises TypeError or ValueError as `alltoall` does."""
        if splits is not None or in_place:
            return None
        check_dtype(x.dtype, "x")
        rows = self.rows(x, None, "splits", even=True)
        blocks = Shapes(x.dtype, tuple(rows), x.shape[1:]).blocks
        return Ready(self._executor.planner.plan(Call("alltoall", x.dtype, blocks[:1])), x.shape)

    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Job[Any]:
        """Every rank gets the root's `x`. All ranks pass an array of one shape and dtype; off the root its contents
        do not matter."""
        array = as_numpy(x)
        self.check_rank(root, "root")
        self._selector.check("broadcast", algorithm)
        target = Target(out, array.shape, array.dtype, like=x)
        source, alias = None, None
        if self.rank == root:
            source = target.flat if out is x else apart(flat(array), target)
            alias = 0 if out is x else None
        call = Call("broadcast", array.dtype, (array.size,), None, int(root), alias, algorithm)

        def run(deadline: float) -> Any:
            self._executor.run(call, source, target.flat, deadline)
            return target.finish()

        return self.job(run, timeout, _terms("broadcast", array, array.shape, root, algorithm))

    def allgather(
        self, x: Any, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Job[Any]:
        """Every rank gets all ranks' `x`, concatenated along axis 0 in rank order. The first dimensions may differ; a
        0-d array counts as one row.

        Raises MismatchError on every rank if the rest of the shapes or the dtypes differ; the communicator stays
        usable after that, and after a ValueError for an `out` of the wrong shape.
        """
        return self._gathering("allgather", x, None, out, algorithm, timeout)

    def gather(
        self, x: Any, root: int = 0, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Job[Any]:
        """allgather whose result only the root gets; the others get None, and their `out` is ignored."""
        self.check_rank(root, "root")
        return self._gathering("gather", x, int(root), out, algorithm, timeout)

    def grouped_allgather(self, xs: Sequence[Any], *, timeout: float | None = None) -> Job[list[Any]]:
        """allgather of several arrays as one operation. Returns the results in order."""
        jobs = [self._gathering("allgather", x, None, None, None, timeout) for x in xs]
        terms = Terms("grouped_allgather", detail=tuple(part for job in jobs for part in job.terms[1:3]))
        return self.job(lambda deadline: [job.run(deadline) for job in jobs], timeout, terms)

    def _gathering(
        self, collective: str, x: Any, root: int | None, out: Any, algorithm: str | None, timeout: float | None
    ) -> Job[Any]:
        array = as_numpy(x)
        self._selector.check(collective, algorithm)
        receives = root is None or root == self.rank
        source = flat(array)
        shape = array.shape or (1,)
        if receives and out is not None:
            source = apart(source, Target(out, np.shape(out), array.dtype))

        def into(whole: tuple[int, ...], run: Callable[[Array], bool]) -> Any:
            """The gathered array; None if `run` found that it has another shape."""
            fits = out is None or np.shape(out) == whole
            target = Target(out if fits else None, whole, array.dtype, like=x)
            if not run(target.flat):
                return None
            if not fits:  # the exchange took place all the same, so that the other ranks are not left waiting
                raise ValueError(f"out: has shape {np.shape(out)}, must have {whole}")
            return target.finish()

        def run(deadline: float) -> Any:
            executor = self._executor
            if root is None and algorithm is None and self._hopeful():
                even = _even(array.dtype, shape)
                whole = (shape[0] * self.size, *shape[1:])
                result = into(whole, lambda target: executor.attempt(even, source, target, deadline))
                if result is not None:
                    return result
                self._cautious = _AFTER_UNEVEN
            shapes = agree_on_shapes(executor, self.rank, self.size, collective, shape, array.dtype, deadline)
            call = Call(collective, array.dtype, shapes.blocks, None, root or 0, None, algorithm)
            if not receives:
                executor.run(call, source, None, deadline)
                return None

            def exchange(target: Array) -> bool:
                executor.run(call, source, target, deadline)
                return True

            return into(shapes.whole, exchange)

        return self.job(run, timeout, _terms(collective, array, shape[1:], root, algorithm))

    def _hopeful(self) -> bool:
        """Whether to begin as if all parts were equal, which takes a window: there a misfit harms nothing. All ranks
        come to the same answer, since all have made the same gatherings."""
        if self._cautious:
            self._cautious -= 1
            return False
        return self._executor.onesided

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Job[Any]:
        """Split the root's `x` along axis 0: every rank gets its part. Off the root `x` and `counts` are ignored.

        counts   rows for each rank; by default as even as possible, larger parts first

        The communicator stays usable after an error for an `out` that does not fit.
        """
        self.check_rank(root, "root")
        self._selector.check("scatter", algorithm)
        given, source = None, None
        if self.rank == root:
            array = as_numpy(x)
            rows = self.rows(array, counts, "counts", even=False)
            given = Shapes(array.dtype, tuple(rows), array.shape[1:])
            source = flat(array)
        elif out is not None:
            as_numpy(out, "out")

        def run(deadline: float) -> Any:
            shapes = agree_on_parts(self._executor, self.size, given, int(root), deadline)
            mine = (shapes.rows[self.rank], *shapes.rest)
            call = Call("scatter", shapes.dtype, shapes.blocks, None, int(root), None, algorithm)
            try:
                target = Target(out, mine, shapes.dtype, like=None if given is None else x)
            except (TypeError, ValueError):  # take part all the same, so that the other ranks are not left waiting
                self._executor.run(call, source, np.empty(shapes.blocks[self.rank], shapes.dtype), deadline)
                raise
            self._executor.run(call, None if source is None else apart(source, target), target.flat, deadline)
            return target.finish()

        return self.job(run, timeout, Terms("scatter", root=int(root), algorithm=algorithm))

    def alltoall(
        self,
        x: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Any = None,
        return_splits: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Job[Any]:
        """Split `x` along axis 0, part i for rank i; the result is what all ranks had for this one, in rank order.

        splits          rows for each rank; all ranks give them or none does (then the parts are equal)
        return_splits   also return how many rows came from each rank: (result, array of ints)
        """
        array = as_numpy(x)
        rows = self.rows(array, splits, "splits", even=True)
        self._selector.check("alltoall", algorithm)
        rest = array.shape[1:]
        source = flat(array)
        if out is not None:
            source = apart(source, Target(out, np.shape(out), array.dtype))

        def run(deadline: float) -> Any:
            shapes = agree_on_splits(self._executor, array.dtype, rows, rest, splits is not None, deadline)
            call = Call(
                "alltoall",
                array.dtype,
                row_and_column(self.rank, Shapes(array.dtype, tuple(rows), rest).blocks, shapes.blocks),
                algorithm=algorithm,
                uneven=splits is not None,
            )
            fits = out is None or np.shape(out) == shapes.whole
            target = Target(out if fits else None, shapes.whole, array.dtype, like=x)
            self._executor.run(call, source, target.flat, deadline)
            if not fits:
                raise ValueError(f"out: has shape {np.shape(out)}, must have {shapes.whole}")
            result = target.finish()
            return (result, np.asarray(shapes.rows, np.int64)) if return_splits else result

        agreed = ("splits",) if splits is not None else (f"{array.shape[0]} rows",)
        return self.job(run, timeout, _terms("alltoall", array, rest, None, algorithm)._replace(detail=agreed))

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> Job[None]:
        """Return when every rank has called it."""
        self._selector.check("barrier", algorithm)
        call = Call("barrier", np.dtype(np.uint8), (0,), algorithm=algorithm)

        def run(deadline: float) -> None:
            self._executor.run(call, None, None, deadline)

        return self.job(run, timeout, Terms("barrier", algorithm=algorithm))


def _terms(kind: str, array: Array, shape: tuple[int, ...], root: int | None, algorithm: str | None) -> Terms:
    """What ranks that name an operation must say alike; `shape` is what must be equal of the array's."""
    return Terms(
        kind, (dtype_name(array.dtype),), (shape,), root=None if root is None else int(root), algorithm=algorithm
    )


def _even(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Call:
    """An allgather of parts that all have this shape, or nothing happens."""
    return Call("allgather", dtype, (math.prod(shape),), rest=shape[1:])


def row_and_column(rank: int, given: tuple[int, ...], coming: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks of an alltoall as far as one rank knows them: what it gives and what comes to it."""
    size = len(given)
    if len(set(given)) == 1 and given == coming:
        return given[:1]
    blocks = [-1] * size**2
    blocks[rank::size] = coming
    blocks[rank * size : (rank + 1) * size] = given
    return tuple(blocks)
