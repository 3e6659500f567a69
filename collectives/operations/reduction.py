"""Reduction: the arithmetic around the exchange of a reduction, for arrays of the host and of GPUs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arrays import ADASUM, FLOAT32, LOGICAL, WIDENED, Array, Op, is_small_float, scaling
from collectives.execution import UNSCALED, Peers, Scales, brief
from collectives.operations.adasum import adasum
from collectives.operations.space import Space
from collectives.planning import Call, WindowOffsets

_APART: Final = ("reduce_scatter", "exscan")
"""Collectives whose result cannot be where the contribution is."""


class Reduction:
    """Scale factors, logical values, wide accumulation and the mean, for arrays of one dtype and any size.

        source --load--> work --exchange--> result --store--> target

    Without any of these work is source and result is target. `reproducible` with more than 2 ranks accumulates halves
    in float32.
    """

    def __init__(
        self,
        space: Space,
        size: int,
        collective: str,
        dtype: np.dtype[Any],
        op: str | Op,
        *,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> None:
        wide = reproducible and size > 2 and is_small_float(dtype) and op in WIDENED
        self.given = dtype
        self.dtype = FLOAT32 if wide else dtype
        """Dtype of the arrays that are exchanged."""
        self.space = space
        self._size = size
        self._collective = collective
        self._op = op
        self._prescale = prescale
        self._scales = Scales(prescale, postscale)
        self._scale_source = None if prescale is None else space.scaling(self.dtype, prescale)
        self._scale_result = None if postscale is None else space.scaling(self.dtype, postscale)
        self._algorithm = algorithm
        self._reproducible = reproducible
        self._logical = op in LOGICAL and dtype.kind != "b"
        self.by_array = op == ADASUM
        """True if the exchange depends on the sizes of the arrays that are packed together."""
        self.by_function = isinstance(op, Op)
        """True if a function of the user combines."""
        self.loads = wide or self._logical or prescale is not None
        """True if `load` changes anything."""

    @property
    def packs(self) -> bool:
        """True if arrays of several operations may be packed together."""
        return not (self.by_array or self.by_function)

    def call(
        self, blocks: tuple[int, ...], root: int = 0, *, in_place: bool, offsets: WindowOffsets | None = None
    ) -> Call:
        """The exchange.

        blocks    as in Call; for Adasum the elements of the array
        in_place  work is result
        """
        alias = 0 if in_place else None
        return Call(
            self._collective,
            self.dtype,
            blocks,
            self._op,
            root,
            alias,
            self._algorithm,
            self._reproducible,
            windows=offsets,
        )

    def plan(self, call: Call) -> Any:
        """The exchange, planned. Raises ValueError if that cannot be."""
        return self.space.plan(call)

    def surrounds(self, planned: Any) -> bool:
        """True unless the exchange alone does it all."""
        return self.loads or self._divides(planned) or self._scale_result is not None

    def _divides(self, planned: Any) -> bool:
        """True if an average has to be divided after the exchange."""
        return self._op == "average" and not self.space.averages(planned)

    def works_in_place(self, in_place: bool, receives: bool = True) -> bool:
        """True if the exchange of a call is in place: the caller's arrays are one, or work is done where the result
        will be. `receives`: this rank gets the result."""
        return in_place or (self.loads and receives and self._collective not in _APART)

    def runner(self, planned: Any, receives: bool) -> tuple[Callable[[Any, Any, Any, float], object], Scales | None]:
        """The function (planned, source, target, deadline) that does the whole call, as `run` does; and the factors of
        the call if that is nothing but an exchange with factors.

        receives   this rank gets the result
        """
        exchange = self.space.direct
        if exchange is None or not receives or self._logical or self.by_array or self.dtype != self.given:
            return self.run, None
        if not self.surrounds(planned):
            return exchange, UNSCALED
        if self._divides(planned) or self._collective in _APART:
            return self.run, None
        before, after = (
            None if factor is None else scaling(self.dtype, factor, planned.call.blocks[0]) for factor in self._scales
        )

        def scaled(planned: Any, source: Any, target: Any, deadline: float) -> None:
            """`run` where it does nothing but scale: for a small call the questions in `run` take as long as that."""
            if before is not None:
                before(source, target)
                source = target
            exchange(planned, source, target, deadline)
            if after is not None:
                after(target, target)

        return scaled, self._scales

    def run(self, planned: Any, source: Array, target: Array | None, deadline: float) -> None:
        """Reduce flat `source` into flat `target`, None where this rank gets no result. Both may be one array."""
        space, work, result = self.space, source, target
        if target is not None and self.dtype != self.given:
            result = space.empty(target.size, self.dtype)
        if self.loads:
            shares = result is not None and self.works_in_place(False)
            work = result if shares and result is not None else space.empty(source.size, self.dtype)
            self.load(source, work, scaled=not space.premultiplies(planned))
        divided = self.exchange(planned, work, result, deadline)
        if target is not None and result is not None:
            self.store(result, target, divided)

    def load(self, source: Array, work: Array, *, scaled: bool = True) -> None:
        """Write the exchanged form of `source` into `work`, of `dtype`; `work` may be `source`."""
        scale = self._scale_source if scaled else None
        if scale is not None and not self._logical and source.dtype == work.dtype:
            scale(source, work)
            return
        if self._logical:
            np.copyto(work, source != 0)
        elif source is not work:
            np.copyto(work, source)
        if scale is not None:
            scale(work, work)

    def exchange(self, planned: Any, work: Array, result: Array | None, deadline: float) -> bool:
        """Combine all ranks' `work` into `result`, of `dtype`. Returns True if an average has been divided already."""
        return self.space.exchange(planned, work, result, deadline, self._prescale)

    def store(self, result: Array, target: Array, divided: bool) -> None:
        """Write into `target` the result of the exchange; `target` may be `result`."""
        space, work = self.space, target if result.dtype == target.dtype else result
        if self._op == "average" and not divided:
            space.divide(result, self._size, work)
            result = work
        if self._scale_result is not None:
            self._scale_result(result, work)
            result = work
        if result is not target:
            np.copyto(target, result, casting="unsafe")


class AdasumReduction(Reduction):
    """The reduction of op="adasum", whose exchange is several exchanges (adasum.py)."""

    def plan(self, call: Call) -> Call:
        return call

    def surrounds(self, planned: Call) -> bool:
        return True

    def exchange(self, planned: Call, work: Array, result: Array | None, deadline: float) -> bool:
        assert result is not None
        what = f"{self._collective}({self.given}, {brief(planned.blocks)} elements, op={self._op})"
        adasum(Peers(self.space.executor, what, deadline), work, result, planned.blocks)
        return False
