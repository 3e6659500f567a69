"""The collectives on arrays of the host's memory, and the executor that runs them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from math import prod
from typing import Any, Final, TypeVar

import numpy as np

from collectives.arrays import Array
from collectives.config import Config
from collectives.execution import CallPositions, Executor, Peers, Windows, machine_code, measure_link
from collectives.failure import AbortSignal
from collectives.flight import Description, FlightRecord, line_of_program
from collectives.metering import Meter, Trace
from collectives.operations.arguments import Arguments, dtype_name
from collectives.operations.composed import compose
from collectives.operations.fusion import WINDOW, Buffer
from collectives.operations.job import Job
from collectives.operations.movement import Movement
from collectives.operations.objects import Objects
from collectives.operations.planned_call import PlannedCalls
from collectives.operations.reduce import Reductions
from collectives.operations.signature import Signature
from collectives.operations.space import HostSpace, Space
from collectives.operations.speculation import Speculation
from collectives.operations.start import ArrayOperations
from collectives.planning import Plan, Planner, Selector
from collectives.schedule import SPECS, Geometry
from transports import copying
from transports.base import Transport
from transports.compiled import CompiledMessages
from transports.errors import ConfigError, MismatchError, RendezvousError
from transports.onesided import NoRoom, Window

T = TypeVar("T")

log = logging.getLogger("ronde.calls")

_STAGE_BYTES: Final = 2 << 20
"""Room for two pieces of 1 MiB, by which large arrays are moved fastest. With more than 4 ranks each has half of it."""


class HostOperations:
    """The operations that are ordered among themselves: the ordered ones of a communicator, or its named ones.

    arrays    make jobs of calls on arrays
    jobs      make jobs of other calls, by the names of the Communicator's methods
    executor  runs them
    """

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        geometry: Geometry,
        selector: Selector,
        config: Config,
        abort_signal: AbortSignal,
        positions: CallPositions,
        meter: Meter,
        windows: Windows,
        flight: FlightRecord,
        *,
        named: bool = False,
        single_copy: bool = False,
    ) -> None:
        """`tag` is that of its frames. The staging window is made by `stage`, or else before the first call runs.

        named         they are those with names
        single_copy   the ranks are known to be able to read each other's memory
        """
        self._stage_bytes = config.stage_bytes or (_STAGE_BYTES if len(ranks) <= 4 else _STAGE_BYTES // 2)
        self._windows = windows
        self._connect_timeout = config.connect_timeout
        self._key = f"stage/{tag:x}/{ranks[0]}"
        self._named = named
        self._calibrates = config.calibrate
        self._hosts = geometry.hosts
        self._transport = transport

        runs_tables = windows.onesided is not None or transport.ability(CompiledMessages) is not None
        code = machine_code(config.compiled) if runs_tables else None

        def executor(meter: Meter, flight: FlightRecord) -> Executor:
            def note(plan: Plan) -> None:
                meter.follow(plan)
                flight.describe(plan.number, _description(plan))

            staged, label = self._stage_bytes if windows.onesided else 0, "named" if self._named else ""
            planner = Planner(geometry, selector, staged, note, label, numbers=flight.numbers)
            return Executor(transport, ranks, tag, planner, meter, abort_signal, positions, windows, flight, code)

        self._make_executor = executor
        self.executor = executor(meter, flight)
        self.executor.planner.single_copy = single_copy
        if windows.onesided is not None:
            self.executor.put_off(self._make_stage)
        self.arguments = Arguments(geometry.rank, geometry.size, config.timeout, config.reproducible)
        self.selector = selector
        self.fusion_bytes = config.fusion_bytes
        space, self.buffer = HostSpace(self.executor), Buffer()
        self.calls = PlannedCalls(space)
        self.speculation = Speculation(by_messages=not space.onesided)
        reductions, movement = self._in_space(space, self.calls, self.buffer)
        self._zeros = reductions.zeros
        self.arrays = ArrayOperations(
            (*reductions.collectives, *movement.collectives), space, self.calls, self.arguments
        )
        objects = Objects(self.executor, self.arguments)
        self.jobs: dict[str, Callable[..., Job[Any]]] = {
            "barrier": movement.barrier,
            "compose": self.compose,
            "broadcast_object": objects.broadcast_object,
            "allgather_object": objects.allgather_object,
            "gather_object": objects.gather_object,
            "scatter_object": objects.scatter_object,
        }

    def arrays_in(
        self, space: Space, calls: PlannedCalls, buffer: Buffer, adapt: Callable[[Job[Any]], Job[Any]] | None = None
    ) -> ArrayOperations:
        """The operations on arrays in another space; `adapt` is applied to their jobs."""
        reductions, movement = self._in_space(space, calls, buffer)
        return ArrayOperations((*reductions.collectives, *movement.collectives), space, calls, self.arguments, adapt)

    def _in_space(self, space: Space, calls: PlannedCalls, buffer: Buffer) -> tuple[Reductions, Movement]:
        reductions = Reductions(space, self.arguments, self.selector, calls, buffer, self.fusion_bytes)
        return reductions, Movement(space, self.arguments, self.selector, calls, self.speculation)

    def zeros(self, signature: Signature) -> Job[Any]:
        """The job of a rank that has joined, in an operation of the others: zeros in an allreduce, or a barrier."""
        barrier = signature.kind == "barrier"
        return self.jobs["barrier"](signature.algorithm, None) if barrier else self._zeros(signature)

    @property
    def trace(self) -> Trace:
        """The events of the communicator."""
        return self.executor.meter.trace

    def stage(self) -> None:
        """Make the staging window now, if the ranks can have one, and run the planner's measurements. Collective; to be
        called before anything is run.

        Raises ConfigError if ranks have different settings for calibration, since they would wait for each other.
        """
        deadline = time.monotonic() + self._connect_timeout
        if self._windows.onesided is not None:
            self.executor.stage(deadline)
            if not (self._named or self.executor.planner.onesided):
                self._windows.onesided = None
        elif self._calibrates and len(set(self._hosts)) > 1 and self.selector.needs_link:
            with contextlib.closing(self._trial_executor()) as trial:
                self.selector.use_link(measure_link(self._transport, trial, self._hosts, deadline))

    def _make_stage(self, deadline: float) -> None:
        """Make the staging window. Collective. Where there is no room for it on a rank, all go on without."""
        onesided = self._windows.onesided
        assert onesided is not None
        try:
            window = onesided.expose(self._key, self.executor.ranks, 2 * self._stage_bytes, deadline)
        except RendezvousError as error:
            self._go_by_messages(error)
            return
        self.executor.use(window)
        self._measure(window, deadline)
        if self._named:
            self._share_buffer(deadline)

    def _go_by_messages(self, error: RendezvousError) -> None:
        """Send all data as messages, as all ranks do, since there is no memory for the staging window."""
        if self.executor.rank == 0:
            kind = "named calls" if self._named else "calls"
            log.warning("%s send their data as messages, which is slower: %s", kind, error.message)
        self.executor.planner.stage_nothing()
        self.speculation.by_messages = True

    def _measure(self, window: Window, deadline: float) -> None:
        """Find out whether the ranks can read each other's memory, and which kernel copies fastest, unless that is
        known."""
        executor = self.executor
        if not executor.planner.single_copy:
            check = self.selector.digest ^ self._calibrates
            try:
                executor.planner.single_copy = window.can_read_peers(deadline, check)
            except MismatchError as error:
                raise ConfigError(
                    f"calibrate and the table of rules: must be the same on all ranks; those of rank {error.peer} "
                    f"differ from those of rank {error.rank}, which has calibrate={self._calibrates}",
                    rank=error.rank,
                    peer=error.peer,
                ) from None
            if self.selector.kernel_table is not None:
                copying.install(self.selector.kernel_table)
            elif self._calibrates:
                copying.calibrate(window, deadline)
            self.selector.shared_arrays = executor.planner.single_copy and window.shares_arrays

    def _trial_executor(self) -> Executor:
        """An executor for trials. Its calls have numbers of their own, and so a key of its own."""
        trial = self._make_executor(Meter(Trace("of a measurement")), FlightRecord())
        trial.key += "-trial"
        return trial

    def _share_buffer(self, deadline: float) -> None:
        """Pack small arrays in a window. It is made here because all ranks are here: if one rank did not come to the
        making later, the others could not tell why."""
        try:
            self.buffer.share(self._windows.make((WINDOW,), np.dtype(np.uint8), deadline, named=True))
        except NoRoom as error:
            log.warning("small arrays are packed into private memory: %s", error.message)

    def compose(self, body: Callable[[Peers], T], what: str, timeout: float | None) -> Job[T]:
        """See Communicator.compose."""
        return compose(self.executor, body, what, self.arguments.timeout(timeout))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], timeout: float | None) -> Job[Array]:
        """A new array of zeros in a window, after the release of windows whose arrays all ranks have dropped.

        The job raises MismatchError on all ranks, with nothing lost, if they ask for different sizes.
        """
        seconds, windows, named = self.arguments.timeout(timeout), self._windows, self._named
        nbytes = prod(shape) * dtype.itemsize

        def make(peers: Peers) -> Array:
            table = peers.allgather(np.array([nbytes, *windows.unused(named=named)], np.int64))
            asked = table[:, 0].tolist()
            if min(asked) != max(asked):
                text = f"empty: rank {peers.rank} asks for {nbytes} bytes, others for {min(asked)} to {max(asked)}"
                raise MismatchError(text, rank=peers.rank)
            windows.release([int(flag) for flag in table[:, 1:].min(axis=0)], named=named)
            return windows.make(shape, dtype, time.monotonic() + seconds, named=named)

        return compose(self.executor, make, "empty", seconds, said=f"empty({dtype_name(dtype)} {shape})")

    def close(self) -> None:
        """Release all memory."""
        self.executor.close()
        self.buffer.release()


def _description(plan: Plan) -> Description:
    call = plan.call
    root = call.root if SPECS[call.collective].rooted else -1
    name, by = call.collective, plan.algorithm.name
    return Description(call.describe(), name, plan.nbytes, by, plan.common, root, line_of_program())
