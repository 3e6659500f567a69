"""Reduction: the arithmetic around the exchange of a reduction, for arrays of the host and of GPUs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays import ADASUM, FLOAT32, LOGICAL, WIDENED, Array, Mean, Op, is_small_float, scaling
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
    in float32. An average is made by the exchange, or by its `Mean` around the exchange.
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
        self.given = dtype
        self.dtype = dtype
        """Dtype of the arrays that are exchanged."""
        self.width = 1
        """Elements of these arrays for each of the caller's."""
        self._mean: Mean | None = None
        if op == "average" and size > 1:
            self._mean = Mean(
                dtype, size, widens=size > 2 and space.widens(reproducible, algorithm), scaling=space.scaling
            )
            self.dtype, self.width = self._mean.dtype, self._mean.width
        if reproducible and size > 2 and is_small_float(dtype) and op in WIDENED:
            self.dtype = FLOAT32
        self.space = space
        self._size = size
        self._collective = collective
        self._op = op
        self._prescale = prescale
        self._scales = Scales(prescale, postscale)
        self._exact = self._mean is not None and self._mean.exact
        self._scale_source = None if prescale is None else space.scaling(self.dtype, prescale)
        scaled = dtype if self._exact else self.dtype
        self._scale_result = None if postscale is None else space.scaling(scaled, postscale)
        self._algorithm = algorithm
        self._reproducible = reproducible
        self._logical = op in LOGICAL and dtype.kind != "b"
        self.by_array = op == ADASUM
        """True if the exchange depends on the sizes of the arrays that are packed together."""
        self.by_function = isinstance(op, Op)
        """True if a function of the user combines."""
        self._apart = self.dtype != dtype or self._exact
        """True if the exchange takes place in other memory than the caller's."""
        self._loads = self._apart or self._logical or prescale is not None
        """True if `load` changes anything, whatever the exchange does."""

    @property
    def packs(self) -> bool:
        """True if arrays of several operations may be packed together."""
        return not (self.by_array or self.by_function)

    def call(
        self, blocks: tuple[int, ...], root: int = 0, *, in_place: bool, offsets: WindowOffsets | None = None
    ) -> Call:
        """The exchange.

        blocks    as in Call, in elements of the caller's arrays; for Adasum the elements of the array
        in_place  work is result
        """
        alias = 0 if in_place else None
        return Call(
            self._collective,
            self.dtype,
            blocks if self.width == 1 else tuple(self.width * count for count in blocks),
            self._op,
            root,
            alias,
            self._algorithm,
            self._reproducible,
            windows=offsets,
            given=None if self.dtype == self.given else self.given,
        )

    def plan(self, call: Call) -> Any:
        """The exchange, planned. Raises ValueError if that cannot be."""
        return self.space.plan(call)

    def planned(
        self,
        blocks: tuple[int, ...],
        root: int = 0,
        *,
        in_place: bool,
        offsets: WindowOffsets | None = None,
        receives: bool = True,
    ) -> Any:
        """The exchange of a call, planned. Raises ValueError if that cannot be.

        in_place   the caller's arrays are one
        offsets    those of the caller's arrays in windows
        receives   this rank gets the result
        """

        def made(loads: bool) -> Any:
            alone = loads and receives and self._collective not in _APART  # work is done where the result will be
            places = None if self._apart or (loads and not in_place) else offsets
            return self.plan(self.call(blocks, root, in_place=in_place or alone, offsets=places))

        planned = made(self._loads)
        return made(True) if not self._loads and self._shares(planned) else planned

    def _call_of(self, planned: Any) -> Call:
        return self.space.call(planned)

    def surrounds(self, planned: Any) -> bool:
        """True unless the exchange alone does it all."""
        return self._loads or self._shares(planned) or self._scale_result is not None

    def _shares(self, planned: Any) -> bool:
        """True if the exchange makes no average, so that the sum of the `Mean` is exchanged."""
        return self._mean is not None and (self._exact or not self.space.averages(planned))

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
        if self._shares(planned) or self._exact or self._collective in _APART:
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
        space, work, result, shares = self.space, source, target, self._shares(planned)
        in_place = self._call_of(planned).alias is not None
        if target is not None and self._apart:
            result = self.empty(target.size)
        if self._loads or shares or (in_place and source is not target):
            work = result if in_place and result is not None else self.empty(source.size)
            self.load(source, work, scaled=not space.premultiplies(planned), shares=shares)
        averaged = self.exchange(planned, work, result, deadline)
        if target is not None and result is not None:
            self.store(result, target, averaged)

    def empty(self, size: int) -> Array:
        """A new array for the exchanged form of so many elements."""
        work: Array = self.space.empty(size * self.width, self.dtype)
        return work

    def part(self, work: Array, first: int, size: int) -> Array:
        """The exchanged form of `size` elements from `first` on, in that of more."""
        return work[first * self.width : (first + size) * self.width]

    def load_together(self, planned: Any, sources: Sequence[Array], work: Array) -> None:
        """Write the forms of all sources that a planned exchange takes into `work`, one after the other."""
        shares = self._shares(planned)
        if not self._loads and not shares:
            np.concatenate(sources, out=work)
            return
        at = 0
        for source in sources:
            self.load(source, self.part(work, at, source.size), shares=shares)
            at += source.size

    def load(self, source: Array, work: Array, *, scaled: bool = True, shares: bool = False) -> None:
        """Write the exchanged form of `source` into `work`, of `dtype`; `work` may be `source`.

        scaled   multiply by the factor of the call
        shares   write the summands of the average
        """
        scale = self._scale_source if scaled else None
        if scale is not None and self.width > 1:
            factor, source = scale, self.space.copy(source)
            factor(source, source)
            scale = None
        if self._mean is not None and shares and scale is None:
            self._mean.load(source, work)
            return
        if scale is not None and not self._logical and source.dtype == work.dtype:
            scale(source, work)
        else:
            if self._logical:
                np.copyto(work, source != 0)
            elif source is not work:
                np.copyto(work, source)
            if scale is not None:
                scale(work, work)
        if self._mean is not None and shares:
            self._mean.load(work, work)

    def exchange(self, planned: Any, work: Array, result: Array | None, deadline: float) -> bool:
        """Combine all ranks' `work` into `result`, of `dtype`. Returns True if the exchange has made an average."""
        return self.space.exchange(planned, work, result, deadline, self._prescale)

    def store(self, result: Array, target: Array, averaged: bool) -> None:
        """Write into `target` the result of the exchange; `target` may be `result`, which is changed."""
        if self._mean is not None and not averaged:
            work = target if self._exact else result
            self._mean.store(result, work)
            result = work
        if self._scale_result is not None:
            work = target if result.dtype == target.dtype else result
            self._scale_result(result, work)
            result = work
        if result is not target:
            np.copyto(target, result, casting="unsafe")


class AdasumReduction(Reduction):
    """The reduction of op="adasum", whose exchange is several exchanges (adasum.py)."""

    def plan(self, call: Call) -> Call:
        return call

    def _call_of(self, planned: Call) -> Call:
        return planned

    def surrounds(self, planned: Call) -> bool:
        return True

    def exchange(self, planned: Call, work: Array, result: Array | None, deadline: float) -> bool:
        assert result is not None
        what = f"{self._collective}({self.given}, {brief(planned.blocks)} elements, op={self._op})"
        adasum(Peers(self.space.executor, what, deadline), work, result, planned.blocks)
        return False
