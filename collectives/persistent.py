"""Persistent collectives: the same call on the same arrays, again and again, with everything that can be done once done
once. As MPI_Allreduce_init and its kin (MPI 4.0, section 6.12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from collectives.bind import NO_DATA
from collectives.buffers import Array
from collectives.execute import Executor, flattened
from collectives.progress import Job, Stream, Work
from collectives.ready import Ready


class Persistent:
    """A call that `Communicator.plan` has made, for any number of runs. It keeps its arrays alive."""

    __slots__ = ("_executor", "_make", "_out", "_plan", "_source", "_stream", "_target", "_timeout")

    def __init__(
        self,
        stream: Stream,
        executor: Executor,
        make: Callable[[], Job[Any]],
        timeout: float = 0.0,
        ready: Ready | None = None,
        x: Array = NO_DATA,
        out: Array = NO_DATA,
    ) -> None:
        """`make` makes the job of one run. If that is but to run a plan, `ready` tells which, from `x` to `out`."""
        self._stream = stream
        self._executor = executor
        self._make = make
        self._timeout = timeout
        self._out = out
        self._plan = None if ready is None else ready.plan
        self._source: Array = NO_DATA
        self._target: Array = NO_DATA
        if ready is not None:
            self._source, self._target = flattened(ready, x, out)

    def run(self) -> Any:
        """Run it now, and return what the plain call would: `out`, if that was given. Collective.

        Raises what the plain call raises; ClosedError if the communicator has been closed.
        """
        if self._plan is None or not self._stream.begin():
            return self._stream.run(self._make())
        executor = self._executor
        try:
            deadline = time.monotonic() + self._timeout
            executor.quiet.run(executor.perform, self._plan, self._source, self._target, deadline)
        finally:
            self._stream.end()
        return self._out

    def start(self) -> Work[Any]:
        """Begin to run it, in the order of calls. Its arrays must not be touched until the Work is over."""
        return self._stream.submit(self._make())
