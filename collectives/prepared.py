"""What a loop prepares once: memory that the ranks share, and calls that are made again and again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from collectives.buffers import Array, check_dtype
from collectives.persistent import Persistent
from transports.errors import MismatchError

if TYPE_CHECKING:
    from collectives.config import Config
    from collectives.engine import Engine
    from collectives.execute import Executor
    from collectives.jobs import Jobs
    from collectives.progress import Stream
    from collectives.ready import ReadyCalls
    from collectives.windows import Windows

_SECOND: Final = {"allreduce": ("op", "sum"), "reduce_scatter": ("op", "sum"), "broadcast": ("root", 0)}
"""Collectives that ReadyCalls knows and that always end well there: their second argument, and its default."""
_PLANNED: Final = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall", "barrier"),
    *("grouped_allreduce", "grouped_allgather"),
)


class Prepared:
    """What makes a communicator one that a loop can prepare its calls with."""

    rank: int
    allreduce: Callable[..., Any]
    _config: Config
    _engine: Engine
    _executor: Executor
    _jobs: Jobs
    _named: Jobs
    _ready: ReadyCalls
    _stream: Stream
    _windows: Windows

    @property
    def maps(self) -> bool:
        """True if arrays of `empty` lie in memory that all ranks map."""
        return self._windows.onesided is not None

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.float64,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array:
        """A new array of zeros in memory that all ranks of the communicator map, where they can: on one host, over a
        transport with shared memory. Elsewhere an ordinary one. Collective, with the same shape and dtype everywhere.

        allreduce between such arrays (also in place), allgather into one, reduce_scatter and alltoall from one stage
        nothing, and so are several times as fast from some KiB on. All ranks must give arrays of the same call of
        `empty`, or the same slices of them, or none that is such an array; else MismatchError is raised.

        name   ranks may call it in a different order among other calls; see Communicator on names

        The memory is released by the next call of `empty` (with a name, if that had one) after all ranks have dropped
        their array and its views, or with the communicator. Raises TypeError or ValueError for a bad argument; and on
        all ranks, with nothing lost, MismatchError if they ask for different sizes, RendezvousError if there is no
        room; with a name, also what the Work of a named call does.
        """
        kind = np.dtype(dtype)
        check_dtype(kind, "dtype")
        lengths = tuple(int(n) for n in ((shape,) if isinstance(shape, (int, np.integer)) else shape))
        if any(length < 0 for length in lengths):
            raise ValueError(f"shape={shape!r}: must be 0 or more in every dimension")
        if name is not None:
            made: Array = self._engine.submit(name, self._named.window(lengths, kind, timeout)).wait()
            return made
        deadline = time.monotonic() + self._jobs.timeout(timeout)
        if self._windows.onesided is not None:
            nbytes = prod(lengths) * kind.itemsize
            said = np.array([nbytes, -nbytes, *self._windows.unused()], np.int64)
            least, most, *unused = self.allreduce(said, "min", timeout=timeout).tolist()
            if least != -most:
                text = f"empty: rank {self.rank} asks for {nbytes} bytes, others for {least} to {-most}"
                raise MismatchError(text, rank=self.rank)
            if self._windows.release(unused):
                self._ready.forget()
                self._executor.unbind()
                self._named.executor.unbind()
        return self._windows.make(lengths, kind, deadline)

    def plan(self, collective: str, /, *arguments: Any, **options: Any) -> Persistent:
        """A call that is to be made many times on the same arrays, checked and planned now: as MPI's persistent
        collectives. `arguments` and `options` are those of the method named `collective`.

            step = comm.plan("allreduce", gradients, "average", out=gradients)
            for ...:
                step.run()

        Every run does what the plain call would with what the arrays hold then, and may be paired with the plain call
        on other ranks. Nothing is communicated by `plan`. Raises ValueError for an unknown collective, and what the
        method raises for bad arguments.
        """
        if collective not in _PLANNED:
            raise ValueError(f"collective={collective!r}: must be one of {', '.join(_PLANNED)}")
        make = functools.partial(getattr(self._jobs, collective), *arguments, **options)
        make()
        rest = dict(options)
        out: Any = rest.pop("out", None)
        name, default = _SECOND.get(collective, ("", None))
        second = arguments[1] if len(arguments) == 2 else rest.pop(name, default)
        x: Any = arguments[0] if arguments else None
        ready = None
        if name and not rest and 1 <= len(arguments) <= 2 and type(x) is np.ndarray and out is not None:
            ready = self._ready.find(collective, x, second, out)
        if ready is None:
            return Persistent(self._stream, self._executor, make)
        return Persistent(self._stream, self._executor, make, self._config.timeout, ready, x, out)
