"""Space: the memory that the arrays of a call are in, and the ways to exchange and combine them there.

The operations are written once, for a Space. The host's memory is one (below); the memory of a GPU is another, and so
is page-locked memory that mirrors it (the gpu room).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from collectives.arrays import Array, Target, as_numpy, flat, scaling
from collectives.execution import NO_DATA, Executor, Table
from collectives.planning import Call, Plan, WindowOffsets


class Result(Protocol):
    """The place for a result: the caller's `out`, or a new array.

    flat     a contiguous array to work in, one-dimensional
    """

    @property
    def flat(self) -> Any: ...

    def finish(self) -> Any:
        """The result in the caller's library."""


class Space(Protocol):
    """The memory that arrays are in."""

    executor: Executor
    detail: tuple[str, ...]
    """Words for the signatures of calls: ranks whose arrays are elsewhere do not fit."""

    @property
    def direct(self) -> Callable[..., Any] | None:
        """(planned, source, target, deadline): `exchange` without a factor, on a rank that has both arrays. None if it
        is only known when a call runs by which means that is done."""

    speculates: bool
    """True if an allgather may run as if all parts were equal, with no effect if they are not."""

    @property
    def onesided(self) -> bool:
        """True if the ranks share windows."""

    def array(self, x: Any, name: str = "x", *, records: bool = False) -> Any:
        """`x` as an array of this space, sharing memory. Raises TypeError, naming the argument, if it is none, or if
        its dtype cannot be communicated; `records`: the host's arrays may have any dtype."""

    def flat(self, array: Any) -> Any:
        """The elements in C order as a one-dimensional array: a view if possible, else a copy."""

    def pair(self, x: Any, array: Any, out: Any) -> tuple[Any, Result]:
        """The flat source and the result of a call whose result is like `x`; `array` is `array(x)`. They are one
        memory if `out` is `x`, and never overlap otherwise. Raises TypeError or ValueError, naming `out`."""

    def result(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Result:
        """The place for a result. Raises TypeError or ValueError, naming `out`, if `out` does not fit."""

    def apart(self, source: Any, out: Any) -> Any:
        """`source`, copied if its memory overlaps that of `out`."""

    def address(self, array: Any) -> int:
        """The address of the first byte of a flat array."""

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """A new flat array."""

    def widens(self, reproducible: bool, algorithm: str | None) -> bool:
        """True if averages of small floats with these arguments are added up in float32, on more than 2 ranks."""

    def scaling(self, dtype: np.dtype[Any], factor: float) -> Callable[[Any, Any], object]:
        """(array, out): out = array * factor, for flat arrays of one dtype; see arrays.scaling."""

    def copy(self, array: Any) -> Any:
        """A copy of a flat array."""

    def offsets(self, collective: str, source: Any, target: Any) -> WindowOffsets | None:
        """The places of a call's flat arrays in windows; None if they are in none."""

    def plan(self, call: Call) -> Any:
        """The call, planned as far as that can be before it runs. Raises ValueError for an unusable algorithm."""

    def table(self, planned: Any) -> Table | None:
        """The table by which a planned call can be run; None if it has none, or if `direct` is None."""

    def averages(self, planned: Any) -> bool:
        """True if the exchange of an average of floats makes the average by itself."""

    def call(self, planned: Any) -> Call:
        """The call that was planned."""

    def premultiplies(self, planned: Any) -> bool:
        """True if `exchange` multiplies the source by `factor`."""

    def exchange(self, planned: Any, source: Any, target: Any, deadline: float, factor: float | None = None) -> bool:
        """Run a planned call between flat arrays; None where this rank has no array. Returns True if it has made an
        average."""

    def quietly(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call `function(*args)` where NumPy warns of nothing."""


class HostSpace:
    """The host's memory."""

    detail: tuple[str, ...] = ()
    speculates = True

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.direct: Callable[..., Any] | None = executor.run
        self.quietly = executor.quiet.run

    @property
    def onesided(self) -> bool:
        return self.executor.planner.onesided

    def array(self, x: Any, name: str = "x", *, records: bool = False) -> Array:
        return as_numpy(x, name, records=records)

    def flat(self, array: Array) -> Array:
        return flat(array)

    def pair(self, x: Any, array: Array, out: Any) -> tuple[Array, Target]:
        target = Target(out, array.shape, array.dtype, like=x)
        if out is x:
            return target.flat, target
        return target.apart(flat(array)), target

    def result(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Target:
        return Target(out, shape, dtype, like)

    def apart(self, source: Array, out: Any) -> Array:
        if out is not None and np.may_share_memory(source, as_numpy(out, "out", records=True)):
            return source.copy()
        return source

    def address(self, array: Array) -> int:
        found: int = array.__array_interface__["data"][0]
        return found

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        return np.empty(size, dtype)

    def widens(self, reproducible: bool, algorithm: str | None) -> bool:
        return True

    def scaling(self, dtype: np.dtype[Any], factor: float) -> Callable[[Array, Array], object]:
        return scaling(dtype, factor)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def offsets(self, collective: str, source: Array | None, target: Array | None) -> WindowOffsets | None:
        return self.executor.windows.offsets(collective, source, target)

    def plan(self, call: Call) -> Plan:
        return self.executor.planner.plan(call)

    def table(self, planned: Plan) -> Table | None:
        return self.executor.table(planned)

    def averages(self, planned: Plan) -> bool:
        return planned.averages

    def call(self, planned: Plan) -> Call:
        return planned.call

    def premultiplies(self, planned: Plan) -> bool:
        return False

    def exchange(
        self,
        planned: Plan,
        source: Array | None,
        target: Array | None,
        deadline: float,
        factor: float | None = None,
    ) -> bool:
        self.executor.run(
            planned, NO_DATA if source is None else source, NO_DATA if target is None else target, deadline
        )
        return planned.averages
