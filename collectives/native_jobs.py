"""The jobs of collectives on arrays of GPUs that stay there: natively, or by Ronde's schedules on native messages.

A job is made and run within a place (devices.py) and only enqueues work there. Sizes that only some ranks know are
agreed on by way of the host, as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collectives.agree import Shapes, agree_on_parts, agree_on_shapes, agree_on_splits
from collectives.arguments import dtype_name
from collectives.config import Config
from collectives.device_arithmetic import divided, scaled
from collectives.devices import Cuda, DeviceTarget, cuda
from collectives.enqueue import Enqueuer
from collectives.execute import Executor
from collectives.fusion import LARGEST
from collectives.movement_jobs import MovementJobs, row_and_column
from collectives.plan import Call
from collectives.progress import Job
from collectives.reduction_jobs import ReductionJobs
from collectives.reductions import FLOAT32, LOGICAL, is_small_float
from collectives.select import Selector
from collectives.terms import Terms

_HERE: Final = "on GPUs"
"""What the terms of a job say of it: ranks whose arrays are elsewhere do not fit."""
_WIDENED: Final = ("sum", "average", "prod")


class NativeJobs(ReductionJobs, MovementJobs):
    """Makes the jobs. The methods are those of its bases, for arrays on GPUs."""

    def __init__(
        self, rank: int, size: int, executor: Executor, selector: Selector, config: Config, enqueuer: Enqueuer
    ) -> None:
        super().__init__(rank, size, executor, selector, config)
        self._enqueuer = enqueuer

    @property
    def _cuda(self) -> Cuda:
        return cuda()

    # ---- those that combine

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
        array = self._cuda.array(x)
        _, terms = self._reduction("allreduce", (array,), op, prescale, postscale, algorithm, reproducible)
        target = self._target(out, array.shape, array.dtype)
        source = target.flat if out is x else target.apart(self._cuda.flat(array))

        def run(deadline: float) -> Any:
            self._reduce(terms, source, target.flat, (array.size,), 0, deadline)
            return target.finish()

        return self.job(run, timeout, _here(terms))

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
        array = self._cuda.array(x)
        self.check_rank(root, "root")
        _, terms = self._reduction("reduce", (array,), op, prescale, postscale, algorithm, reproducible)
        target = self._target(out, array.shape, array.dtype) if self.rank == root else None
        source = self._cuda.flat(array)
        if target is not None:
            source = target.flat if out is x else target.apart(source)

        def run(deadline: float) -> Any:
            self._reduce(terms, source, None if target is None else target.flat, (array.size,), int(root), deadline)
            return None if target is None else target.finish()

        return self.job(run, timeout, _here(terms._replace(root=int(root))))

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
        array = self._cuda.array(x)
        rows = self.rows(array, counts, "counts", even=False)
        _, terms = self._reduction("reduce_scatter", (array,), op, prescale, postscale, algorithm, reproducible)
        rest = array.shape[1:]
        target = self._target(out, (rows[self.rank], *rest), array.dtype)
        source = target.apart(self._cuda.flat(array))
        blocks = Shapes(array.dtype, tuple(rows), rest).blocks

        def run(deadline: float) -> Any:
            self._reduce(terms, source, target.flat, blocks, 0, deadline)
            return target.finish()

        return self.job(run, timeout, _here(terms._replace(detail=tuple(rows))))

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
        arrays = [self._cuda.array(x, f"xs[{index}]") for index, x in enumerate(xs)]
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        terms = Terms("grouped_allreduce")
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            _, terms = self._reduction(
                "allreduce", arrays, op, prescale, postscale, algorithm, reproducible, dtype=dtype
            )
        targets = [self._target(o, a.shape, a.dtype) for o, a in zip(outs, arrays, strict=True)]
        sources = [
            target.flat if o is x else target.apart(self._cuda.flat(array))
            for x, o, array, target in zip(xs, outs, arrays, targets, strict=True)
        ]
        together: dict[Any, list[int]] = {}
        for index, array in enumerate(arrays):
            together.setdefault(array.dtype if array.nbytes <= LARGEST else index, []).append(index)

        def run(deadline: float) -> list[Any]:
            for members in together.values():
                if len(members) == 1:
                    source, target = sources[members[0]], targets[members[0]].flat
                    self._reduce(terms, source, target, (source.size,), 0, deadline)
                    continue
                packed = np.concatenate([sources[index] for index in members])
                self._reduce(terms, packed, packed, (packed.size,), 0, deadline)
                at = 0
                for index in members:
                    part = targets[index].flat
                    np.copyto(part, packed[at : at + part.size])
                    at += part.size
            return [target.finish() for target in targets]

        return self.job(run, timeout, _here(terms._replace(kind="grouped_allreduce")))

    def _reduce(
        self, terms: Terms, source: Any, target: Any, blocks: tuple[int, ...], root: int, deadline: float
    ) -> None:
        """What surrounds the exchange, as reducing.py has it for the host: factors, logical values, width, the mean."""
        op, before, after = terms.op or "sum", terms.prescale, terms.postscale
        dtype, work, result = source.dtype, source, target
        if terms.reproducible and self.size > 2 and is_small_float(dtype) and op in _WIDENED:
            work = source.astype(FLOAT32)
            result = None if target is None else self._cuda.empty(target.shape, FLOAT32)
        if op in LOGICAL and dtype.kind != "b":
            work = (work != 0).astype(dtype)

        def call() -> Call:
            alias = 0 if work is result else None
            return Call(terms.kind, work.dtype, blocks, op, root, alias, terms.algorithm, terms.reproducible)

        if terms.kind == "grouped_allreduce":
            terms = terms._replace(kind="allreduce")
        if before is not None and not self._enqueuer.premultiplies(call()):
            work, before = scaled(work, before), None
        divides = self._enqueuer.run(call(), work, result, self._cuda.here(), deadline, before)
        if target is None:
            return
        if op == "average" and not divides:
            result = divided(result, self.size)
        if after is not None:
            result = scaled(result, after)
        if result is not target:
            np.copyto(target, result, casting="unsafe")

    # ---- those that move

    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, algorithm: str | None = None, timeout: float | None = None
    ) -> Job[Any]:
        array = self._cuda.array(x)
        self.check_rank(root, "root")
        self._selector.check("broadcast", algorithm)
        target = self._target(out, array.shape, array.dtype)
        source, alias = None, None
        if self.rank == root:
            source = target.flat if out is x else target.apart(self._cuda.flat(array))
            alias = 0 if out is x else None
        call = Call("broadcast", array.dtype, (array.size,), None, int(root), alias, algorithm)

        def run(deadline: float) -> Any:
            self._enqueuer.run(call, source, target.flat, self._cuda.here(), deadline)
            return target.finish()

        return self.job(run, timeout, _terms("broadcast", array.dtype, array.shape, root, algorithm))

    def _gathering(
        self, collective: str, x: Any, root: int | None, out: Any, algorithm: str | None, timeout: float | None
    ) -> Job[Any]:
        array = self._cuda.array(x)
        self._selector.check(collective, algorithm)
        receives = root is None or root == self.rank
        source = self._cuda.flat(array)
        shape = array.shape or (1,)
        if receives and out is not None:
            source = self._target(out, np.shape(out), array.dtype).apart(source)

        def run(deadline: float) -> Any:
            shapes = agree_on_shapes(self._executor, self.rank, self.size, collective, shape, array.dtype, deadline)
            call = Call(collective, array.dtype, shapes.blocks, None, root or 0, None, algorithm)
            if not receives:
                self._enqueuer.run(call, source, None, self._cuda.here(), deadline)
                return None
            fits = out is None or tuple(np.shape(out)) == shapes.whole
            target = self._target(out if fits else None, shapes.whole, array.dtype)
            self._enqueuer.run(call, source, target.flat, self._cuda.here(), deadline)
            if not fits:  # the exchange took place all the same, so that the other ranks are not left waiting
                raise ValueError(f"out: has shape {tuple(np.shape(out))}, must have {shapes.whole}")
            return target.finish()

        return self.job(run, timeout, _terms(collective, array.dtype, shape[1:], root, algorithm))

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
        self.check_rank(root, "root")
        self._selector.check("scatter", algorithm)
        given, source = None, None
        if self.rank == root:
            array = self._cuda.array(x)
            rows = self.rows(array, counts, "counts", even=False)
            given = Shapes(array.dtype, tuple(rows), array.shape[1:])
            source = self._cuda.flat(array)

        def run(deadline: float) -> Any:
            shapes = agree_on_parts(self._executor, self.size, given, int(root), deadline)
            mine = (shapes.rows[self.rank], *shapes.rest)
            call = Call("scatter", shapes.dtype, shapes.blocks, None, int(root), None, algorithm)
            place = self._cuda.here()
            try:
                target = self._target(out, mine, shapes.dtype)
            except (TypeError, ValueError):  # take part all the same, so that the other ranks are not left waiting
                unwanted = self._cuda.empty((shapes.blocks[self.rank],), shapes.dtype)
                self._enqueuer.run(call, source, unwanted, place, deadline)
                raise
            parts = None if source is None else target.apart(source)
            self._enqueuer.run(call, parts, target.flat, place, deadline)
            return target.finish()

        return self.job(run, timeout, _here(Terms("scatter", root=int(root), algorithm=algorithm)))

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
        array = self._cuda.array(x)
        rows = self.rows(array, splits, "splits", even=True)
        self._selector.check("alltoall", algorithm)
        rest = array.shape[1:]
        source = self._cuda.flat(array)
        if out is not None:
            source = self._target(out, np.shape(out), array.dtype).apart(source)

        def run(deadline: float) -> Any:
            shapes = agree_on_splits(self._executor, array.dtype, rows, rest, splits is not None, deadline)
            given = Shapes(array.dtype, tuple(rows), rest).blocks
            blocks = row_and_column(self.rank, given, shapes.blocks)
            call = Call("alltoall", array.dtype, blocks, algorithm=algorithm, uneven=splits is not None)
            fits = out is None or tuple(np.shape(out)) == shapes.whole
            target = self._target(out if fits else None, shapes.whole, array.dtype)
            self._enqueuer.run(call, source, target.flat, self._cuda.here(), deadline)
            if not fits:
                raise ValueError(f"out: has shape {tuple(np.shape(out))}, must have {shapes.whole}")
            result = target.finish()
            return (result, np.asarray(shapes.rows, np.int64)) if return_splits else result

        agreed = ("splits",) if splits is not None else (f"{array.shape[0]} rows",)
        terms = _terms("alltoall", array.dtype, rest, None, algorithm)
        return self.job(run, timeout, terms._replace(detail=(*agreed, *terms.detail)))

    def _target(self, out: Any, shape: Any, dtype: np.dtype[Any]) -> DeviceTarget:
        return DeviceTarget(self._cuda.here(), out, tuple(shape), dtype)


def _terms(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], root: int | None, algorithm: str | None) -> Terms:
    """What ranks that name an operation must say alike; `shape` is what must be equal of the array's."""
    at = None if root is None else int(root)
    return _here(Terms(kind, (dtype_name(dtype),), (tuple(shape),), root=at, algorithm=algorithm))


def _here(terms: Terms) -> Terms:
    return terms._replace(detail=(*terms.detail, _HERE))
