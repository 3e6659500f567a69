"""The collectives that combine: allreduce, reduce, reduce_scatter, scan, exscan, and several allreduces as one
operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, zip_longest
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from collectives.arrays import ADASUM, ALIASES, Array, Op, check_dtype, check_op, named_dtype
from collectives.numeric import flag
from collectives.operations.arguments import Arguments, as_tuple, check_list, dtype_name, scale_factor
from collectives.operations.fusion import Buffer, bundles_alone, packable, reduce_together
from collectives.operations.job import FunctionJob, Job, Packable, Part
from collectives.operations.planned_call import Collective, PlannedCall, PlannedCalls
from collectives.operations.reduction import AdasumReduction, Reduction
from collectives.operations.signature import Signature, told
from collectives.operations.space import Result, Space
from collectives.planning import Selector, WindowOffset, WindowOffsets
from collectives.written import Span, span


class Options(NamedTuple):
    """The options of a reduction, in the order in which they travel from the Communicator's methods."""

    op: str | Op
    prescale: float | None = None
    postscale: float | None = None
    algorithm: str | None = None
    reproducible: bool | None = None

    @property
    def canonical(self) -> str | Op:
        """The op by the name that all ranks use."""
        return ALIASES.get(self.op, self.op) if isinstance(self.op, str) else self.op


class Reductions:
    """Reductions of arrays in one space."""

    def __init__(
        self,
        space: Space,
        arguments: Arguments,
        selector: Selector,
        calls: PlannedCalls,
        buffer: Buffer,
        fusion_bytes: int,
    ) -> None:
        """`buffer` is for arrays that travel together, at most `fusion_bytes`."""
        self.buffer = buffer
        self._space = space
        self._arguments = arguments
        self._selector = selector
        self._calls = calls
        self._fusion_bytes = fusion_bytes

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The reductions, with the arguments of the Communicator's methods: the root or the counts, if there are any,
        then those of Options. Nothing here keeps them: they keep this, and with it the arrays of a call on mirrors."""
        rank, scan, exscan = self._arguments.rank, partial(self._planned, "scan"), partial(self._planned, "exscan")
        return (
            self._allreduce,
            Collective("reduce", self._plan_reduce, self._rooted, True, lambda key: bool(key[0] == rank)),
            Collective("reduce_scatter", self._plan_reduce_scatter, _divided),
            Collective("scan", scan, _checked, in_place=True),
            Collective("exscan", partial(exscan, receives=rank > 0), _checked, receives=lambda key: rank > 0),
            Collective("grouped_allreduce", job=self._grouped_allreduce),
        )

    @property
    def _allreduce(self) -> Collective:
        return Collective("allreduce", self._plan_allreduce, _checked, in_place=True)

    def _rooted(self, x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a reduce, which begin with the root."""
        return _checked(x, (self._arguments.root(arguments[0]), *arguments[1:]))

    def _grouped_allreduce(
        self, xs: Sequence[Any], out: Sequence[Any] | None, options: tuple[Any, ...], seconds: float
    ) -> Job[Any]:
        space, key = self._space, _checked(xs, options)
        check_list(xs, "xs", "arrays")
        arrays = [space.array(x, f"xs[{index}]", records=isinstance(key[0], Op)) for index, x in enumerate(xs)]
        if out is not None:
            check_list(out, "out", "arrays")
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        pairs = self._separate([space.pair(x, array, o) for x, array, o in zip(xs, arrays, outs, strict=True)], outs)
        allreduce = self._allreduce
        calls = [
            self._calls.find(allreduce, array, source, result.flat, key)
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
                reduce_together(group, self.buffer, deadline, compares=True)

        together = Packable(parts, finish) if packable(signature) else None

        def written() -> list[Span]:
            given = [] if out is None else [result.flat for _, result in pairs]
            return [span(array) for array in given if isinstance(array, np.ndarray)]

        return FunctionJob(run, seconds, signature, together, lambda _: finish(), written)

    def _separate(self, pairs: list[tuple[Any, Result]], outs: Sequence[Any]) -> list[tuple[Any, Result]]:
        """The flat sources and the results of several reductions, in which no result is in the memory of another's
        source: large arrays are reduced one after the other. Such a source is copied."""
        if all(out is None for out in outs):
            return pairs
        pieces = []
        for index, (source, result) in enumerate(pairs):
            for array in (source,) if source is result.flat else (source, result.flat):
                begin = self._space.address(array)
                pieces.append((begin, begin + array.nbytes, index))
        pieces.sort()
        ends = accumulate((end for _, end, _ in pieces), max)
        if all(begin >= end for (begin, _, _), end in zip(pieces[1:], ends, strict=False)):
            return pairs
        found = []
        for index, (source, result) in enumerate(pairs):
            for other in (*outs[:index], *outs[index + 1 :]):
                source = self._space.apart(source, other)
            found.append((source, result))
        return found

    def zeros(self, signature: Signature) -> Job[Any]:
        """The job of a rank that has joined, in an allreduce of the others with this signature."""
        seconds = self._arguments.timeout(None)
        if signature.op == ADASUM:
            pairs = zip(signature.dtypes, signature.shapes, strict=True)
            arrays = [np.zeros(shape, named_dtype(name)) for name, shape in pairs]
            if signature.kind == "allreduce":
                return self._calls.job(self._space, self._allreduce, arrays[0], None, Options(ADASUM), seconds)
            return self._grouped_allreduce(arrays, None, Options(ADASUM), seconds)
        parts = []
        for name, shape, offsets in zip_longest(signature.dtypes, signature.shapes, signature.windows):
            dtype = named_dtype(name)
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
            return [[parts[number] for number in bundle] for bundle in bundles_alone(signature, limit)]
        by_dtype: dict[Any, list[Part]] = {}
        for part in parts:
            by_dtype.setdefault(part.reduction.given, []).append(part)
        return list(by_dtype.values())

    # ---- planning, once for each kind of call

    def _plan_allreduce(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, options: tuple[Any, ...]
    ) -> PlannedCall:
        windows = () if offsets is None else (offsets,)
        return self._planned("allreduce", array, in_place, offsets, options, windows=windows)

    def _plan_reduce(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, key: tuple[Any, ...]
    ) -> PlannedCall:
        root, *options = key
        receives = bool(root == self._arguments.rank)
        return self._planned("reduce", array, in_place, offsets, options, receives=receives, root=root)

    def _plan_reduce_scatter(
        self, array: Any, in_place: bool, offsets: WindowOffsets | None, key: tuple[Any, ...]
    ) -> PlannedCall:
        counts, *options = key
        rows = self._arguments.rows(array.shape, counts, "counts", even=False)
        width = prod(array.shape[1:])
        return self._planned(
            "reduce_scatter",
            array,
            in_place,
            offsets,
            options,
            blocks=tuple(count * width for count in rows),
            shape=(rows[self._arguments.rank], *array.shape[1:]),
            detail=(*rows, *self._space.detail),
        )

    def _planned(
        self,
        collective: str,
        array: Any,
        in_place: bool,
        offsets: WindowOffsets | None,
        given: Sequence[Any],
        *,
        blocks: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        receives: bool = True,
        root: int | None = None,
        **differs: Any,
    ) -> PlannedCall:
        """The planned call with the options that are `given`.

        blocks, shape   those of the exchange, and that of the result; by default those of the array
        receives        this rank gets a result
        differs         fields of the signature
        """
        options = Options(*given)
        shape = (shape or array.shape) if receives else None
        reduction = self._reduction(collective, array.dtype, options)
        plan = reduction.planned(
            blocks or (array.size,), root or 0, in_place=in_place, offsets=offsets, receives=receives
        )
        function, scales = reduction.runner(plan, receives)
        signature = Signature(
            collective,
            (dtype_name(array.dtype),),
            (tuple(array.shape),),
            str(options.canonical),
            root,
            told(options.prescale),
            told(options.postscale),
            options.algorithm,
            self._fixed(options.reproducible),
            detail=self._space.detail,
        )
        return PlannedCall(
            self._calls.space,
            function,
            plan,
            array.dtype,
            shape,
            signature._replace(**differs) if differs else signature,
            flat=array.ndim == 1 and shape is not None and len(shape) == 1,
            reduction=reduction,
            scales=scales,
        )

    def _reduction(self, collective: str, dtype: np.dtype[Any], options: Options) -> Reduction:
        """The reduction of one kind of call, with all its arguments checked."""
        op = options.canonical
        if isinstance(op, Op):
            op.check(dtype)
        else:
            check_dtype(dtype, "x")
            check_op(op, dtype)
        if op == "average" and collective in ("scan", "exscan"):
            raise ValueError(f"op={op!r}: is not for {collective}, whose results combine different numbers of ranks")
        if op == ADASUM and (collective != "allreduce" or options.algorithm is not None):
            raise ValueError(f"op={op!r}: is for allreduce without algorithm=, not for {collective}")
        self._selector.check(collective, options.algorithm)
        for name, value in (("prescale", options.prescale), ("postscale", options.postscale)):
            if value is not None and (dtype.kind == "b" or dtype.names is not None):
                raise TypeError(f"{name}={value:g}: {'bool' if dtype.names is None else dtype} cannot be scaled")
            if value is not None and dtype.kind in "iu" and not isfinite(value):
                raise ValueError(f"{name}={value:g}: must be finite for {dtype}")
        kind = AdasumReduction if op == ADASUM else Reduction
        return kind(
            self._calls.space,
            self._arguments.size,
            collective,
            dtype,
            op,
            prescale=options.prescale,
            postscale=options.postscale,
            algorithm=options.algorithm,
            reproducible=self._fixed(options.reproducible) or (isinstance(op, Op) and not op.commutative),
        )

    def _fixed(self, reproducible: bool | None) -> bool:
        return self._arguments.reproducible if reproducible is None else flag(reproducible, "reproducible")


def _checked(x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a reduction, which end with Options, with factors that are None or floats."""
    prescale, postscale = arguments[-4], arguments[-3]
    if prescale is None and postscale is None:
        return arguments
    factors = scale_factor(prescale, "prescale"), scale_factor(postscale, "postscale")
    return *arguments[:-4], *factors, *arguments[-2:]


def _divided(x: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a reduce_scatter, which begin with the counts."""
    if arguments[0] is not None:
        arguments = as_tuple(arguments[0], "counts"), *arguments[1:]
    return _checked(x, arguments)


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
