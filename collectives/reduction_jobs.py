"""The jobs of the collectives that combine: allreduce, reduce, reduce_scatter.

The docstrings are those of the communicator's methods, which are made from these (communicator.py says what the
arguments have in common).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Any, Final

import numpy as np

from collectives.agree import Shapes
from collectives.arguments import JobMaker, apart, dtype_name
from collectives.buffers import Array, Target, as_numpy, check_dtype, flat
from collectives.config import Config
from collectives.execute import Executor
from collectives.fusion import Buffer, Packable, Part, bundles, packable, reduce_together
from collectives.plan import Call
from collectives.progress import Job
from collectives.ready import Ready
from collectives.reducing import Reduction
from collectives.reductions import ADASUM, LOGICAL, check_op, is_small_float
from collectives.select import Selector
from collectives.terms import Terms
from collectives.windows import Place

_REMEMBERED: Final = 1024
"""Ways to call, with what they have been found to mean."""
_PLAIN: Final = {str, float, type(None)}
"""Types whose equal values mean the same; a factor of 1 is one, True is a mistake."""


class ReductionJobs(JobMaker):
    """Makes the jobs of reductions."""

    buffer: Buffer

    def __init__(self, rank: int, size: int, executor: Executor, selector: Selector, config: Config) -> None:
        super().__init__(rank, size, executor, selector, config)
        self._ways: dict[tuple[Any, ...], tuple[Reduction, Terms]] = {}

    def forget(self) -> None:
        """Drop what calls have been found to mean, and the memory that arrays are packed into."""
        self._ways.clear()
        self.buffer.release()

    def ready_allreduce(self, x: Array, op: Any, in_place: bool) -> Ready | None:
        """An allreduce without options. Raises TypeError or ValueError as `allreduce` does."""
        return self._ready("allreduce", x, op, (x.size,), x.shape, in_place)

    def ready_reduce_scatter(self, x: Array, op: Any, in_place: bool) -> Ready | None:
        """A reduce_scatter without options. Raises TypeError or ValueError as `reduce_scatter` does."""
        if in_place:
            return None
        rows = self.rows(x, None, "counts", even=False)
        shapes = Shapes(x.dtype, tuple(rows), x.shape[1:])
        return self._ready("reduce_scatter", x, op, shapes.blocks, (rows[self.rank], *x.shape[1:]), False)

    def _ready(
        self, collective: str, x: Array, op: Any, blocks: tuple[int, ...], shape: tuple[int, ...], in_place: bool
    ) -> Ready | None:
        check_dtype(x.dtype, "x")
        check_op(op, x.dtype)
        fixed = self._config.reproducible
        if op == ADASUM or (op in LOGICAL and x.dtype.kind != "b") or (fixed and is_small_float(x.dtype)):
            return None
        call = Call(collective, x.dtype, blocks, op, 0, 0 if in_place else None, None, fixed)
        return Ready(self._executor.planner.plan(call), shape)

    def allreduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Job[Any]:
        """Combine all ranks' `x` element by element; every rank gets the result, the same bits everywhere.

        prescale, postscale   factors for the input and for the result
        reproducible          the same bits also for every algorithm, transport and segmenting: contributions are
                              combined in one fixed tree over the ranks, half-precision sums in float32. Where several
                              are NaN, it is not fixed which of these NaNs comes out
        """
        array = as_numpy(x)
        reduction, terms = self._reduction("allreduce", (array,), op, prescale, postscale, algorithm, reproducible)
        target = Target(out, array.shape, array.dtype, like=x)
        source = target.flat if out is x else apart(flat(array), target)
        places = self._executor.places("allreduce", source, target.flat)
        if places is not None:
            terms = terms._replace(windows=(places,))

        def run(deadline: float) -> Any:
            reduction.run(source, target.flat, (array.size,), 0, deadline)
            return target.finish()

        part = Part(reduction, array.size, source, target.flat)
        return self.job(run, timeout, terms, Packable((part,), target.finish) if packable(terms) else None)

    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Job[Any]:
        """allreduce whose result only the root gets; the others get None, and their `out` is ignored."""
        array = as_numpy(x)
        self.check_rank(root, "root")
        reduction, terms = self._reduction("reduce", (array,), op, prescale, postscale, algorithm, reproducible)
        target = Target(out, array.shape, array.dtype, like=x) if self.rank == root else None
        if target is None:
            source = flat(array)
        else:
            source = target.flat if out is x else apart(flat(array), target)

        def run(deadline: float) -> Any:
            reduction.run(source, None if target is None else target.flat, (array.size,), root, deadline)
            return None if target is None else target.finish()

        return self.job(run, timeout, terms._replace(root=int(root)))

    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Job[Any]:
        """Combine all ranks' `x` and split the result along axis 0: every rank gets its part.

        counts   rows for each rank, the same on all; by default as even as possible, larger parts first
        """
        array = as_numpy(x)
        rows = self.rows(array, counts, "counts", even=False)
        reduction, terms = self._reduction("reduce_scatter", (array,), op, prescale, postscale, algorithm, reproducible)
        rest = array.shape[1:]
        target = Target(out, (rows[self.rank], *rest), array.dtype, like=x)
        source = apart(flat(array), target)
        blocks = Shapes(array.dtype, tuple(rows), rest).blocks

        def run(deadline: float) -> Any:
            reduction.run(source, target.flat, blocks, 0, deadline)
            return target.finish()

        return self.job(run, timeout, terms._replace(detail=tuple(rows)))

    def grouped_allreduce(
        self,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Job[list[Any]]:
        """allreduce of several arrays as one operation: small arrays of one dtype travel together. Returns the results
        in order; `out` is a sequence like `xs`, and may be `xs`; its arrays must not overlap others.

        With a name this is the cheapest way to hand over many arrays: they are one for the ranks to agree on, and one
        to wait for. Those that lie in windows, as slices of one array of `empty`, are combined where they lie.
        """
        arrays = [as_numpy(x, f"xs[{index}]") for index, x in enumerate(xs)]
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        targets = [Target(o, a.shape, a.dtype, like=x) for o, a, x in zip(outs, arrays, xs, strict=True)]
        reductions, terms = {}, Terms("grouped_allreduce")
        for array in arrays:
            if array.dtype not in reductions:
                reductions[array.dtype], terms = self._reduction(
                    "allreduce", arrays, op, prescale, postscale, algorithm, reproducible, dtype=array.dtype
                )
        parts = []
        for x, o, array, target in zip(xs, outs, arrays, targets, strict=True):
            source = target.flat if o is x else apart(flat(array), target)
            parts.append(Part(reductions[array.dtype], array.size, source, target.flat))
        places = [self._executor.places("allreduce", part.source, part.target) for part in parts]
        terms = terms._replace(kind="grouped_allreduce", windows=tuple(places) if any(places) else ())

        def finish() -> list[Any]:
            return [target.finish() for target in targets]

        def run(deadline: float) -> list[Any]:
            for bundle in bundles([terms], self.buffer.limit(self._config.fusion_bytes)):
                reduce_together([parts[place.array] for place in bundle], self.buffer, deadline)
            return finish()

        def run_by_dtype(deadline: float) -> list[Any]:
            for reduction in reductions.values():
                reduce_together([part for part in parts if part.reduction is reduction], self.buffer, deadline)
            return finish()

        if not packable(terms):
            return self.job(run_by_dtype, timeout, terms)
        return self.job(run, timeout, terms, Packable(parts, finish))

    def zeros(self, terms: Terms) -> Packable:
        """What a rank that has joined gives to an allreduce of the others, which has these terms."""
        dtypes = [np.dtype(name) for name in terms.dtypes]
        reductions = {
            dtype: Reduction(
                self._executor,
                self.size,
                "allreduce",
                dtype,
                terms.op or "sum",
                algorithm=terms.algorithm,
                reproducible=terms.reproducible,
            )
            for dtype in dtypes
        }
        parts = []
        for dtype, shape, places in zip_longest(dtypes, terms.shapes, terms.windows):
            size, (source, target) = prod(shape), (None, None)
            if places is not None:  # where all others have their arrays
                source, target = (self._executor.lying(Place(*place), size, dtype) for place in places)
                source.fill(0)
            parts.append(Part(reductions[dtype], size, source, target))
        return Packable(parts, lambda: None)

    def _reduction(
        self,
        collective: str,
        arrays: Sequence[Array],
        op: str,
        prescale: float | None,
        postscale: float | None,
        algorithm: str | None,
        reproducible: bool | None,
        *,
        dtype: np.dtype[Any] | None = None,
    ) -> tuple[Reduction, Terms]:
        """How to reduce those of the arrays that have `dtype` (by default the first one's), and the terms for all."""
        dtype = arrays[0].dtype if dtype is None else dtype
        kinds = tuple([(array.dtype, array.shape) for array in arrays])
        key = collective, dtype, kinds, op, prescale, postscale, algorithm, reproducible
        if {type(prescale), type(postscale), type(op)} <= _PLAIN and key in self._ways:
            return self._ways[key]
        check_op(op, dtype)
        if op == ADASUM and (collective != "allreduce" or algorithm is not None):
            raise ValueError(f"op={op!r}: is for allreduce without algorithm=, not for {collective}")
        self._selector.check(collective, algorithm)
        before, after = _factor(prescale, "prescale", dtype), _factor(postscale, "postscale", dtype)
        fixed = self._config.reproducible if reproducible is None else bool(reproducible)
        reduction = Reduction(
            self._executor,
            self.size,
            collective,
            dtype,
            op,
            prescale=before,
            postscale=after,
            algorithm=algorithm,
            reproducible=fixed,
        )
        names, shapes = tuple(dtype_name(kind) for kind, _ in kinds), tuple(shape for _, shape in kinds)
        way = reduction, Terms(collective, names, shapes, op, None, before, after, algorithm, fixed)
        if len(self._ways) >= _REMEMBERED:
            self._ways.clear()
        self._ways[key] = way
        return way


def _factor(value: float | None, name: str, dtype: np.dtype[Any]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r}: must be a number")
    if dtype.kind == "b":
        raise TypeError(f"{name}={value!r}: bool cannot be scaled")
    return None if value == 1 else float(value)
