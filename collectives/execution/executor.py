"""The executor: runs plans, one at a time, in the order of calls.

All plans of one communicator share the executor's scratch memory and staging window. One way in: `Executor.run`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from collectives.arrays import Array
from collectives.execution.binder import NO_DATA, Binder
from collectives.execution.message_table import tabulate_messages
from collectives.execution.positions import CallPosition, CallPositions
from collectives.execution.refusal import refuse
from collectives.execution.rows import BoundPlan, Row, RowHook, rows_with_hook, signalling_row
from collectives.execution.table import BegunCall, Table, tabulate
from collectives.execution.windows import Windows
from collectives.failure import AbortSignal, mismatch
from collectives.flight import (
    BEGAN,
    CALLS,
    ENDED,
    ENTRIES,
    ENTRY_WORDS,
    FEWEST_KEPT,
    KEPT_MASK,
    TEXT,
    TIMED,
    FlightRecord,
    NoteLog,
)
from collectives.jit import (
    STAGED,
    TALLY_CALLS,
    TALLY_NEXT,
    UNFIT,
    UNTRIED,
    Answer,
    ArrayKind,
    JobRing,
    MachineCode,
    State,
    fitting,
    take_times,
)
from collectives.metering import Meter, now
from collectives.planning import MOST_PHASES, Call, Plan, Planner, WindowOffsets
from collectives.schedule import Instruction, Kind
from transports import forking
from transports.base import Request, Transport
from transports.compiled import CompiledMessages
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    MismatchError,
    RondeError,
    described,
)
from transports.locks import let_go
from transports.native import NativeCollectives
from transports.onesided import Window

_EPOCHS_PER_CALL: Final = MOST_PHASES + 1
"""Odd, so that a window keeps the checks of successive calls side by side. An epoch has 63 bits: a rank that does
nothing but calls of 1 us comes to the last one after two years."""
_TOLD: Final = FEWEST_KEPT - 2
"""Calls that `recent` tells of: two less than are kept at least, since the next call may begin meanwhile."""
_WAITING: Final = {Kind.SEND: "to send to", Kind.RECV: "to receive from", Kind.WAIT: "for"}
_MAX_BOUND: Final = 1 << 15
"""Instructions that are kept bound, of all plans together; some 600 bytes each."""
_UNKNOWN: Final[Any] = object()
_SCRATCH: Final = "scratch"
"""The key of a plan's scratch memory in `Plan.bound`."""
HookMaker = Callable[[Plan, Array, Array], RowHook | None]
"""(plan, source, target) -> the hook to run between the rows, or None."""


class Executor:
    """Runs the collectives of one communicator. Not thread-safe: its callers take turns (the call queue).

    A call goes through it as follows:

                +--> table --> the compiled interpreter --+--> result
        plan ---+                  | leaves a row         |
        (bound  +--> rows ---> functions of Python -------+
         once)                     |
                  counter.step     +-- error --> abort signal, MismatchError, position in the text
    """

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        planner: Planner,
        meter: Meter,
        abort_signal: AbortSignal,
        positions: CallPositions,
        windows: Windows,
        flight: FlightRecord,
        code: MachineCode | None = None,
    ) -> None:
        """`flight` notes its calls. `code` runs programs as tables where it can; None: all run as functions of
        Python."""
        self.ranks = ranks
        self.rank = ranks.index(transport.rank)
        self.key = f"{tag:x}-{ranks[0]}"
        self.tag = tag
        self.planner = planner
        self.meter = meter
        self.abort_signal = abort_signal
        self.positions = positions
        self.windows = windows
        self.native = transport.ability(NativeCollectives)
        self.overlap: HookMaker | None = None
        """Set while a job works in memory that is copied from and to a device meanwhile (gpu/overlap.py)."""
        self.stalled = 0, ""
        """The number of the call that this rank last reported a stall of, and the report."""
        self.planning = threading.RLock()
        """Held while plans, their tables and planned calls are made or forgotten: any thread makes them, without the
        turn of its call."""
        self.quiet = contextvars.Context()
        """A context in which NumPy warns of nothing: a warning that the caller has made an error must not stop a call
        half-way."""
        self.quiet.run(np.seterr, all="ignore")
        self._transport = transport
        self._binder = Binder(transport, ranks, tag, windows, code)
        self.counter = self._binder.counter
        """The step that the call is at, which its rows set."""
        self._current: tuple[Plan, int] | None = None
        self._window: Window | None = None
        self._stage: Callable[[float], object] | None = None
        """Makes the staging window; None if it is made, or if there is none."""
        self._flight = flight
        self._notes: dict[str, NoteLog] = {}
        log = flight.call_log(self.key, len(ranks), self.rank, planner.label)
        self._state = State(code, log, _EPOCHS_PER_CALL)
        self.words = log.words
        """The words of the log: the number of the newest call, and an entry for each of the last calls."""
        self._mask, self._times_calls, self._entry = log.words[KEPT_MASK], bool(log.words[TIMED]), 0
        self._messages = None if code is None else transport.ability(CompiledMessages)
        if self._messages is not None:
            messages = self._messages
            self._state.use_messages(messages.polls, messages.yields, messages.sleeps)
        self._scratch = NO_DATA
        self._bound: dict[type, int] = planner.cache()
        """Instructions that are kept bound, by form. Emptied with the plans."""
        self._exposed: tuple[Array, ...] = ()
        """Copies that a failed speculative call has exposed: another rank may read them until it knows."""
        windows.on_release(self.forget_plans)
        positions.add(self)
        forking.register(self)

    @property
    def calls(self) -> int:
        """Number of the newest call."""
        return self.words[CALLS]

    def notes(self, ending: str, label: str) -> NoteLog:
        """The log of what this communicator does beside its calls, MESSAGES or BATCHES; `label` as for FlightRecord."""
        log = self._notes.get(ending)
        if log is None:
            flight = self._flight
            log = self._notes[ending] = flight.note_log(self.key + ending, len(self.ranks), self.rank, label)
            if flight is not self._flight:  # it was closed meanwhile, by another thread
                log.close()
        return log

    @property
    def is_open(self) -> bool:
        """True if the newest call has begun by functions of Python and not ended on this rank."""
        return self._current is not None

    @property
    def entered(self) -> bool:
        """True if this thread is in the middle of a call of the transport; see Transport.entered."""
        return self._transport.entered

    @property
    def failure(self) -> RondeError | None:
        """The transport's failure."""
        return self._transport.failure

    @property
    def authenticated(self) -> bool:
        """True when a byte that arrives provably comes from a member of the job."""
        return self._transport.authenticated

    def use(self, window: Window) -> None:
        """Take the staging window, which the executor will close. It has two halves, used alternately by one-sided
        programs. To be called before the first run, if the planner counts on a window. Calls may have been planned:
        they are planned again, since there are no tables without a window."""
        self.forget_plans()
        self._window = self._binder.window = window
        window.epoch_in_words = _epoch_in_words
        self._state.use(window.controls, window.index, window.nbytes // 2)

    def put_off(self, stage: Callable[[float], object]) -> None:
        """Have `stage` called with a deadline before the first call runs: it takes a staging window by `use`, or has
        the planner count on none. All ranks make their calls in the same order, so they are all there."""
        self._stage = stage

    @property
    def unready(self) -> bool:
        """True as long as the staging window has been put off. Plans made by then must be made anew for their run."""
        return self._stage is not None

    def stage(self, deadline: float) -> None:
        """Make the staging window if that has been put off. Collective. Raises as what was given to `put_off`."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage(deadline)

    def ready(self, deadline: float) -> None:
        """Do the same since a call is about to be planned and run. An error aborts the transport."""
        if self._stage is None:
            return
        waiting = _Staging(self)
        self.positions.add(waiting)
        try:
            self.stage(deadline)
        except ConfigError:
            raise
        except RondeError as error:
            raise self.abort_signal.fail(error, waiting.text) from None
        finally:
            self.positions.remove(waiting)

    def close(self) -> None:
        """Release the window and all plans with their memory."""
        self.positions.remove(self)
        with self.planning:
            self.planner.close()
        self._current = None
        self._state.close_log()
        self._flight = FlightRecord()  # of nothing
        for notes in list(self._notes.values()):
            notes.close()
        self.words = self._state.log.words
        self._scratch = NO_DATA
        self._exposed = ()
        if self._window is not None:
            self._window.close()
            self._window = self._binder.window = None
            self._state.use(None, 0, 0)

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may hold the lock."""
        self.planning = threading.RLock()

    def forget_plans(self) -> None:
        """Drop all plans, planned calls and the memory that they are bound to.

        The one rule of invalidation: code that releases memory to which plans may be bound calls this. A call that is
        made again is planned again.
        """
        with self.planning:
            self.planner.forget()

    def run_call(self, call: Call, source: Array | None, target: Array | None, deadline: float) -> Plan:
        """Plan a call and run it from flat `source` into flat `target` (None where this rank has none).

        Returns the plan. Raises ValueError before anything is sent if the call cannot be planned; and as `run`.
        """
        if self._stage is not None:
            self.ready(deadline)
        offsets = self.windows.offsets(call.collective, source, target)
        plan = self.planner.plan(call if offsets is None else call._replace(windows=offsets))
        self.run(plan, NO_DATA if source is None else source, NO_DATA if target is None else target, deadline)
        return plan

    def run(self, plan: Plan, source: Array, target: Array, deadline: float, rows: Iterable[Row] | None = None) -> bool:
        """Run a plan from flat `source` into flat `target`; see also `table` and `go_on`.

        rows  to be run in place of the plan's own: of arrays that are not in the host's memory, or of a refusal

        Returns False if the plan is of a speculative call and another rank's call differs: nothing is lost then but
        the contents of `target`, and all ranks get the same answer. Any other failure aborts the transport and is
        raised, with the position in the call, as MismatchError or a TransportError.

        After any other exception the caller of the call aborts if a call has begun: see operations.CallTurn and `left`.
        """
        if self._state.code is not None and rows is None and self.overlap is None:
            table = self.table(plan)
            answer = UNTRIED if table is None else table.run(source, target)
            if answer is None:
                return True
            if table is not None and answer != UNFIT:
                return self.go_on(table, answer, source, target, deadline)
        # By functions of Python. All that can fail on this rank alone comes before the number.
        if self._transport.failure is not None:
            raise self._failed(plan, self._transport.failure)
        given, taken = source, target
        if plan.algorithm.single_copy:
            given, taken = self._expose(plan, source, target)
        counts = plan.tally.words
        counts[TALLY_CALLS] = calls = counts[TALLY_CALLS] + 1
        observed = calls >= counts[TALLY_NEXT] or self.overlap is not None
        staged = self._state.words[STAGED] + 1 if plan.program.phases else 0
        memory: list[Any] = []
        if rows is None:
            bound: BoundPlan = plan.bound.get(BoundPlan) or self._bind(plan, given, taken)
            memory = bound.memory(staged % plan.staging_slots, given, taken)
            rows = bound.rows if observed else bound.joined
        times = None
        if observed:
            hook, times = self._hook(plan, given, taken)
            rows = rows_with_hook(rows, hook)
        # Number the call: from here on this rank has to do its part, or to abort.
        words = self.words
        number: int = words[CALLS] + 1
        self._entry = entry = ENTRIES + (number & self._mask) * ENTRY_WORDS
        words[entry + TEXT] = plan.number
        if self._times_calls:
            words[entry + BEGAN] = now()
        self.counter.step = 0  # before `_current`: the last call may have had more steps
        self._current = plan, number
        words[CALLS] = number
        check, epoch = plan.check_of(number), number * _EPOCHS_PER_CALL
        if staged:
            self._state.words[STAGED] = staged
        elif self._window is not None:  # for a peer that awaits this rank in another, one-sided call by mistake
            self._window.publish(epoch + 1)
        requests: list[Request | None] = [None] * plan.program.requests
        try:
            for row in rows:
                row(memory, epoch, check, deadline, requests)
        except RondeError as error:
            self._end_without_effect(plan, error, deadline, requests)
            if taken is not target:
                self._exposed = given, taken
            return False
        finally:
            if times is not None:
                self.meter.ended(plan, number, self.ranks, self.planner.label, [*times, now()])
        if self._times_calls:  # as `_end`, without another call
            words[entry + ENDED] = now()
        self._current = None
        if taken is not target:
            np.copyto(target, taken)
        return True

    def table(self, plan: Plan) -> Table | None:
        """The table of a plan, whose `run` begins a call; None if the plan is not run by the compiled interpreter."""
        table: Table | None = plan.bound.get(Table, _UNKNOWN)
        if table is not _UNKNOWN:
            return table
        if self._stage is not None:
            return None
        with self.planning:
            if plan.bound.get(Table, _UNKNOWN) is _UNKNOWN:
                self._keep(plan, Table)
                parts = plan, self._state, self._binder, self._scratch_for(plan)
                table = tabulate(*parts)
                if table is None and self._messages is not None:
                    table = tabulate_messages(*parts, self._messages)
                plan.bound[Table] = table
            return plan.bound[Table]  # type: ignore[no-any-return]

    def fitting(
        self, collective: str, x: Array, result: ArrayKind, offsets: WindowOffsets | None, *, in_place: bool
    ) -> Callable[[Any, Any], bool] | None:
        """See collectives.jit.fitting, for arrays with these offsets in windows. None if there is no compiled code."""
        code, windows = self._state.code, self.windows
        if code is None:
            return None
        locations = windows.locations(collective, offsets, in_place=in_place)
        return fitting(code, x, result, windows.extents, locations, in_place=in_place)

    def job_ring(self) -> JobRing | None:
        """A new ring for calls of tables; None if no thread can run them without Python."""
        code = self._state.code
        return JobRing(code) if code is not None and self._state.wakes else None

    def report_times(self, table: Table, *, failed: bool = False) -> None:
        """Report the call of a table that was timed last, if it has ended; `failed`: it has. From any thread."""
        found = take_times(table.words, failed=failed)
        if found is not None:
            self.meter.ended(table.plan, found[0], self.ranks, self.planner.label, found[1])

    def go_on(self, table: Table, answer: int, source: Array, target: Array, deadline: float) -> bool:
        """End a call that `table.run` has begun on contiguous arrays, after its answer, which is not UNFIT. Returns and
        raises as `run`."""
        plan = table.plan
        if answer == Answer.OBSERVED:
            self.report_times(table)
            return True
        if answer == Answer.OVER:
            closed = ClosedError("the window was closed", rank=self.rank)
            raise self._failed(plan, self._transport.failure or closed)
        steps, number = plan.program.instructions, self.calls
        self.counter.step = 0
        self._current = plan, number
        self._entry = ENTRIES + (number & self._mask) * ENTRY_WORDS
        rows: tuple[Row, ...] = ()
        memory: list[Any] = []
        check, epoch = plan.check_of(number), number * _EPOCHS_PER_CALL
        requests: list[Request | None] = [None] * plan.program.requests

        def do(at: int) -> None:
            nonlocal rows, memory
            row = None if rows else signalling_row(self._binder, at, steps[at])
            if row is None:
                if not rows:  # most calls end without: nothing is bound before
                    given, taken = table.flat(source, target)
                    bound = plan.bound.get(BoundPlan) or self._bind(plan, given, taken)
                    slot = self._state.words[STAGED] % plan.staging_slots if plan.program.phases else 0
                    rows, memory = bound.single_rows, bound.memory(slot, given, taken)
                row = rows[at]
            row(memory, epoch, check, deadline, requests)

        try:
            table.rest(BegunCall(source, target, do, requests), max(answer, 0), left=answer >= 0)
        except RondeError as error:
            self._end_without_effect(plan, error, deadline, requests)
            return False
        finally:
            self.report_times(table, failed=True)
        self._end()
        return True

    def _end_without_effect(
        self, plan: Plan, error: RondeError, deadline: float, requests: list[Request | None]
    ) -> None:
        """End the call that is under way after an error. Raises the error as `run` does, unless the call is speculative
        and another rank's call differs."""
        number = self.calls
        if plan.call.shape is None or not isinstance(error, MismatchError):
            raise self._fail(plan, error) from None
        try:
            if plan.program.phases:
                self._meet(plan, number * _EPOCHS_PER_CALL + 1, deadline)
            else:
                self._refuse(plan, plan.check_of(number), deadline, self.counter.step + 1, requests)
        except RondeError as lost:
            raise self._fail(plan, lost) from None
        plan.tally.words[TALLY_CALLS] -= 1
        self._end()

    def _end(self) -> None:
        """The call has ended."""
        if self._times_calls:
            self.words[self._entry + ENDED] = now()
        self._current = None

    def refuse(self, plan: Plan, deadline: float) -> None:
        """Take part in a speculative call by messages whose assumption this rank's part does not meet. All ranks have
        the same end as one whose `run` returns False. Raises as `run`."""

        def row(memory: list[Any], epoch: int, check: int, deadline: float, requests: list[Request | None]) -> None:
            self._refuse(plan, check, deadline, 0, requests)

        self.run(plan, NO_DATA, NO_DATA, deadline, (row,))
        plan.tally.words[TALLY_CALLS] -= 1

    def _refuse(self, plan: Plan, check: int, deadline: float, first: int, requests: list[Request | None]) -> None:
        """See execution/refusal.py."""
        parts = self._transport, self.ranks, self.tag
        refuse(plan, *parts, check, deadline, first=first, requests=requests, counter=self.counter)

    def left(self, error: BaseException, what: str = "") -> None:
        """Abort, since an error has ended this rank's part in a call: the other ranks would wait for it.

        what  the call in words; by default the one that is under way
        """
        rank, current = self._transport.rank, self._current
        text = what or (f"its call {self.calls + 1}" if current is None else current[0].call.describe())
        self.abort_signal.raise_abort(AbortedError(f"rank {rank} left {text}: {described(error)}", rank=rank))

    def interrupted(self) -> None:
        """An interrupt has left a call of this thread: release the locks that it still holds."""
        let_go(self.planning)
        self.meter.interrupted()
        self.windows.interrupted()
        self._transport.interrupted()

    # ---- positions

    def position(self) -> CallPosition | None:
        """The call that is under way; None if there is none, or if it ends just now. From any thread."""
        current, step = self._current, self.counter.step
        if current is None or self._current is not current or not current[0].program.instructions:
            return None
        plan, number = current
        awaited = _awaited(plan, step)
        awaits = None if awaited is None else self.ranks[awaited.peer]
        text, phase = self._describe(plan, number, step), _phase(plan, step)
        return CallPosition(self, number, step, text, self.ranks, awaits, phase)

    def recent(self) -> list[tuple[int, int, str]]:
        """The last calls: number, the digest that must be equal on all ranks, and the call in words. From any thread;
        empty if a call begins meanwhile."""
        newest = self.calls
        plans = [(number, self.plan_of(number)) for number in range(max(1, newest - _TOLD + 1), newest + 1)]
        if self.calls != newest:
            return []
        return [(number, plan.common, plan.call.describe()) for number, plan in plans if plan is not None]

    def plan_of(self, number: int) -> Plan | None:
        """The plan of one of the last calls; None if it has been forgotten."""
        return self.planner.numbered.get(self.words[ENTRIES + (number & self._mask) * ENTRY_WORDS + TEXT])

    def _describe(self, plan: Plan, number: int, step: int) -> str:
        """The position of this rank in words: call, step, and the rank that it waits for."""
        group, label = self._transport.group, plan.program.instructions[step].label
        text = f"{plan.call.describe()}, call {number}, {plan.algorithm.name}: {label}"
        awaited = _awaited(plan, step)
        if awaited is None:
            return text
        peer = group.describe(self.ranks[awaited.peer])
        return f"{text}; rank {group.rank} waits {_WAITING[awaited.kind]} {peer}"

    # ---- binding

    def _bind(self, plan: Plan, source: Array, target: Array) -> BoundPlan:
        """Bind a plan, to be run from flat `source` into flat `target`."""
        with self.planning:
            self._keep(plan, BoundPlan)
            bound = BoundPlan(self._binder, plan, self._scratch_for(plan), (len(source), len(target)))
            plan.bound[BoundPlan] = bound
            return bound

    def _keep(self, plan: Plan, form: type) -> None:
        """Count the instructions of a plan that are to be bound in one more form; forget all plans if they become too
        many."""
        if sum(self._bound.values()) + len(plan.program.instructions) > _MAX_BOUND:
            self.forget_plans()
            plan.bound.clear()
        self._bound[form] = self._bound.get(form, 0) + len(plan.program.instructions)

    def _scratch_for(self, plan: Plan) -> Array:
        """The scratch memory of a plan: the same for all forms, since one call may run in two of them."""
        found: Array | None = plan.bound.get(_SCRATCH)
        if found is None:
            nbytes = plan.program.scratch * plan.call.dtype.itemsize
            if self._scratch.nbytes < nbytes:
                self._scratch = np.empty(max(nbytes, 2 * self._scratch.nbytes), np.uint8)
            found = plan.bound[_SCRATCH] = self._scratch[:nbytes].view(plan.call.dtype)
        return found

    def _expose(self, plan: Plan, source: Array, target: Array) -> tuple[Array, Array]:
        """Expose the arrays of a plan to the other ranks, or copies of them where the arrays cannot be read; returns
        the exposed ones."""
        assert self._window is not None
        self._exposed = ()
        if self._window.expose_arrays(source, target):
            return source, target
        taken, start = target.copy(), plan.call.alias
        given = source.copy() if start is None else taken[start : start + source.size]
        self._window.expose_arrays(given, taken)
        return given, taken

    def _hook(self, plan: Plan, source: Array, target: Array) -> tuple[RowHook | None, list[int] | None]:
        """The hook for the steps of a call, and the list of times that it fills if the call is to be timed."""
        overlap = None if self.overlap is None else self.overlap(plan, source, target)
        if plan.tally.calls < plan.tally.next:
            return overlap, None
        times: list[int] = []

        def hook() -> None:
            times.append(now())
            if overlap is not None:
                overlap()

        return hook, times

    # ---- failures

    def _meet(self, plan: Plan, epoch: int, deadline: float) -> None:
        """After a failed speculative call, wait until every rank has entered it and so published `epoch`, so that none
        still reads the staging data of the call before."""
        assert self._window is not None
        waits = {step.peer: at for at, step in enumerate(plan.program.instructions) if step.kind is Kind.WAIT}
        for index in range(len(self.ranks)):
            self.counter.step = waits.get(index, 0)
            self._window.wait(index, epoch, deadline)

    def _failed(self, plan: Plan, failure: RondeError) -> RondeError:
        """The error for a call that begins after the transport has failed."""
        if isinstance(failure, MismatchError):
            return self._disagree(plan, self.calls + 1, failure.message)
        return self.abort_signal.resolve(failure).within(f"in {plan.call.describe()}")

    def _fail(self, plan: Plan, error: RondeError) -> RondeError:
        """Abort because of an error in the present step; returns the error to raise."""
        failure = self.abort_signal.fail(error, "in " + self._describe(plan, self.calls, self.counter.step))
        self._current = None
        if isinstance(failure, MismatchError):
            return self._disagree(plan, self.calls, failure.message)
        if isinstance(failure, DeadlineExceeded) and self.stalled[0] == self.calls:
            failure.add_note(self.stalled[1])
        return failure

    def _disagree(self, plan: Plan, number: int, detail: str) -> MismatchError:
        """The error for a mismatch that this rank noticed or heard of in its call `number`."""
        known = self.abort_signal.disagreement
        if known is None:
            store, said = self._transport.group.store, f"{plan.call.describe()}, its call {number}"
            way = f"{plan.algorithm.name} in {plan.geometry.segments} segments"
            known = mismatch(store, self.key, self.rank, len(self.ranks), said, way, detail)
            self.abort_signal.disagreement = known
        return MismatchError(known.message, rank=known.rank)


class _Staging:
    """The position of a rank that makes the staging window with the others, before its first call."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.text = f"its call {executor.calls + 1}, the first one, for which the ranks make the staging window"

    def position(self) -> CallPosition | None:
        """The call that is about to begin."""
        executor = self._executor
        return CallPosition(executor, executor.calls + 1, 0, self.text, executor.ranks)


def _epoch_in_words(epoch: int) -> str:
    """See Window. Before the first call the ranks find out whether they can read each other's memory."""
    number, phase = divmod(epoch, _EPOCHS_PER_CALL)
    return f"step {phase} of call {number}" if number else f"step {phase} of the start"


def _phase(plan: Plan, at: int) -> int:
    """The phase that is awaited at instruction `at`, or was the last to be awaited before; 0 for none."""
    steps = plan.program.instructions[: at + 1]
    return next((step.phase for step in reversed(steps) if step.kind is Kind.WAIT), 0)


def _awaited(plan: Plan, at: int) -> Instruction | None:
    """The instruction whose peer is awaited at instruction `at`; None if no rank is awaited there."""
    steps = plan.program.instructions
    step = steps[at]
    if step.kind is Kind.AWAIT:
        step = next(begun for begun in reversed(steps[:at]) if begun.request == step.request)
    return step if step.kind in _WAITING else None
