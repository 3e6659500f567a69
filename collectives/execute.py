"""Plan + arrays -> results: binds instructions to memory and runs them. The only interpreter.

Everything of one communicator runs here, one collective at a time and in one order (progress.py sees to that), so
scratch memory and the staging window are shared by all its plans.
"""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collectives.buffers import Array, as_bytes
from collectives.mismatch import mismatch
from collectives.plan import Call, Plan, Planner
from collectives.program import Instruction, Kind, Span
from collectives.reductions import kernel
from collectives.schedule import Buf
from transports.base import Request, Transport
from transports.errors import AbortedError, ConnectError, DeadlineExceeded, MismatchError, PeerLost, RondeError
from transports.onesided import Window
from transports.rendezvous.causes import Causes

STAGED_BYTES = 1 << 15
"""Calls whose arrays together are smaller work in memory of the plan's own, and so are bound only once."""

_EPOCHS_PER_CALL = (1 << 24) + 1
"""More than any program has phases; odd, so that a window keeps the checks of successive calls side by side."""
_CONSEQUENCES = (ConnectError, DeadlineExceeded, PeerLost)
"""Errors that another rank's failure may look like from here."""
_PATIENCE = 0.3
"""Seconds that a rank waits to hear whether one of these has a cause that is known."""
_NO_DATA = np.empty(0, np.uint8)


class _State:
    """What changes from call to call; bound instructions read it."""

    __slots__ = ("check", "deadline", "epoch", "requests")

    def __init__(self) -> None:
        self.check = 0
        self.deadline = 0.0
        self.epoch = 0
        self.requests: list[Request | None] = []


class _Bound:
    """A plan's instructions as calls, with the arrays that they work on."""

    __slots__ = ("calls", "source", "target")

    def __init__(self, calls: list[Callable[[], object]], source: Array, target: Array) -> None:
        self.calls = calls
        self.source = source
        self.target = target


class Small:
    """A call on small arrays, ready to be repeated: its plan, and per half of the window its calls and its memory."""

    __slots__ = ("halves", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.halves: list[tuple[Sequence[Callable[[], object]], Array | None]] = [((), None), ((), None)]


class Executor:
    """Runs the collectives of one communicator. Not thread-safe: its callers take turns."""

    def __init__(
        self, transport: Transport, ranks: tuple[int, ...], tag: int, planner: Planner, window: Window | None
    ) -> None:
        """`window` is the staging window, which it will close: two halves, used in turn by one-sided programs."""
        self._transport = transport
        self._ranks = ranks
        self._tag = tag
        self._planner = planner
        self._causes = Causes(transport.group.store)
        self._half_bytes = 0 if window is None else window.nbytes // 2
        self._scratch = np.empty(0, np.uint8)
        self._window = window
        self._staged_calls = 0
        self._state = _State()
        self._table: MismatchError | None = None
        self.calls = 0
        self.quiet = contextvars.Context()
        """Where NumPy says nothing of overflows: what the caller has made an error must not stop a call half-way."""
        self.quiet.run(np.seterr, all="ignore")

    @property
    def authenticated(self) -> bool:
        """True when what arrives provably comes from the job."""
        return self._transport.authenticated

    def abort(self, cause: RondeError) -> None:
        """Give up: tell the other ranks through the transport, and through the store those whom it cannot reach."""
        self._transport.abort(cause)
        self._causes.tell(cause)

    def run(self, call: Call, source: Array | None, target: Array | None, deadline: float) -> None:
        """Run one collective from flat `source` into flat `target` (None where this rank has none).

        Raises ValueError before anything is sent if the call cannot be planned. A failure while it runs aborts the
        transport and is raised, with what was going on, as MismatchError or a TransportError.
        """
        plan = self._planner.plan(call)
        source = _NO_DATA if source is None else source
        target = _NO_DATA if target is None else target
        half = self._begin(plan, deadline)
        if source.nbytes + target.nbytes > STAGED_BYTES:
            self._execute(plan, self._bind(plan, source, target, half).calls)
            return
        bound: _Bound | None = plan.bound.get(half)
        if bound is None:
            own = np.empty_like(source) if call.alias is None else _NO_DATA
            bound = plan.bound[half] = self._bind(plan, own, np.empty_like(target), half)
        if call.alias is None:
            if source.size:
                bound.source[:] = source
        else:
            bound.target[:] = target
        self._execute(plan, bound.calls)
        if target.size:
            target[:] = bound.target

    def small(self, call: Call) -> Small | None:
        """A call in place, ready for `repeat`; None if its array is too large for that."""
        if call.blocks[0] * call.dtype.itemsize > STAGED_BYTES:
            return None
        return Small(self._planner.plan(call))

    def repeat(self, small: Small, x: Array, out: Array | None, deadline: float) -> Array:
        """Run a small call from `x` into `out` (None: a new array), which have the call's dtype and `x`'s shape.

        Does what `run` does, with nothing done twice. Raises as `run` does.
        """
        plan = small.plan
        half = self._begin(plan, deadline)
        calls, work = small.halves[half]
        if work is None:
            bound = plan.bound.get(half)
            if bound is None:
                bound = plan.bound[half] = self._bind(plan, _NO_DATA, np.empty(x.size, x.dtype), half)
            calls, work = small.halves[half] = bound.calls, bound.target.reshape(x.shape)
        np.copyto(work, x)
        self._execute(plan, calls)
        if out is None:
            return work.copy()
        np.copyto(out, work)
        return out

    def _begin(self, plan: Plan, deadline: float) -> int:
        """Set the state for the next call; which half of the window it uses. Raises the transport's failure."""
        failure = self._transport.failure
        if failure is not None:
            if isinstance(failure, MismatchError):
                raise self._disagree(plan, self.calls + 1, failure.message)
            raise failure.within(f"in {plan.call.describe()}")
        self.calls = calls = self.calls + 1
        state = self._state
        state.check = (plan.check + calls * 0x9E3779B1) & 0xFFFFFFFF
        state.deadline = deadline
        state.epoch = calls * _EPOCHS_PER_CALL
        if plan.program.phases:
            self._staged_calls += 1
            return self._staged_calls & 1
        if self._window is not None:  # for a peer that awaits this rank in another, one-sided call by mistake
            self._window.publish(state.epoch + 1, state.check)
        return 0

    def close(self) -> None:
        """Release the window and all plans with their memory."""
        self._planner.forget()
        self._scratch = _NO_DATA
        if self._window is not None:
            self._window.close()
            self._window = None

    def _execute(self, plan: Plan, calls: Sequence[Callable[[], object]]) -> None:
        if plan.program.requests:
            self._state.requests = [None] * plan.program.requests
        at = 0
        try:
            for at, call in enumerate(calls):  # noqa: B007
                call()
        except RondeError as error:
            raise self._give_up(plan, at, error) from None
        except BaseException as error:  # an interrupt in the middle leaves the others waiting: tell them
            rank = self._transport.rank
            self.abort(AbortedError(f"rank {rank} left {plan.call.describe()}: {error!r}", rank=rank))
            raise

    def _give_up(self, plan: Plan, at: int, error: RondeError) -> RondeError:
        """Abort the transport because of an error in instruction `at`; what to raise for it.

        A lost or late peer may be but the consequence of what another rank has told already.
        """
        step = plan.program.instructions[at].label
        text = f"in {plan.call.describe()}, call {self.calls}, {plan.algorithm.name}: {step}"
        known = self._causes.ask(_PATIENCE) if isinstance(error, _CONSEQUENCES) else None
        failure = error.within(text) if known is None else known
        self.abort(failure)
        if isinstance(failure, MismatchError):
            return self._disagree(plan, self.calls, failure.message)
        return copy.copy(failure)

    def _disagree(self, plan: Plan, number: int, detail: str) -> MismatchError:
        """What to raise for a mismatch that this rank noticed or heard of in its call `number`."""
        if self._table is None:
            group, said = self._transport.group, f"{plan.call.describe()}, its call {number}"
            rank, size = self._ranks.index(group.rank), len(self._ranks)
            self._table = mismatch(group.store, self._tag, rank, size, said, detail)
        return MismatchError(self._table.message, rank=self._table.rank)

    def _bind(self, plan: Plan, source: Array, target: Array, half: int) -> _Bound:
        """Instructions as calls without arguments, in order."""
        binder = _Binder(self, plan, source, target, half)
        return _Bound([binder.bind(step) for step in plan.program.instructions], source, target)

    def _scratch_for(self, nbytes: int) -> Array:
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(max(nbytes, 2 * self._scratch.nbytes), np.uint8)
        return self._scratch


class _Binder:
    """Binds one plan's instructions to arrays, requests and the window."""

    def __init__(self, executor: Executor, plan: Plan, source: Array, target: Array, half: int) -> None:
        self._transport = executor._transport
        self._tag = executor._tag
        self._ranks = executor._ranks
        self._window = executor._window
        self._state = executor._state
        self._dtype = plan.call.dtype
        self._buffers: dict[Buf, Array] = {Buf.IN: source, Buf.OUT: target}
        itemsize = self._dtype.itemsize
        if plan.program.scratch:
            self._buffers[Buf.SCRATCH] = executor._scratch_for(plan.program.scratch * itemsize)[
                : plan.program.scratch * itemsize
            ].view(self._dtype)
        self._half = half * executor._half_bytes
        if plan.call.op is not None:
            self._kernel = kernel(plan.call.op, self._dtype)

    def bind(self, step: Instruction) -> Callable[[], object]:
        state, request = self._state, step.request
        match step.kind:
            case Kind.SEND | Kind.RECV:
                peer, tag = self._ranks[step.peer], self._tag
                sends = step.kind is Kind.SEND
                span = step.a if sends else step.dst
                view = as_bytes(_NO_DATA if span is None else self._array(span))
                begin = self._transport.isend if sends else self._transport.irecv

                def exchange() -> None:
                    state.requests[request] = begin(peer, tag, view, state.check)

                return exchange
            case Kind.AWAIT:

                def complete() -> None:
                    state.requests[request].wait(state.deadline)  # type: ignore[union-attr]

                return complete
            case Kind.COPY:
                return partial(np.copyto, self._array(step.dst), self._array(step.a))
            case Kind.REDUCE:
                return partial(self._kernel, self._array(step.a), self._array(step.b), self._array(step.dst))
        window, phase = self._window, step.phase
        assert window is not None
        if step.kind is Kind.SIGNAL:
            publish = window.publish
            return lambda: publish(state.epoch + phase, state.check)
        index, wait = step.peer, window.wait
        if phase == 1:
            return lambda: wait(index, state.epoch + 1, state.deadline, state.check)
        return lambda: wait(index, state.epoch + phase, state.deadline)

    def _array(self, span: Span | None) -> Array:
        assert span is not None
        if span.buf is not Buf.STAGE:
            return self._buffers[span.buf][span.start : span.stop]
        assert self._window is not None
        index = self._window.index if span.rank < 0 else span.rank
        part = np.frombuffer(self._window.view(index), np.uint8)
        start = self._half + span.start * self._dtype.itemsize
        stop = self._half + span.stop * self._dtype.itemsize
        view: np.ndarray[Any, Any] = part[start:stop].view(self._dtype)
        return view
