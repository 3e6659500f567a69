"""All collectives, as jobs, and what these run on."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import numpy as np

from collectives.alarm import Alarm
from collectives.arguments import dtype_name
from collectives.buffers import Array
from collectives.composed import ComposedJobs, Peers
from collectives.config import Config
from collectives.device_jobs import DeviceAware, takes_devices
from collectives.execute import Executor
from collectives.fusion import WINDOW, Buffer
from collectives.meter import Meter
from collectives.objects import ObjectJobs
from collectives.plan import Planner
from collectives.progress import Job
from collectives.ready import Ready
from collectives.reduction_jobs import ReductionJobs
from collectives.schedule import Geometry
from collectives.select import Selector
from collectives.windows import Places, Windows
from transports.base import Transport
from transports.errors import RendezvousError

log = logging.getLogger("ronde")

_STAGE_BYTES: Final = 2 << 20
"""Room for two pieces of 1 MiB, by which large arrays are moved fastest. Of many ranks each has half of that."""


@takes_devices
class Jobs(ReductionJobs, ObjectJobs, ComposedJobs, DeviceAware):
    """Makes jobs that are ordered among themselves only: they have an executor of their own, with its memory."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        geometry: Geometry,
        selector: Selector,
        config: Config,
        alarm: Alarm,
        meter: Meter,
        windows: Windows,
        label: str = "",
    ) -> None:
        """`tag` is that of its frames; `label`, of jobs that are named, tells its tracks in a timeline from others."""
        self._stage_bytes = config.stage_bytes or (_STAGE_BYTES if len(ranks) <= 4 else _STAGE_BYTES // 2)
        planner = Planner(geometry, selector, self._stage_bytes if windows.onesided else 0, meter, label)
        self.executor = Executor(transport, ranks, tag, planner, alarm, windows)
        self._windows = windows
        self._ranks = ranks
        self._key = f"stage/{tag:x}/{ranks[0]}"
        self._named = bool(label)
        self.buffer = Buffer()
        super().__init__(geometry.rank, geometry.size, self.executor, selector, config)

    def stage(self) -> None:
        """Make the staging window, where the ranks can have one. Collective; before anything is run."""
        onesided = self._windows.onesided
        if onesided is not None:
            deadline = time.monotonic() + self._config.connect_timeout
            window = onesided.expose(self._key, self._ranks, 2 * self._stage_bytes, deadline)
            self.executor.use(window)
            self.executor.planner.lends = window.can_lend(deadline)
            if self._named:
                self._share_buffer(deadline)

    def _share_buffer(self, deadline: float) -> None:
        """Pack small arrays in a window. It is made now, as all ranks are here: where a rank does not come to such a
        thing, the others cannot tell why."""
        try:
            self.buffer.share(self._windows.make((WINDOW,), np.dtype(np.uint8), deadline, named=True))
        except RendezvousError as error:
            log.warning("small arrays are packed into private memory: %s", error)

    def window(self, shape: tuple[int, ...], dtype: np.dtype[Any], timeout: float | None) -> Job[Array]:
        """A new array of zeros in a window of the named ones, after releasing those that nobody uses; see empty."""
        seconds = self.timeout(timeout)

        def make(peers: Peers) -> Array:
            unused = np.array([0, *self._windows.unused(named=True)], np.int64)
            peers.allreduce(unused)
            if self._windows.release((unused[1:] == peers.size).tolist(), named=True):
                self.executor.unbind()
            return self._windows.make(shape, dtype, time.monotonic() + seconds, named=True)

        return self.compose(make, f"empty({dtype_name(dtype)} {shape})", timeout=timeout)

    def prepare(self, collective: str, x: Array, argument: Any, in_place: bool, places: Places | None) -> Ready | None:
        """What ReadyCalls asks for. Raises TypeError or ValueError as the job does."""
        ready: Ready | None = getattr(self, f"ready_{collective}")(x, argument, in_place)
        if ready is not None and places is not None:
            ready = ready._replace(plan=self.executor.planner.plan(ready.plan.call.placed(places)))
        if ready is not None and ready.plan.call.op == "average" and not ready.plan.averages:
            return None  # it is left to be divided
        return ready

    def close(self, deadline: float) -> None:
        """Release all memory. Collective if arrays on GPUs were communicated. Raises DeadlineExceeded."""
        try:
            self.close_devices(deadline)
        finally:
            self.forget()
            self.executor.close()
