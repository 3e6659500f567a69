"""Plan + arrays -> results: runs the calls that bind.py makes of a plan. The only interpreter.

Everything of one communicator runs here, one collective at a time and in one order (progress.py sees to that), so
scratch memory and the staging window are shared by all its plans.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from collectives.alarm import Alarm
from collectives.bind import NO_DATA, Binder, Bound
from collectives.buffers import Array
from collectives.contest import Contest
from collectives.mismatch import mismatch
from collectives.parts import Mark, Part, step_of
from collectives.plan import Call, Plan, Planner
from collectives.program import Instruction, Kind
from collectives.ready import Ready
from collectives.trace import now
from collectives.windows import Place, Places, Windows
from transports.base import Request, Transport
from transports.errors import AbortedError, DeadlineExceeded, MismatchError, RondeError
from transports.native import NativeCollectives
from transports.onesided import Window

_EPOCHS_PER_CALL = (1 << 24) + 1
"""More than any program has phases; odd, so that a window keeps the checks of successive calls side by side."""
_KEPT = 8
"""Plans of the last calls that are kept: two more than `recent` tells, since the next call may begin."""
_WAITING = {Kind.SEND: "to send to", Kind.RECV: "to receive from", Kind.WAIT: "for"}
WOVEN_BYTES = 1 << 15
"""Calls on no more are never woven: among them are those by which ranks agree on sizes."""
_MAX_BOUND = 1 << 15
"""Instructions that are kept bound, in all places of the window and of all plans together; some 600 bytes each."""
Bind = Callable[[int], Sequence[Callable[[], object]]]
"""Check -> the instructions of a plan as calls, one for each."""
_NO_REQUESTS: list[Request | None] = []
Weave = Callable[[Plan, Array, Array], Mark | None]
"""What puts copies between the instructions of a plan from a source to a target: what does them, if any are to be."""


class Executor:
    """Runs the collectives of one communicator. Not thread-safe: its callers take turns."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        planner: Planner,
        alarm: Alarm,
        windows: Windows,
    ) -> None:
        self.ranks = ranks
        self.rank = ranks.index(transport.rank)
        self.key = f"{tag:x}-{ranks[0]}"
        self.alarm = alarm
        self.tag = tag
        self.native = transport.ability(NativeCollectives)
        self.weave: Weave | None = None
        """Set while what is run works in memory that is copied from and to a device (staging.py)."""
        self._transport = transport
        self.meter = planner.meter
        self._planner = planner
        self._scratch = NO_DATA
        self._window: Window | None = None
        self._staged_calls = 0
        self._windows = windows
        self._binder = Binder(transport, ranks, tag, windows)
        self._kept = 0
        self._given_up: tuple[Array, ...] = ()
        """What a call in vain has lent, if that was copies: another rank may be reading it until it knows."""
        self._table: MismatchError | None = None
        self._recent: list[Plan | None] = [None] * _KEPT
        self.calls = 0
        self.stalled = 0, ""
        """The number of the call that this rank last reported a stall of, and the report."""
        self.quiet = contextvars.Context()
        """Where NumPy says nothing of overflows: what the caller has made an error must not stop a call half-way."""
        self.quiet.run(np.seterr, all="ignore")

    @property
    def planner(self) -> Planner:
        """What plans its calls."""
        return self._planner

    @property
    def authenticated(self) -> bool:
        """True when what arrives provably comes from the job."""
        return self._transport.authenticated

    def abort(self, cause: RondeError) -> None:
        """Give up, and tell all ranks why."""
        self.alarm.sound(cause)

    def recent(self) -> list[tuple[int, int, str]]:
        """The last calls: number, what must be equal on all ranks, and that in words. From any thread; empty if a
        call begins meanwhile."""
        newest = self.calls
        plans = [(number, self._recent[number % _KEPT]) for number in range(max(1, newest - _KEPT + 3), newest + 1)]
        if self.calls != newest:
            return []
        return [(number, plan.check, plan.call.describe()) for number, plan in plans if plan is not None]

    def locate(self, plan: Plan, number: int, at: int) -> str:
        """Where this rank is, for people: call, step, and whom it waits for."""
        group, label = self._transport.group, plan.program.instructions[at].label
        text = f"{plan.call.describe()}, call {number}, {plan.algorithm.name}: {label}"
        step = _awaited(plan, at)
        if step is None:
            return text
        return f"{text}; rank {group.rank} waits {_WAITING[step.kind]} {group.describe(self.ranks[step.peer])}"

    def awaits(self, plan: Plan, at: int) -> int | None:
        """The rank of the transport that instruction `at` waits for; None if it waits for none."""
        step = _awaited(plan, at)
        return None if step is None else self.ranks[step.peer]

    def check(self, call: Call, source: Array | None, target: Array | None) -> None:
        """Raises ValueError if a call cannot be planned, as `run` does, when nothing has been done yet."""
        self._planner.plan(self._placed(call, source, target))

    def run(self, call: Call, source: Array | None, target: Array | None, deadline: float) -> Plan:
        """Run one collective from flat `source` into flat `target` (None where this rank has none); returns its plan.

        Raises ValueError before anything is sent if the call cannot be planned. A failure while it runs aborts the
        transport and is raised, with what was going on, as MismatchError or a TransportError.
        """
        plan = self._planner.plan(self._placed(call, source, target))
        self.perform(plan, NO_DATA if source is None else source, NO_DATA if target is None else target, deadline)
        return plan

    def attempt(self, call: Call, source: Array, target: Array, deadline: float) -> bool:
        """`run` for a call with `rest`, which needs a window: False if another rank's call is not the same, with
        nothing lost but the contents of `target`. All ranks get the same answer."""
        return self.perform(self._planner.plan(self._placed(call, source, target)), source, target, deadline)

    def places(self, collective: str, source: Array | None, target: Array | None) -> Places | None:
        """Where the arrays of a call lie, if they lie in windows."""
        return self._windows.places(collective, source, target) if self._windows.pieces else None

    def lying(self, place: Place, size: int, dtype: np.dtype[Any]) -> Array:
        """This rank's elements from a place in a window on."""
        return self._windows.own(place, size * dtype.itemsize).view(dtype)

    def _placed(self, call: Call, source: Array | None, target: Array | None) -> Call:
        """The call with where its arrays lie."""
        places = self.places(call.collective, source, target)
        return call if places is None else call.placed(places)

    def unbind(self) -> None:
        """Let go of all memory that plans are bound to."""
        self._planner.unbind()
        self._kept = 0

    @property
    def onesided(self) -> bool:
        """True if there is a window."""
        return self._window is not None

    def repeat(self, ready: Ready, x: Array, out: Array | None, deadline: float) -> Array | None:
        """Run a plan from `x` into `out` (None: a new array), contiguous arrays of the right dtype and shapes.

        Does what `run` does, or `attempt`: then it may return None. Raises as `run` does.
        """
        result = np.empty(ready.shape, x.dtype) if out is None else out
        source, target = (x, result) if ready.flat else flattened(ready, x, result)
        return result if self.perform(ready.plan, source, target, deadline) else None

    def _race(self, plan: Plan, contest: Contest, source: Array, target: Array, deadline: float) -> bool:
        """`perform` with the one of a plan's rivals that has the turn. It counts if it ended well, which all ranks
        know."""
        if contest.stay:
            if not self.perform(plan.rivals[contest.winner], source, target, deadline):
                return False
            contest.stay -= 1
            return True
        chosen = plan.rivals[contest.turn]
        began = time.perf_counter()
        if not self.perform(chosen, source, target, deadline):
            return False
        contest.tried(time.perf_counter() - began, chosen.turns)
        if contest.over:
            call = Call("allreduce", contest.times.dtype, (2,), "min", alias=0, within=plan.call.describe())
            self.run(call, contest.times, contest.times, deadline)
            contest.settle()
        return True

    def follow(self, plan: Plan, bind: Bind, deadline: float) -> None:
        """Run a plan that is bound elsewhere as this communicator's next call. Raises as `run` does."""
        self.perform(plan, NO_DATA, NO_DATA, deadline, bind)

    def perform(
        self,
        plan: Plan,
        source: Array,
        target: Array,
        deadline: float,
        bind: Bind | None = None,
    ) -> bool:
        """Run a plan from flat `source` into flat `target`; False if it was an attempt in vain. Raises as `run` does.

        bind   as in `follow`

        What every small call does is written out here: to call another function for a part of it takes as long as the
        part does.
        """
        if plan.contest is not None:
            return self._race(plan, plan.contest, source, target, deadline)
        if self._transport.failure is not None:
            raise self._failed(plan, self._transport.failure)
        self.calls = number = self.calls + 1
        self._recent[number % _KEPT] = plan
        check, epoch = (plan.check + number * 0x9E3779B1) & 0xFFFFFFFF, number * _EPOCHS_PER_CALL
        turn, program = 0, plan.program
        if program.phases:
            self._staged_calls = staged = self._staged_calls + 1
            turn = staged % plan.turns
        elif self._window is not None:  # for a peer that awaits this rank in another, one-sided call by mistake
            self._window.publish(epoch + 1, check)
        given, taken = self._lend(plan, source, target) if plan.algorithm.lends else (source, target)
        requests = _NO_REQUESTS
        if program.requests:
            requests = [None] * program.requests
        tally = plan.tally
        tally.calls += 1
        parts: Sequence[Part]
        if bind is None:
            bound: Bound = plan.bound.get(turn) or self._bind(plan, turn, given, taken)
            parts = bound.parts
        else:
            parts = [_part_of(call) for call in bind(check)]
        mark, times = None, None
        if tally.calls >= tally.next or self.weave is not None:
            mark, times = self._attend(plan, given, taken)
        at = 0
        try:
            try:
                if mark is not None:
                    mark()
                for at, part in enumerate(parts):  # noqa: B007
                    part(given, taken, epoch, check, deadline, requests, mark)
            finally:
                if times is not None:
                    self.meter.ended(plan, number, self.ranks, self._planner.label, [*times, now()])
        except RondeError as error:
            stuck = at + step_of(error.__traceback__)
            if plan.call.rest is None or not isinstance(error, MismatchError):
                raise self._give_up(plan, stuck, error) from None
            try:
                for stuck in self._meet(plan, epoch + 1, deadline):  # noqa: B007
                    continue
            except RondeError as lost:
                raise self._give_up(plan, stuck, lost) from None
            tally.calls -= 1
            if taken is not target:
                self._given_up = given, taken
            return False
        except BaseException as error:  # an interrupt in the middle leaves the others waiting: tell them
            rank = self._transport.rank
            self.abort(AbortedError(f"rank {rank} left {plan.call.describe()}: {error!r}", rank=rank))
            raise
        if taken is not target:
            np.copyto(target, taken)
        return True

    def _failed(self, plan: Plan, failure: RondeError) -> RondeError:
        """What to raise for a call that would begin after the transport has failed."""
        if isinstance(failure, MismatchError):
            return self._disagree(plan, self.calls + 1, failure.message)
        return self.alarm.settle(failure).within(f"in {plan.call.describe()}")

    def use(self, window: Window) -> None:
        """Take the staging window, which it will close: two halves, used in turn by one-sided programs. To be called
        before anything is run, if the planner counts on a window."""
        self._window = self._binder.window = window

    def close(self) -> None:
        """Release the window and all plans with their memory."""
        self._planner.forget()
        self._recent = [None] * _KEPT
        self._scratch = NO_DATA
        self._given_up = ()
        if self._window is not None:
            self._window.close()
            self._window = self._binder.window = None

    def _lend(self, plan: Plan, source: Array, target: Array) -> tuple[Array, Array]:
        """Lend the arrays of a plan to the other ranks, or copies of them where that cannot be; what was lent."""
        assert self._window is not None
        self._given_up = ()
        if self._window.lend(source, target):
            return source, target
        taken, start = target.copy(), plan.call.alias
        given = source.copy() if start is None else taken[start : start + source.size]
        self._window.lend(given, taken)
        return given, taken

    def _meet(self, plan: Plan, epoch: int, deadline: float) -> Iterator[int]:
        """Wait until all ranks have come to a call that ends before its time, and so published `epoch`: until then they
        may still read what this rank staged for the call before it, in the half that the next one will use. Gives the
        instruction of each wait before it, since it is asked for where this rank is."""
        assert self._window is not None
        waits = {step.peer: at for at, step in enumerate(plan.program.instructions) if step.kind is Kind.WAIT}
        for index in range(len(self.ranks)):
            yield waits.get(index, 0)
            self._window.wait(index, epoch, deadline)

    def _attend(self, plan: Plan, source: Array, target: Array) -> tuple[Mark | None, list[int] | None]:
        """What is to be done between the instructions of a call, and the times that it notes, if it is to be timed."""
        woven = None
        if self.weave is not None and source.nbytes + target.nbytes > WOVEN_BYTES:
            woven = self.weave(plan, source, target)
        if plan.tally.calls < plan.tally.next:
            return woven, None
        times: list[int] = []

        def mark() -> None:
            times.append(now())
            if woven is not None:
                woven()

        return mark, times

    def _give_up(self, plan: Plan, at: int, error: RondeError) -> RondeError:
        """Give up because of an error in instruction `at`; what to raise for it."""
        failure = self.alarm.give_up(error, "in " + self.locate(plan, self.calls, at))
        if isinstance(failure, MismatchError):
            return self._disagree(plan, self.calls, failure.message)
        if isinstance(failure, DeadlineExceeded) and self.stalled[0] == self.calls:
            failure.add_note(self.stalled[1])
        return failure

    def _disagree(self, plan: Plan, number: int, detail: str) -> MismatchError:
        """What to raise for a mismatch that this rank noticed or heard of in its call `number`."""
        if self._table is None:
            store, said = self._transport.group.store, f"{plan.call.describe()}, its call {number}"
            self._table = mismatch(store, self.key, self.rank, len(self.ranks), said, detail)
        return MismatchError(self._table.message, rank=self._table.rank)

    def _bind(self, plan: Plan, turn: int, source: Array, target: Array) -> Bound:
        """The plan bound for a turn, to be run from flat `source` into `target`."""
        self._keep(len(plan.program.instructions))
        if turn:
            first: Bound = plan.bound.get(0) or self._bind(plan, 0, source, target)
            bound = self._binder.moved(first, plan, turn)
        else:
            bound = self._binder.bind(plan, self._scratch_for(plan), (len(source), len(target)))
        plan.bound[turn] = bound
        return bound

    def _scratch_for(self, plan: Plan) -> Array:
        nbytes = plan.program.scratch * plan.call.dtype.itemsize
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(max(nbytes, 2 * self._scratch.nbytes), np.uint8)
        return self._scratch[:nbytes].view(plan.call.dtype)

    def _keep(self, count: int) -> None:
        """So much more is about to be kept bound."""
        self._kept += count
        if self._kept > _MAX_BOUND:
            self.unbind()
            self._kept = count


def _part_of(call: Callable[[], object]) -> Part:
    """A call that needs nothing of what parts are given."""

    def part(*run: Any) -> None:
        call()
        if run[-1] is not None:
            run[-1]()

    return part


def flattened(ready: Ready, x: Array, out: Array) -> tuple[Array, Array]:
    """Flat source and target of a call from `x` into `out`, which may be `x`."""
    target = out if out.ndim == 1 else out.reshape(-1)
    if not ready.reads:
        return NO_DATA, target
    if out is x:
        return target, target
    return x if x.ndim == 1 else x.reshape(-1), target


def _awaited(plan: Plan, at: int) -> Instruction | None:
    """The exchange whose end instruction `at` waits for; None if it waits for no rank."""
    steps = plan.program.instructions
    step = steps[at]
    if step.kind is Kind.AWAIT:
        step = next(begun for begun in reversed(steps[:at]) if begun.request == step.request)
    return step if step.kind in _WAITING else None
