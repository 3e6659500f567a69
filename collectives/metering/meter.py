"""Counters of a communicator: calls, bytes, seconds, waits.

Every call is counted, which takes a few nanoseconds. Calls are timed step by step as often as costs half a percent of
the time: every call that takes a few milliseconds, about one in three hundred that take ten microseconds. The choice is
random, so that it does not follow a rhythm of the program. A timed call represents the calls of its plan since the
previous timed one; the shorter of the two durations is used for them, so that a rare long wait is not multiplied. While
a timeline is written, every call is timed. So calls and bytes are exact. Seconds are estimates, too low rather than too
high, and may lag by some calls.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from collectives.metering.events import Trace, now
from collectives.metering.trace_file import TraceFile
from collectives.planning import Plan, Tally
from collectives.schedule import Instruction, Kind
from collectives.sharing import not_shared
from transports.locks import let_go

_RARE: Final = 1000
"""The longest mean distance between two timed calls of a plan."""
_SHARE: Final = 200
"""The inverse of the fraction of the time that timing may take."""
_PER_STEP: Final = 150
"""Approximate nanoseconds by which a call takes longer for each step that is timed."""

_Key = tuple[str, bool, str]
"""Collective, True if it was a part of another operation, algorithm."""


class Sum:
    """The counters of all plans of one collective and algorithm."""

    def __init__(self) -> None:
        self.calls = self.bytes = self.moved = self.nanoseconds = 0

    def add(self, tally: Tally, nbytes: int, moved: int) -> None:
        self.calls += tally.calls
        self.bytes += tally.calls * nbytes
        self.moved += tally.calls * moved
        self.nanoseconds += tally.nanoseconds


class _PlanEnd(weakref.ref[Plan]):
    """Reports that a plan has been freed. Its callback must not run Python code: Python raises nothing out of callbacks
    of weak references, so an interrupt at that moment would be lost."""

    __slots__ = ("tally",)

    def __init__(self, plan: Plan, callback: Callable[[_PlanEnd], None]) -> None:  # __new__ takes the callback
        self.tally = plan.tally


class Meter:
    """The counters of one communicator. Any thread may read them, and report."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._lock = threading.RLock()
        self._random = random.Random(0)
        self._live: dict[Tally, tuple[_Key, int, int, _PlanEnd]] = {}
        self._ended: deque[_PlanEnd] = deque()
        self._past: dict[_Key, Sum] = {}
        self._made = 0
        self._waited: Counter[int] = Counter()
        self._events: Counter[str] = Counter()
        self._not_shared_before = not_shared()

    def count(self, event: str, amount: int = 1) -> None:
        """Count an event by name, such as a stall."""
        with self._lock:
            self._events[event] += amount

    # ---- calls

    def follow(self, plan: Plan) -> None:
        """Count the calls of a new plan."""
        itemsize = plan.call.dtype.itemsize
        moved = sum(map(_moved, plan.program.instructions)) * itemsize
        key = plan.call.collective, bool(plan.call.within), plan.algorithm.name
        end = _PlanEnd(plan, self._ended.append)  # any thread may free a plan, also one that holds the lock
        with self._lock:
            self._made += 1
            self._live[plan.tally] = key, plan.nbytes, moved, end
            self._collect_ended()

    def ended(self, plan: Plan, number: int, ranks: tuple[int, ...], label: str, times: Sequence[int]) -> None:
        """Take the times of a call.

        number   number of the call
        ranks    ranks of the communicator, as ranks of the world
        label    label of the executor, for the timeline
        times    readings of `now`: the begin of the call, the end of every completed step, the end of the call
        """
        since, tally, spent = now(), plan.tally, times[-1] - times[0]
        instructions = plan.program.instructions
        failed = len(times) < len(instructions) + 2
        ends = times[1:] if failed else times[1:-1]  # the failed step ends with the call
        steps = list(zip(instructions, times, ends, strict=False))
        with self._lock:
            weight = _account(tally, spent)
            for done, began, ended in steps:
                if done.kind is Kind.AWAIT or done.kind is Kind.WAIT:
                    self._waited[ranks[done.peer]] += round(weight * (ended - began))
        self.trace.call(plan, number, ranks, label, steps, failed=failed)
        with self._lock:
            cost = now() - since + _PER_STEP * len(steps)
            gap = min(_RARE, _SHARE * cost / max(1, spent))
            tally.next = 0 if self.trace.on else tally.calls + 1 + int(self._random.random() * (2 * gap - 1))

    def record_to(self, timeline: TraceFile | None) -> None:
        """Send events to `timeline`, and time every call while there is one."""
        self.trace.write_to(timeline)
        self.every_call()

    def interrupted(self) -> None:
        """An interrupt has left a call of this thread: release the lock if it still holds it."""
        let_go(self._lock)

    def after_fork(self) -> None:
        """In a forked child: keep the counters as they are, and record no events."""
        self._lock = threading.RLock()
        self.trace.write_to(None)

    def every_call(self) -> None:
        """Time the next call of every plan. Later ones are timed while the trace is on."""
        with self._lock:
            for tally in self._live:
                tally.next = 0

    def _collect_ended(self) -> None:
        while self._ended:
            tally = self._ended.popleft().tally
            key, nbytes, moved, _ = self._live.pop(tally)
            self._past.setdefault(key, Sum()).add(tally, nbytes, moved)

    # ---- results

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._collect_ended()
            self._past.clear()
            self._waited.clear()
            self._events.clear()
            self._made = 0
            self._not_shared_before = not_shared()
            for tally in self._live:
                tally.clear()

    def sums(self) -> dict[_Key, Sum]:
        """The counters by collective, whether it was a part of another operation, and algorithm."""
        sums: dict[_Key, Sum] = {}
        with self._lock:
            self._collect_ended()
            for key, past in self._past.items():
                sums[key] = Sum()
                sums[key].__dict__.update(past.__dict__)
            for tally, (key, nbytes, moved, _) in self._live.items():
                if tally.calls:
                    sums.setdefault(key, Sum()).add(tally, nbytes, moved)
        return sums

    def snapshot(self) -> dict[str, Any]:
        """The counters as a dict; see Communicator.metrics."""
        groups: dict[bool, dict[str, Any]] = {False: {}, True: {}}
        sums = self.sums()
        for (collective, part, algorithm), total in sums.items():
            entry = groups[part].setdefault(
                collective, {"calls": 0, "bytes": 0, "moved": 0, "seconds": 0.0, "algorithms": {}}
            )
            entry["calls"] += total.calls
            entry["bytes"] += total.bytes
            entry["moved"] += total.moved
            entry["seconds"] += total.nanoseconds / 1e9
            entry["algorithms"][algorithm] = total.calls
        calls = sum(total.calls for total in sums.values())
        with self._lock:
            return {
                "collectives": groups[False],
                "parts": groups[True],
                "waited": {peer: nanoseconds / 1e9 for peer, nanoseconds in sorted(self._waited.items())},
                "plans": {"made": self._made, "reused": max(0, calls - self._made)},
                "events": dict(sorted((self._events + self._not_shared()).items())),
            }

    def _not_shared(self) -> Counter[str]:
        """The event of an array of this process for which the arena is full."""
        return +Counter({"arrays_not_shared": not_shared() - self._not_shared_before})


def _account(tally: Tally, spent: int) -> float:
    """Add the duration of a timed call to its plan's; the number of calls that it represents."""
    estimate = spent + (tally.calls - tally.timed - 1) * min(spent, tally.last)
    tally.nanoseconds += estimate
    tally.timed, tally.last = tally.calls, spent
    return estimate / spent if spent else 1.0


def _moved(step: Instruction) -> int:
    """The number of elements that an instruction sends to a peer or reads from a peer's memory."""
    if step.kind is Kind.SEND:
        return 0 if step.a is None else step.a.stop - step.a.start
    a, b = step.a, step.b
    read = 0 if a is None or a.rank < 0 else a.stop - a.start
    return read if b is None or b.rank < 0 else read + b.stop - b.start
