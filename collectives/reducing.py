"""What surrounds the exchange of a reduction: scale factors, logical values, wide accumulation, the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec

import numpy as np

from collectives.adasum import adasum
from collectives.buffers import Array
from collectives.composed import Peers, brief
from collectives.execute import Executor
from collectives.plan import Call
from collectives.reductions import ADASUM, FLOAT32, LOGICAL, divide, is_small_float, scale

P = ParamSpec("P")

_WIDENED: Final = ("sum", "average", "prod")


class Reduction:
    """One way to reduce flat arrays of one dtype: `run` does it; or `load`, `exchange` and `store`, where several
    arrays travel together.

    prescale, postscale   None: not scaled
    reproducible          with more than 2 ranks, halves are accumulated in float32
    """

    def __init__(
        self,
        executor: Executor,
        size: int,
        collective: str,
        dtype: np.dtype[Any],
        op: str,
        *,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> None:
        wide = reproducible and size > 2 and is_small_float(dtype) and op in _WIDENED
        self.given = dtype
        self.dtype = FLOAT32 if wide else dtype
        """Of what is exchanged."""
        self._executor = executor
        self._size = size
        self._collective = collective
        self._op = op
        self._before = prescale
        self._after = postscale
        self._algorithm = algorithm
        self._reproducible = reproducible
        self._logical = op in LOGICAL and dtype.kind != "b"
        self._as_is = not (wide or self._logical or prescale is not None)

    def run(self, source: Array, target: Array | None, blocks: tuple[int, ...], root: int, deadline: float) -> None:
        """Reduce `source` into `target` (None where this rank gets nothing). They may be one array.

        blocks   as in plan.Call; for adasum the elements of every array
        """
        self.quietly(self._run, source, target, blocks, root, deadline)

    def quietly(self, action: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `action` where NumPy says nothing of overflows."""
        self._executor.quiet.run(action, *args, **kwargs)

    def _run(self, source: Array, target: Array | None, blocks: tuple[int, ...], root: int, deadline: float) -> None:
        work, result = source, target
        if not self._as_is and (source is not target or self.dtype != self.given):
            work = np.empty(source.shape, self.dtype)
        if target is not None and self.dtype != self.given:
            result = np.empty(target.shape, self.dtype)
        if self._algorithm is not None:  # which may not do; then what is in place must not have been touched
            self._executor.check(self._call(blocks, root, 0 if source is target else None), work, result)
        if not self._as_is:
            self.load(source, work)
        divided = self.exchange(work, result, blocks, root, deadline)
        if target is not None:
            assert result is not None
            self.store(result, target, divided)

    def blocks(self, counts: Sequence[int]) -> tuple[int, ...]:
        """`blocks` of an allreduce of arrays of so many elements."""
        return tuple(counts) if self._op == ADASUM else (sum(counts),)

    def load(self, source: Array, work: Array) -> None:
        """Write what is to be exchanged for `source` into `work`, of `dtype`; it may be `source`."""
        if self._logical:
            np.copyto(work, source != 0)
            source = work
        if self._before is not None and source.dtype == work.dtype:
            scale(source, self._before, work)
            return
        if source is not work:
            np.copyto(work, source)
        if self._before is not None:
            scale(work, self._before, work)

    def exchange(self, work: Array, result: Array | None, blocks: tuple[int, ...], root: int, deadline: float) -> bool:
        """Combine all ranks' `work` into `result`, of `dtype`. True if an average has been divided already."""
        if self._op == ADASUM:
            assert result is not None
            executor, what = self._executor, f"{self._collective}({self.given}, {brief(blocks)} elements, op={ADASUM})"
            adasum(Peers(executor, executor.rank, self._size, what, deadline), work, result, blocks)
            return False
        plan = self._executor.run(self._call(blocks, root, 0 if work is result else None), work, result, deadline)
        return plan.averages and self._size > 1

    def _call(self, blocks: tuple[int, ...], root: int, alias: int | None) -> Call:
        return Call(self._collective, self.dtype, blocks, self._op, root, alias, self._algorithm, self._reproducible)

    def store(self, result: Array, target: Array, divided: bool) -> None:
        """Write what the exchange gave into `target`, of the dtype of the arrays; it may be `result`."""
        work = target if result.dtype == target.dtype else result
        if self._op == "average" and not divided:
            divide(result, self._size, work)
            result = work
        if self._after is not None:
            scale(result, self._after, work)
            result = work
        if result is not target:
            np.copyto(target, result, casting="unsafe")
