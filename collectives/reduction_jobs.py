"""The jobs of the collectives that combine: allreduce, reduce, reduce_scatter.

The docstrings are those of the communicator's methods, which are made from these (communicator.py says what the
arguments have in common).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from collectives.agree import Shapes
from collectives.arguments import JobMaker, apart
from collectives.buffers import Array, Target, as_numpy, check_dtype, flat
from collectives.config import Config
from collectives.execute import Executor, Small
from collectives.plan import Call
from collectives.progress import Job
from collectives.reductions import FLOAT32, LOGICAL, check_op, divide, is_small_float, scale
from collectives.select import Selector

_REMEMBERED: Final = 256
"""Small calls that are kept ready."""


class ReductionJobs(JobMaker):
    """Makes the jobs of reductions."""

    def __init__(self, rank: int, size: int, executor: Executor, selector: Selector, config: Config) -> None:
        super().__init__(rank, size, executor, selector, config)
        self._small: dict[tuple[str, np.dtype[Any], tuple[int, ...]], Small | None] = {}

    def forget(self) -> None:
        """Drop the calls that are kept ready."""
        self._small.clear()

    def small_allreduce(self, x: Array, op: str, out: Any) -> Small | None:
        """An allreduce of NumPy arrays with no options, ready to be repeated; None if it is none of the small, plain
        ones, or not even a right one: then `allreduce` must say so."""
        try:
            small = self._small[op, x.dtype, x.shape]
        except (KeyError, TypeError):
            small = self._prepare_small(x, op)
        if small is None or out is None:
            return small
        fits = type(out) is np.ndarray and out.dtype == x.dtype and out.shape == x.shape and out.flags.writeable
        return small if fits else None

    def _prepare_small(self, x: Array, op: str) -> Small | None:
        try:
            check_dtype(x.dtype, "x")
            check_op(op, x.dtype)
        except (TypeError, ValueError):
            return None
        fixed = self._config.reproducible
        plain = (
            op != "average" and (op not in LOGICAL or x.dtype.kind == "b") and not (fixed and is_small_float(x.dtype))
        )
        small = self._executor.small(Call("allreduce", x.dtype, (x.size,), op, 0, 0, None, fixed)) if plain else None
        if len(self._small) >= _REMEMBERED:
            self._small.clear()
        self._small[op, x.dtype, x.shape] = small
        return small

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
                              combined in one fixed tree over the ranks, half-precision sums in float32
        """
        array = as_numpy(x)
        reduction = self._reduction("allreduce", array, op, prescale, postscale, algorithm, reproducible)
        target = Target(out, array.shape, array.dtype, like=x)
        source = target.flat if out is x else apart(flat(array), target)

        def run(deadline: float) -> Any:
            reduction(source, target.flat, (array.size,), 0, deadline)
            return target.finish()

        return self.job(run, timeout)

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
        reduction = self._reduction("reduce", array, op, prescale, postscale, algorithm, reproducible)
        target = Target(out, array.shape, array.dtype, like=x) if self.rank == root else None
        if target is None:
            source = flat(array)
        else:
            source = target.flat if out is x else apart(flat(array), target)

        def run(deadline: float) -> Any:
            reduction(source, None if target is None else target.flat, (array.size,), root, deadline)
            return None if target is None else target.finish()

        return self.job(run, timeout)

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
        reduction = self._reduction("reduce_scatter", array, op, prescale, postscale, algorithm, reproducible)
        rest = array.shape[1:]
        target = Target(out, (rows[self.rank], *rest), array.dtype, like=x)
        source = apart(flat(array), target)
        blocks = Shapes(array.dtype, tuple(rows), rest).blocks

        def run(deadline: float) -> Any:
            reduction(source, target.flat, blocks, 0, deadline)
            return target.finish()

        return self.job(run, timeout)

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
        """allreduce of several arrays as one operation: arrays of one dtype travel together. Returns the results in
        order; `out` is a sequence like `xs`."""
        arrays = [as_numpy(x, f"xs[{index}]") for index, x in enumerate(xs)]
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        targets = [Target(o, a.shape, a.dtype, like=x) for o, a, x in zip(outs, arrays, xs, strict=True)]
        groups: dict[np.dtype[Any], list[int]] = {}
        for index, array in enumerate(arrays):
            groups.setdefault(array.dtype, []).append(index)
        parts = []
        for members in groups.values():
            fused = np.concatenate([arrays[index].reshape(-1) for index in members])
            reduction = self._reduction("allreduce", fused, op, prescale, postscale, algorithm, reproducible)
            parts.append((members, fused, reduction))

        def run(deadline: float) -> list[Any]:
            for members, fused, reduction in parts:
                reduction(fused, fused, (fused.size,), 0, deadline)
                at = 0
                for index in members:
                    target = targets[index].flat
                    target[:] = fused[at : at + target.size]
                    at += target.size
            return [target.finish() for target in targets]

        return self.job(run, timeout)

    def _reduction(
        self,
        collective: str,
        array: Array,
        op: str,
        prescale: float | None,
        postscale: float | None,
        algorithm: str | None,
        reproducible: bool | None,
    ) -> Callable[[Array, Array | None, tuple[int, ...], int, float], None]:
        """What surrounds the exchange proper: scale factors, logical values, wide accumulation, the mean."""
        dtype = array.dtype
        check_op(op, dtype)
        self._selector.check(collective, algorithm)
        before, after = _factor(prescale, "prescale", dtype), _factor(postscale, "postscale", dtype)
        fixed = self._config.reproducible if reproducible is None else bool(reproducible)
        wide = fixed and self.size > 2 and is_small_float(dtype) and op in ("sum", "average", "prod")
        logical = op in LOGICAL and dtype.kind != "b"

        def reduction(source: Array, target: Array | None, blocks: tuple[int, ...], root: int, deadline: float) -> None:
            work, result = source, target
            if wide:
                work = source.astype(FLOAT32)
                result = None if target is None else np.empty(target.shape, FLOAT32)
            if logical:
                work = (work != 0).astype(work.dtype)
            if before is not None:
                scaled = np.empty_like(work) if work is source and source is not target else work
                scale(work, before, scaled)
                work = scaled
            alias = 0 if work is result else None
            call = Call(collective, work.dtype, blocks, op, root, alias, algorithm, fixed)
            self._executor.run(call, work, result, deadline)
            if result is not None and target is not None:
                if op == "average":
                    divide(result, self.size)
                if after is not None:
                    scale(result, after, result)
                if result is not target:
                    np.copyto(target, result, casting="unsafe")

        def quietly(source: Array, target: Array | None, blocks: tuple[int, ...], root: int, deadline: float) -> None:
            self._executor.quiet.run(reduction, source, target, blocks, root, deadline)

        return quietly


def _factor(value: float | None, name: str, dtype: np.dtype[Any]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r}: must be a number")
    if dtype.kind == "b":
        raise TypeError(f"{name}={value!r}: bool cannot be scaled")
    return None if value == 1 else float(value)
