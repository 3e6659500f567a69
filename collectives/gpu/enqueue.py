"""Plan + arrays on a GPU -> work on a stream: by the transport's native collectives, or by a schedule of Ronde's own
whose messages are its native sends and receives, and whose reductions are kernels of the arrays' library.

Nothing here waits for the GPU.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from collectives.execution import NO_DATA, Executor, Row
from collectives.gpu.arithmetic import device_averaging, device_kernel
from collectives.gpu.devices import DeviceStream
from collectives.operations import dtype_name
from collectives.planning import Call, Plan, Planner, all_blocks
from collectives.proof import exchange_rounds, lower_ranks
from collectives.schedule import SPECS, Buf, Instruction, Kind, Span, split_evenly
from transports.base import Request
from transports.errors import RondeError
from transports.native import NativeCollectives, NativeGroup, NotNative

_IN_PLACE: Final = ("allreduce", "reduce", "broadcast")
"""Collectives whose calls may be in place."""
_ROUNDS, _TEXT = 2, 3
"""The keys of a plan's rounds and description among its bindings, beside the halves of the window."""

log = logging.getLogger("ronde.gpu")


class Enqueuer:
    """Enqueues the collectives of one executor on GPUs. Its callers take turns, as those of the executor do."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._native = executor.native
        self._planner: Planner = executor.planner.for_devices(self._obstacle)
        self._group: NativeGroup | None = None
        self._asked = False

    def refused(self, deadline: float) -> bool:
        """True once it is known that the ranks have no native collectives. Not collective; they all come to the same.

        Raises NotNative if the transport insists on them.
        """
        if self._native is not None and not self._asked:
            self._asked = True
            reason = self._native.obstacle(self.executor.ranks, deadline)
            if reason:
                self._refuse(NotNative(reason, rank=self.executor.rank))
        return self._native is None

    def join(self, place: DeviceStream, deadline: float) -> bool:
        """Have native collectives for the GPU of `place`: True; or False if the ranks cannot have them. Collective the
        first time. Raises NotNative if the transport insists on them, ValueError for another GPU than the first time.
        """
        if self._group is None and self._native is not None:
            try:
                self._group = self._join(self._native, place, deadline)
            except NotNative as error:
                self._refuse(error)
            except RondeError as error:
                self.executor.abort_signal.raise_abort(error)
                raise
        if self._group is not None and self._group.device != place.device:
            raise ValueError(
                f"x: is on GPU {place.device}; must be on GPU {self._group.device}, which this communicator has used"
            )
        return self._group is not None

    def premultiplies(self, call: Call) -> bool:
        """True if `run` takes a factor for this call."""
        assert self._group is not None
        if call.op is None or not self._planner.plan(call).algorithm.native:
            return False
        return self._group.premultiplies(dtype_name(call.dtype), str(call.op))

    def averages(self, call: Call) -> bool:
        """True if `run` makes an average of floats of a call with that op. Until the ranks have joined, that is not
        known, and expected."""
        if call.op != "average":
            return False
        if self._group is None:
            return True
        plan = self._planner.plan(call)
        return self._group.divides(dtype_name(call.dtype)) if plan.algorithm.native else plan.averages

    def run(
        self, call: Call, source: Any, target: Any, place: DeviceStream, deadline: float, factor: float | None = None
    ) -> bool:
        """Enqueue one collective from flat `source` into flat `target` (None where this rank has none), in `place`.

        factor   multiplies the source first; see `premultiplies`

        Returns True if it makes an average. Raises as Executor.run does.
        """
        group, plan = self._group, self._planner.plan(call)
        assert group is not None
        if call.uneven and not plan.algorithm.native:
            raise ValueError(f"algorithm={plan.algorithm.name!r}: it cannot be used for arrays on GPUs with splits")
        binder = _Binder(group, plan, self._rounds(plan), source, target, place, factor)
        text = plan.bound.get(_TEXT) or plan.bound.setdefault(_TEXT, call.describe())

        steps = [binder.bind(step) for step in plan.program.instructions]
        if steps:
            steps[-1] = partial(_one_by_one, steps[-1], binder.finish, partial(group.leave, place.handle, binder.keep))

        def row_of(at: int, step: Callable[[], object]) -> Row:
            def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
                self.executor.counter.step = at
                if at == 0:
                    group.enter(check, deadline, text)
                step()

            return row

        rows = [row_of(at, step) for at, step in enumerate(steps)]
        self.executor.run(plan, NO_DATA, NO_DATA, deadline, rows)
        return self.averages(call)

    def bare(self, call: Call, source: Any, target: Any, place: DeviceStream) -> Callable[[], None] | None:
        """The transport's own call for a collective, without what `run` adds to it, to be compared with that; None if
        it is not done natively. `run` must have been called before."""
        if self._group is None:
            return None
        plan = self._planner.plan(call)
        binder = _Binder(self._group, plan, (), source, target, place, None)
        return binder.native if plan.algorithm.native else None

    def close(self, deadline: float) -> None:
        """Release the group. Collective if there is one. Raises DeadlineExceeded."""
        self._planner.forget()
        if self._group is not None:
            self._group.close(deadline)

    def _refuse(self, reason: NotNative) -> None:
        assert self._native is not None
        if self._native.required:
            raise reason
        self._native = None
        if self.executor.rank == 0:
            log.warning("arrays on GPUs go through the host's memory: %s", reason.message)

    def _join(self, native: NativeCollectives, place: DeviceStream, deadline: float) -> NativeGroup:
        executor = self.executor
        return native.join(executor.key, executor.ranks, place.device, executor.tag, deadline)

    def _obstacle(self, call: Call) -> str:
        """The reason why a call cannot be done natively; empty if it can."""
        assert self._group is not None
        if call.collective == "reduce_scatter" and len(set(call.blocks)) > 1:
            return "natively, the parts of reduce_scatter are of one size"
        return self._group.obstacle(call.collective, dtype_name(call.dtype), call.op_name)

    def _rounds(self, plan: Plan) -> tuple[int, ...]:
        """In which round each request of a plan is exchanged."""
        if not plan.program.requests:
            return ()
        found: tuple[int, ...] | None = plan.bound.get(_ROUNDS)
        if found is None:
            geometry, algorithm = plan.geometry, plan.algorithm
            if SPECS[plan.call.collective].by_rank:
                blocks = all_blocks(plan.call, geometry.size)
            else:
                blocks = tuple(split_evenly(plan.call.blocks[0], algorithm.blocks(geometry.size)))
            lowered = lower_ranks(
                algorithm,
                geometry.size,
                root=geometry.root,
                segments=geometry.segments,
                hosts=geometry.hosts,
                in_place=plan.call.collective in _IN_PLACE,
                sizes=blocks,
            )
            found = plan.bound[_ROUNDS] = exchange_rounds(lowered.programs, geometry.rank)
        return found


class _Binder:
    """Binds one plan's instructions to arrays on a GPU."""

    def __init__(
        self,
        group: NativeGroup,
        plan: Plan,
        order: tuple[int, ...],
        source: Any,
        target: Any,
        place: DeviceStream,
        factor: float | None,
    ) -> None:
        self._group = group
        self._plan = plan
        self._order = order
        self._place = place
        self._factor = factor
        self._itemsize = plan.call.dtype.itemsize
        self._arrays: dict[Buf, Any] = {Buf.IN: source, Buf.OUT: target}
        if plan.program.scratch:
            self._arrays[Buf.SCRATCH] = place.cuda.empty((plan.program.scratch,), plan.call.dtype)
        self._waiting: dict[int, list[Callable[[], None]]] = defaultdict(list)

    @property
    def keep(self) -> object:
        """The owner of its memory."""
        return tuple(self._arrays.values())

    def bind(self, step: Instruction) -> Callable[[], object]:
        match step.kind:
            case Kind.SEND | Kind.RECV:
                return partial(self._begin, step)
            case Kind.AWAIT:
                return partial(self._exchange, self._order[step.request])
            case Kind.COPY:
                return partial(np.copyto, self._array(step.dst), self._array(step.a))
            case Kind.REDUCE:
                call, plan = self._plan.call, self._plan
                if plan.averages:
                    kernel = device_averaging(call.dtype, plan.averaging(step.phase))
                else:
                    kernel = device_kernel(str(call.op), call.dtype)
                return partial(kernel, self._array(step.a), self._array(step.b), self._array(step.dst))
        assert step.kind is Kind.NATIVE
        return self.native

    def finish(self) -> None:
        """Exchange the rest."""
        if self._waiting:
            self._exchange(max(self._waiting))

    def _begin(self, step: Instruction) -> None:
        """A message, which goes with all others of its round."""
        array = self._array(step.a if step.kind is Kind.SEND else step.dst)
        call = self._group.send if step.kind is Kind.SEND else self._group.receive
        message = partial(call, step.peer, array.data.ptr, array.nbytes, self._place.handle)
        self._waiting[self._order[step.request]].append(message)

    def _exchange(self, last: int) -> None:
        """Exchange the messages of all rounds up to `last`."""
        for number in sorted(number for number in self._waiting if number <= last):
            with self._group.together():
                for message in self._waiting.pop(number):
                    message()

    def _array(self, span: Span | None) -> Any:
        assert span is not None
        return self._arrays[span.buf][span.start : span.stop]

    def native(self) -> None:
        """The whole collective, by the transport."""
        group, call, stream, item = self._group, self._plan.call, self._place.handle, self._itemsize
        source, target = _address(self._arrays[Buf.IN]), _address(self._arrays[Buf.OUT])
        if call.alias is not None:
            source = target + call.alias * item
        blocks = all_blocks(call, group.size) if SPECS[call.collective].by_rank else call.blocks
        sizes = [count * item for count in blocks]
        dtype, op, factor = dtype_name(call.dtype), call.op_name or "", self._factor
        match call.collective:
            case "allreduce":
                group.all_reduce(source, target, blocks[0], dtype, op, stream, factor)
            case "reduce":
                group.reduce(source, target, blocks[0], dtype, op, call.root, stream, factor)
            case "reduce_scatter":
                group.reduce_scatter(source, target, blocks[0], dtype, op, stream, factor)
            case "broadcast":
                group.broadcast(source, target, sizes[0], call.root, stream)
            case "allgather":
                group.all_gather(source, target, sizes, stream)
            case "gather":
                group.gather(source, target, sizes, call.root, stream)
            case "scatter":
                group.scatter(source, target, sizes, call.root, stream)
            case "alltoall":
                row = slice(group.rank * group.size, (group.rank + 1) * group.size)
                group.alltoall(source, target, sizes[row], sizes[group.rank :: group.size], stream)


def _one_by_one(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()


def _address(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)
