"""The collectives that combine: allreduce, reduce, reduce_scatter, scan, exscan, and several allreduces as one
operation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from collectives.arrays import ADASUM, ALIASES, Array, Op, check_dtype, check_op
from collectives.operations.arguments import Arguments, as_tuple, dtype_name, scale_factor
from collectives.operations.fusion import Buffer, bundles, packable, reduce_together
from collectives.operations.job import FunctionJob, Packable, Part
from collectives.operations.planned_call import ArrayJob, PlannedCall, PlannedCalls
from collectives.operations.reduction import AdasumReduction, Reduction
from collectives.operations.signature import Signature
from collectives.operations.space import Space
from collectives.operations.start import Start
from collectives.planning import Selector, WindowOffset, WindowOffsets

Options = tuple[str | Op, float | None, float | None, str | None, bool | None]
"""op, prescale, postscale, algorithm, reproducible."""


class Reductions:
    """Reductions of arrays in one space. The arguments are those of the Communicator's methods; each method returns the
    product of its Start: a result, or a job."""

    def __init__(
        self,
        space: Space,
        arguments: Arguments,
        selector: Selector,
        calls: PlannedCalls,
        buffer: Buffer,
        fusion_bytes: int,
        start: Start,
    ) -> None:
        """`buffer` is for arrays that travel together, at most `fusion_bytes`."""
        self.buffer = buffer
        self._space = space
        self._arguments = arguments
        self._selector = selector
        self._calls = calls
        self._fusion_bytes = fusion_bytes
        self._start = start

    def allreduce(
        self,
        x: Any,
        op: str | Op = "sum",
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        if prescale is not None or postscale is not None:
            prescale, postscale = scale_factor(prescale, "prescale"), scale_factor(postscale, "postscale")
        arguments = op, prescale, postscale, algorithm, reproducible
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        planned = self._calls.find_plain("allreduce", x, out, arguments, self._plan_allreduce)
        if planned is not None:
            return self._start.plain(planned, x, out, seconds)
        array = self._space.array(x, records=isinstance(op, Op))
        source, result = self._space.pair(x, array, out)
        planned = self._calls.find("allreduce", array, source, result.flat, arguments, self._plan_allreduce)
        return self._start.job(ArrayJob(planned, source, result, seconds))

    def reduce(
        self,
        x: Any,
        op: str | Op = "sum",
        root: int = 0,
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        root = self._arguments.root(root)
        scales = scale_factor(prescale, "prescale"), scale_factor(postscale, "postscale")
        arguments = root, op, *scales, algorithm, reproducible
        seconds = self._arguments.timeout(timeout)
        receives = root == self._arguments.rank
        plain = self._calls.find_plain("reduce", x, out, arguments, self._plan_reduce) if receives else None
        if plain is not None:
            return self._start.plain(plain, x, out, seconds)
        array = self._space.array(x, records=isinstance(op, Op))
        if receives:
            source, result = self._space.pair(x, array, out)
        else:
            source, result = self._space.flat(array), None
        target = None if result is None else result.flat
        planned = self._calls.find("reduce", array, source, target, arguments, self._plan_reduce)
        return self._start.job(ArrayJob(planned, source, result, seconds))

    def reduce_scatter(
        self,
        x: Any,
        op: str | Op = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        if prescale is not None or postscale is not None:
            prescale, postscale = scale_factor(prescale, "prescale"), scale_factor(postscale, "postscale")
        rows = None if counts is None else as_tuple(counts, "counts")
        arguments = rows, op, prescale, postscale, algorithm, reproducible
        seconds = self._arguments.seconds if timeout is None else self._arguments.timeout(timeout)
        if out is not x:
            plain = self._calls.find_plain("reduce_scatter", x, out, arguments, self._plan_reduce_scatter)
            if plain is not None:
                return self._start.plain(plain, x, out, seconds)
        array = self._space.array(x, records=isinstance(op, Op))
        source = self._space.flat(array)
        planned = self._calls.find("reduce_scatter", array, source, None, arguments, self._plan_reduce_scatter)
        assert planned.shape is not None
        result = self._space.result(out, planned.shape, array.dtype, x)
        return self._start.job(ArrayJob(planned, self._space.apart(source, out), result, seconds))

    def scan(
        self,
        x: Any,
        op: str | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        arguments, seconds = (op, None, None, algorithm, reproducible), self._arguments.timeout(timeout)
        planned = self._calls.find_plain("scan", x, out, arguments, self._plan_scan)
        if planned is not None:
            return self._start.plain(planned, x, out, seconds)
        array = self._space.array(x, records=isinstance(op, Op))
        source, result = self._space.pair(x, array, out)
        planned = self._calls.find("scan", array, source, result.flat, arguments, self._plan_scan)
        return self._start.job(ArrayJob(planned, source, result, seconds))

    def exscan(
        self,
        x: Any,
        op: str | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        arguments, seconds = (op, None, None, algorithm, reproducible), self._arguments.timeout(timeout)
        receives = self._arguments.rank > 0
        if receives and out is not x:
            planned = self._calls.find_plain("exscan", x, out, arguments, self._plan_exscan)
            if planned is not None:
                return self._start.plain(planned, x, out, seconds)
        array = self._space.array(x, records=isinstance(op, Op))
        source, result = self._space.flat(array), None
        planned = self._calls.find("exscan", array, source, None, arguments, self._plan_exscan)
        if receives:
            result = self._space.result(out, tuple(array.shape), array.dtype, x)
            source = self._space.apart(source, out)
        return self._start.job(ArrayJob(planned, source, result, seconds))

    def grouped_allreduce(
        self,
        xs: Sequence[Any],
        op: str | Op = "sum",
        *,
        out: Sequence[Any] | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        space, seconds = self._space, self._arguments.timeout(timeout)
        arguments = (
            op,
            scale_factor(prescale, "prescale"),
            scale_factor(postscale, "postscale"),
            algorithm,
            reproducible,
        )
        arrays = [space.array(x, f"xs[{index}]", records=isinstance(op, Op)) for index, x in enumerate(xs)]
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        pairs = [space.pair(x, array, o) for x, array, o in zip(xs, arrays, outs, strict=True)]
        calls = [
            self._calls.find("allreduce", array, source, result.flat, arguments, self._plan_allreduce)
            for array, (source, result) in zip(arrays, pairs, strict=True)
        ]
        signature = _together([call.signature for call in calls])
        parts = [
            Part(call.reduction, source.size, source, result.flat)
            for call, (source, result) in zip(calls, pairs, strict=True)
            if call.reduction is not None
        ]

        def finish() -> list[Any]:
            return [result.finish() for _, result in pairs]

        def run(deadline: float) -> None:
            for group in self._groups(signature, parts):
                reduce_together(group, self.buffer, deadline)

        together = Packable(parts, finish) if packable(signature) else None
        return self._start.job(FunctionJob(run, seconds, signature, together, lambda _: finish()))

    def zeros(self, signature: Signature) -> Any:
        """The job of a rank that has joined, in an allreduce of the others with this signature."""
        if signature.op == ADASUM:
            pairs = zip(signature.dtypes, signature.shapes, strict=True)
            arrays = [np.zeros(shape, np.dtype(name)) for name, shape in pairs]
            if signature.kind == "allreduce":
                return self.allreduce(arrays[0], ADASUM)
            return self.grouped_allreduce(arrays, ADASUM)
        parts = []
        for name, shape, offsets in zip_longest(signature.dtypes, signature.shapes, signature.windows):
            dtype = np.dtype(name)
            reduction = Reduction(
                self._calls.space,
                self._arguments.size,
                "allreduce",
                dtype,
                signature.op or "sum",
                algorithm=signature.algorithm,
                reproducible=signature.reproducible,
            )
            size, (source, target) = prod(shape), (None, None)
            if offsets is not None:  # the place where all other ranks have their arrays
                source, target = (self._window_array(WindowOffset(*offset), size, dtype) for offset in offsets)
                source.fill(0)
            parts.append(Part(reduction, size, source, target))
        seconds = self._arguments.timeout(None)
        return FunctionJob(lambda _: None, seconds, signature, Packable(parts, lambda: None))

    def _window_array(self, offset: WindowOffset, size: int, dtype: np.dtype[Any]) -> Array:
        """This rank's elements from a place in a window on."""
        return self._space.executor.windows.own(offset, size * dtype.itemsize).view(dtype)

    def _groups(self, signature: Signature, parts: Sequence[Part]) -> list[list[Part]]:
        """The arrays that are reduced together: small ones of one dtype; for Adasum all of one dtype."""
        if parts and parts[0].reduction.by_function:
            return [[part] for part in parts]
        if signature.op != ADASUM:
            limit = self.buffer.limit(self._fusion_bytes)
            return [
                [parts[item.array] for item in bundle] for bundle in bundles([signature._replace(detail=())], limit)
            ]
        by_dtype: dict[Any, list[Part]] = {}
        for part in parts:
            by_dtype.setdefault(part.reduction.given, []).append(part)
        return list(by_dtype.values())

    # ---- planning, once for each kind of call

    def _plan_allreduce(
        self,
        array: Any,
        in_place: bool,
        offsets: WindowOffsets | None,
        *options: *Options,
    ) -> PlannedCall:
        reduction = self._reduction("allreduce", array, *options)
        signature = self._signature("allreduce", array, *options)
        if offsets is not None:
            signature = signature._replace(windows=(offsets,))
        return self._planned(reduction, array, in_place, offsets, (array.size,), 0, array.shape, signature)

    def _plan_reduce(
        self,
        array: Any,
        in_place: bool,
        offsets: WindowOffsets | None,
        root: int,
        *options: *Options,
    ) -> PlannedCall:
        reduction = self._reduction("reduce", array, *options)
        signature = self._signature("reduce", array, *options)
        shape = array.shape if root == self._arguments.rank else None
        signature = signature._replace(root=root)
        return self._planned(reduction, array, in_place, offsets, (array.size,), root, shape, signature)

    def _plan_reduce_scatter(
        self,
        array: Any,
        in_place: bool,
        offsets: WindowOffsets | None,
        counts: tuple[int, ...] | None,
        *options: *Options,
    ) -> PlannedCall:
        rows = self._arguments.rows(array.shape, counts, "counts", even=False)
        reduction = self._reduction("reduce_scatter", array, *options)
        signature = self._signature("reduce_scatter", array, *options)
        width = prod(array.shape[1:])
        blocks = tuple(count * width for count in rows)
        shape = (rows[self._arguments.rank], *array.shape[1:])
        signature = signature._replace(detail=(*rows, *signature.detail))
        return self._planned(reduction, array, False, offsets, blocks, 0, shape, signature)

    def _plan_scan(self, array: Any, in_place: bool, offsets: WindowOffsets | None, *options: *Options) -> PlannedCall:
        reduction, signature = self._reduction("scan", array, *options), self._signature("scan", array, *options)
        return self._planned(reduction, array, in_place, offsets, (array.size,), 0, array.shape, signature)

    def _plan_exscan(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, *options: *Options
    ) -> PlannedCall:
        reduction, signature = self._reduction("exscan", array, *options), self._signature("exscan", array, *options)
        shape = array.shape if self._arguments.rank else None
        return self._planned(reduction, array, False, offsets, (array.size,), 0, shape, signature)

    def _planned(
        self,
        reduction: Reduction,
        array: Any,
        in_place: bool,
        offsets: WindowOffsets | None,
        blocks: tuple[int, ...],
        root: int,
        shape: tuple[int, ...] | None,
        signature: Signature,
    ) -> PlannedCall:
        planned = reduction.planned(blocks, root, in_place=in_place, offsets=offsets, receives=shape is not None)
        function, scales = reduction.runner(planned, receives=shape is not None)
        flat = array.ndim == 1 and shape is not None and len(shape) == 1
        return PlannedCall(
            self._calls.space,
            function,
            planned,
            array.dtype,
            shape,
            signature,
            flat=flat,
            reduction=reduction,
            scales=scales,
        )

    def _reduction(
        self,
        collective: str,
        array: Any,
        op: str | Op,
        prescale: float | None,
        postscale: float | None,
        algorithm: str | None,
        reproducible: bool | None,
    ) -> Reduction:
        """The reduction of one kind of call, with all its arguments checked."""
        dtype, op = array.dtype, _canonical(op)
        if isinstance(op, Op):
            op.check(dtype)
        else:
            check_dtype(dtype, "x")
            check_op(op, dtype)
        if op == "average" and collective in ("scan", "exscan"):
            raise ValueError(f"op={op!r}: is not for {collective}, whose results combine different numbers of ranks")
        if op == ADASUM and (collective != "allreduce" or algorithm is not None):
            raise ValueError(f"op={op!r}: is for allreduce without algorithm=, not for {collective}")
        self._selector.check(collective, algorithm)
        for name, value in (("prescale", prescale), ("postscale", postscale)):
            if value is not None and (dtype.kind == "b" or dtype.names is not None):
                raise TypeError(f"{name}={value:g}: {'bool' if dtype.names is None else dtype} cannot be scaled")
        kind = AdasumReduction if op == ADASUM else Reduction
        return kind(
            self._calls.space,
            self._arguments.size,
            collective,
            dtype,
            op,
            prescale=prescale,
            postscale=postscale,
            algorithm=algorithm,
            reproducible=self._fixed(reproducible) or (isinstance(op, Op) and not op.commutative),
        )

    def _signature(
        self,
        kind: str,
        array: Any,
        op: str | Op,
        prescale: float | None,
        postscale: float | None,
        algorithm: str | None,
        reproducible: bool | None,
    ) -> Signature:
        shapes, fixed = (tuple(array.shape),), self._fixed(reproducible)
        names = (dtype_name(array.dtype),)
        return Signature(
            kind,
            names,
            shapes,
            str(_canonical(op)),
            None,
            prescale,
            postscale,
            algorithm,
            fixed,
            detail=self._space.detail,
        )

    def _fixed(self, reproducible: bool | None) -> bool:
        return self._arguments.reproducible if reproducible is None else bool(reproducible)


def _canonical(op: str | Op) -> str | Op:
    """The op by the name that all ranks use."""
    return ALIASES.get(op, op) if isinstance(op, str) else op


def _together(signatures: Sequence[Signature]) -> Signature:
    """The signature of several allreduces as one operation."""
    if not signatures:
        return Signature("grouped_allreduce")
    offsets = [signature.windows[0] if signature.windows else None for signature in signatures]
    return signatures[0]._replace(
        kind="grouped_allreduce",
        dtypes=tuple(signature.dtypes[0] for signature in signatures),
        shapes=tuple(signature.shapes[0] for signature in signatures),
        windows=tuple(offsets) if any(offsets) else (),
    )
