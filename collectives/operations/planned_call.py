"""PlannedCall: one kind of call, checked and planned once; every later call of the kind finds it in one look-up.

allreduce(x, "sum", out=x)
    |  key: collective, dtype, shape, in place, offsets in windows, arguments and options (not the timeout)
    v
PlannedCalls.find --> PlannedCall --> Job --> CallQueue.run, submit, a persistent call, or the engine by name
                                       |
                                       +--> Executor.run(plan, source, target, deadline)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arrays import Array, check_dtype
from collectives.operations.job import Job, Packable, Part
from collectives.operations.reduction import Reduction
from collectives.operations.signature import Signature
from collectives.operations.space import Result, Space

_ndarray: Final = np.ndarray


def _always_done(*_: Any) -> Any:
    """The `otherwise` of calls that are not speculative."""
    raise AssertionError("a call that is not speculative has ended without effect")


class PlannedCall:
    """One kind of call.

    function   (planned, source, target, deadline): runs it between flat arrays
    planned    the exchange, as Space.plan gives it
    shape      of this rank's result; None if this rank gets none
    flat       x and the result have one dimension
    reduction  the arithmetic around the exchange, for collectives that reduce
    signature  the description of a named call of this kind, which must be equal on all ranks
    otherwise  (x, out, seconds, deadline) -> result: does the call another way if `function` returns False
    """

    __slots__ = ("dtype", "flat", "function", "otherwise", "planned", "quietly", "reduction", "shape", "signature")

    def __init__(
        self,
        space: Space,
        function: Callable[..., Any],
        planned: Any,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] | None,
        signature: Signature,
        *,
        flat: bool = False,
        reduction: Reduction | None = None,
        otherwise: Callable[..., Any] = _always_done,
    ) -> None:
        self.quietly = space.quietly
        self.function = function
        self.planned = planned
        self.dtype = dtype
        self.shape = shape
        self.signature = signature
        self.flat = flat
        self.reduction = reduction
        self.otherwise = otherwise

    def run(self, source: Any, target: Any, deadline: float) -> Any:
        """Run it between flat arrays; `target` is None where this rank gets no result. Raises as Executor.run."""
        return self.quietly(self.function, self.planned, source, target, deadline)

    def empty(self) -> Array:
        """A new array for the result."""
        assert self.shape is not None
        return np.empty(self.shape, self.dtype)

    @property
    def exchanges_only(self) -> bool:
        """True if nothing but the exchange reads the source and writes the result."""
        return self.reduction is None or not self.reduction.surrounds(self.planned)


class PlannedCalls:
    """The planned calls of one space, forgotten with its plans (Executor.forget_plans).

    space   the memory in which the exchanges and the arithmetic around them take place
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._windows = space.executor.windows
        self._known: dict[Any, PlannedCall] = space.executor.planner.cache()

    def find_plain(
        self, collective: str, x: Any, out: Any, arguments: tuple[Any, ...], make: Callable[..., PlannedCall]
    ) -> PlannedCall | None:
        """The planned call on NumPy arrays that can be used as they are: contiguous, and `out` (None: a new array) is
        `x` or fits and does not overlap it. None for other arrays. See `find`."""
        if type(x) is not _ndarray:
            return None
        flags, in_place = x.flags, out is x
        if not (flags.carray if in_place else flags.c_contiguous):  # carray: writeable and aligned too
            return None
        offsets = self.space.offsets(collective, x, out) if self._windows.pieces else None
        key = collective, arguments, in_place, x.dtype, x.shape, offsets
        try:
            planned = self._known[key]
        except (KeyError, TypeError) as error:  # TypeError: an argument that cannot be hashed
            planned = self._make(key, x, make, isinstance(error, KeyError))
        if out is None or in_place:
            return planned
        if type(out) is not _ndarray or out.dtype != planned.dtype or out.shape != planned.shape:
            return None
        into = out.flags
        if not (into.c_contiguous and into.writeable):
            return None
        apart = (into.owndata and flags.owndata) or not np.may_share_memory(out, x)  # which is slow to ask
        return planned if apart else None

    def find(
        self,
        collective: str,
        array: Any,
        source: Any,
        target: Any,
        arguments: tuple[Any, ...],
        make: Callable[..., PlannedCall],
    ) -> PlannedCall:
        """The planned call of `collective` on `array`, from `source` into `target` (the same object: in place).

        If there is none yet, make(array, in_place, offsets, *arguments) checks the arguments and plans it. Raises
        what `make` raises.
        """
        offsets = self.space.offsets(collective, source, target) if self._windows.pieces else None
        key = collective, arguments, target is source, array.dtype, array.shape, offsets
        try:
            return self._known[key]
        except (KeyError, TypeError) as error:  # TypeError: an argument that cannot be hashed
            return self._make(key, array, make, isinstance(error, KeyError))

    def _make(self, key: tuple[Any, ...], array: Any, make: Callable[..., PlannedCall], keep: bool) -> PlannedCall:
        _, arguments, in_place, _, _, offsets = key
        check_dtype(array.dtype, "x")
        planned = make(array, in_place, offsets, *arguments)
        if keep:
            self._known[key] = planned
        return planned


class PlainJob(Job[Any]):
    """A planned call on NumPy arrays that are used as they are."""

    __slots__ = ("_x", "out", "planned")

    def __init__(self, planned: PlannedCall, x: Array, out: Array | None, timeout: float) -> None:
        self.timeout = timeout
        self.planned = planned
        self.out = out
        """The result; None until it is made."""
        self._x = x

    @property
    def signature(self) -> Signature:
        return self.planned.signature

    @property
    def packable(self) -> Packable | None:
        reduction = self.planned.reduction
        if reduction is None or reduction.by_array or self.planned.signature.kind != "allreduce":
            return None
        out = self._result()
        source, target = self.arrays(out)
        return Packable((Part(reduction, source.size, source, target),), lambda: out)

    def run(self, deadline: float) -> Array:
        planned, given = self.planned, self.out
        out = self._result()
        source, target = self.arrays(out)
        if planned.run(source, target, deadline) is False:
            return planned.otherwise(self._x, given, self.timeout, deadline)  # type: ignore[no-any-return]
        return out

    def arrays(self, out: Array) -> tuple[Array, Array]:
        """Flat source and target."""
        target = out.reshape(-1)
        return (target if out is self._x else self._x.reshape(-1)), target

    def _result(self) -> Array:
        if self.out is None:
            self.out = self.planned.empty()
        return self.out


class ArrayJob(Job[Any]):
    """A planned call on flat arrays, of which the result is made afterwards."""

    __slots__ = ("_result", "_source", "planned")

    def __init__(self, planned: PlannedCall, source: Any, result: Result | None, timeout: float) -> None:
        self.timeout = timeout
        self.planned = planned
        self._source = source
        self._result = result

    @property
    def signature(self) -> Signature:
        return self.planned.signature

    @property
    def packable(self) -> Packable | None:
        reduction, result = self.planned.reduction, self._result
        if reduction is None or reduction.by_array or self.signature.kind != "allreduce" or self.signature.detail:
            return None
        assert result is not None
        return Packable((Part(reduction, self._source.size, self._source, result.flat),), result.finish)

    def run(self, deadline: float) -> Any:
        result = self._result
        self.planned.run(self._source, None if result is None else result.flat, deadline)
        return None if result is None else result.finish()
