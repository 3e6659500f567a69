"""The memory of a GPU as a Space: collectives are enqueued on a stream, by the transport's native collectives or by
Ronde's schedules on native messages. Agreements on sizes go through the host, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.gpu.arithmetic import scaled
from collectives.gpu.devices import Cuda, DeviceTarget, cuda
from collectives.gpu.enqueue import Enqueuer
from collectives.operations import Buffer
from collectives.planning import Call, WindowOffsets

_DETAIL: Final = "on GPUs"


class DeviceSpace:
    """The GPU and the stream that are current in the calling thread. See operations.Space."""

    detail: tuple[str, ...] = (_DETAIL,)
    direct = None
    speculates = False
    onesided = False

    def __init__(self, enqueuer: Enqueuer) -> None:
        self.executor = enqueuer.executor
        self._enqueuer = enqueuer

    @property
    def _cuda(self) -> Cuda:
        return cuda()

    def table(self, planned: Any) -> None:
        """None: no call on GPUs has a table."""

    def array(self, x: Any, name: str = "x", *, records: bool = False) -> Any:
        return self._cuda.array(x, name)

    def flat(self, array: Any) -> Any:
        return self._cuda.flat(array)

    def pair(self, x: Any, array: Any, out: Any) -> tuple[Any, DeviceTarget]:
        target = self.result(out, array.shape, array.dtype, x)
        if out is x:
            return target.flat, target
        return target.apart(self._cuda.flat(array)), target

    def result(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> DeviceTarget:
        return DeviceTarget(self._cuda.here(), out, tuple(shape), dtype)

    def apart(self, source: Any, out: Any) -> Any:
        if out is not None and np.may_share_memory(source, self._cuda.array(out, "out")):
            return source.copy()
        return source

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        return self._cuda.empty((size,), dtype)

    def widens(self, reproducible: bool, algorithm: str | None) -> bool:
        """False where the transport is expected to make the average, in the dtype itself."""
        return reproducible or algorithm not in (None, "native")

    def scaling(self, dtype: np.dtype[Any], factor: float) -> Callable[[Any, Any], object]:
        return lambda array, out: np.copyto(out, scaled(array, factor))

    def copy(self, array: Any) -> Any:
        return array.copy()

    def offsets(self, collective: str, source: Any, target: Any) -> WindowOffsets | None:
        return None

    def plan(self, call: Call) -> Call:
        """The call itself: whether it is done natively is known only once the ranks have joined."""
        return call

    def averages(self, planned: Call) -> bool:
        return self._enqueuer.averages(planned)

    def call(self, planned: Call) -> Call:
        return planned

    def premultiplies(self, planned: Call) -> bool:
        return self._enqueuer.premultiplies(planned)

    def exchange(self, planned: Call, source: Any, target: Any, deadline: float, factor: float | None = None) -> bool:
        if factor is not None and not self._enqueuer.premultiplies(planned):
            factor = None
        return self._enqueuer.run(planned, source, target, self._cuda.here(), deadline, factor)

    def quietly(self, function: Callable[..., Any], /, *args: Any) -> Any:
        return function(*args)


class DeviceBuffer(Buffer):
    """The memory of a GPU that small arrays are packed into: a new array for every bundle, from CuPy's pool."""

    def limit(self, fusion: int) -> int:
        return fusion

    def take(self, size: int, dtype: np.dtype[Any]) -> Any:
        return cuda().empty((size,), dtype)
