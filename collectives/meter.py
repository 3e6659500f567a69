"""What a communicator has done so far, in numbers: calls, bytes, seconds, waits.

Every call is counted, which takes a few nanoseconds. As many are timed, step by step, as costs half a percent of the
time: all that take a millisecond, one in a hundred of those that take some microseconds, at random, so that no rhythm
of the program is met. A call that is timed stands for those of its plan since the last that was, with the shorter of
both times, so that a rare long wait is not multiplied. While a timeline is written all are timed. So calls and bytes
are exact; seconds are estimates, rather too low than too high, and may lag by some calls.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from collectives.program import Instruction, Kind
from collectives.trace import Trace

if TYPE_CHECKING:
    from collectives.plan import Plan

_RARE: Final = 256
"""Of so many calls one is timed at least, on average."""
_SHARE: Final = 200
"""What timing may take of the time: one part in so many."""
_FIXED: Final = 2500
_PER_STEP: Final = 150
"""Nanoseconds that timing takes, roughly: of a call, and of each step in it."""

_Key = tuple[str, bool, str]
"""Collective, whether it is a part of another operation, algorithm."""


class Tally:
    """What is counted of one plan.

    calls, next       how many there were, and which is the next to be timed
    timed, last       which was the last that was, and the nanoseconds that it took
    nanoseconds       in all calls until then
    """

    __slots__ = ("calls", "last", "nanoseconds", "next", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.calls = self.timed = self.last = self.nanoseconds = 0
        self.next = 1


class Sum:
    """What is counted of all plans of one collective and algorithm."""

    def __init__(self) -> None:
        self.calls = self.bytes = self.moved = self.nanoseconds = 0

    def add(self, tally: Tally, nbytes: int, moved: int) -> None:
        self.calls += tally.calls
        self.bytes += tally.calls * nbytes
        self.moved += tally.calls * moved
        self.nanoseconds += tally.nanoseconds


class _End(weakref.ref["Plan"]):
    """Tells that a plan is gone. Its callback must not run Python code: an interrupt that came just then would be lost,
    as Python raises nothing out of callbacks of weak references."""

    __slots__ = ("tally",)
    tally: Tally


class Meter:
    """Counts for one communicator. Any thread may ask it; calls of one executor are one at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._live: dict[Tally, tuple[_Key, int, int, _End]] = {}
        self._ended: deque[_End] = deque()
        self._past: dict[_Key, Sum] = {}
        self._made = 0
        self._waited: Counter[int] = Counter()
        self._events: Counter[str] = Counter()

    def count(self, event: str, amount: int = 1) -> None:
        """Something happened that has no numbers of its own, such as a stall."""
        with self._lock:
            self._events[event] += amount

    # ---- calls

    def follow(self, plan: Plan) -> None:
        """Count a new plan's calls."""
        itemsize = plan.call.dtype.itemsize
        moved = sum(map(_moved, plan.program.instructions)) * itemsize
        key = plan.call.collective, bool(plan.call.within), plan.algorithm.name
        end = _End(plan, self._ended.append)  # it may be noticed anywhere, also where the lock is held: it is but noted
        end.tally = plan.tally
        with self._lock:
            self._made += 1
            self._live[plan.tally] = key, plan.nbytes, moved, end
            self._bury()

    def ended(self, plan: Plan, number: int, ranks: tuple[int, ...], label: str, times: Sequence[int]) -> None:
        """A call was timed.

        number, ranks, label   the call's number, and the executor's ranks and label
        times                  when it began, when each step ended, and when it was over, well or not
        """
        instructions = plan.program.instructions
        failed = len(times) < len(instructions) + 2
        ends = times[1:] if failed else times[1:-1]  # the step that has failed has ended too
        steps = list(zip(instructions, times, ends, strict=False))
        weight = self._account(plan.tally, times[-1] - times[0], len(steps))
        with self._lock:
            for done, began, ended in steps:
                if done.kind is Kind.AWAIT or done.kind is Kind.WAIT:
                    self._waited[ranks[done.peer]] += round(weight * (ended - began))
        self.trace.call(plan, number, ranks, label, steps, failed=failed)

    def _account(self, tally: Tally, spent: int, steps: int) -> float:
        """A call took so long; for how many like it that stands."""
        estimate = spent + (tally.calls - tally.timed - 1) * min(spent, tally.last)
        tally.nanoseconds += estimate
        tally.timed, tally.last = tally.calls, spent
        gap = min(_RARE, _SHARE * (_FIXED + _PER_STEP * steps) / (spent + 1))
        tally.next = 0 if self.trace.on else tally.calls + 1 + int(self._random.random() * (2 * gap - 1))
        return estimate / spent if spent else 1.0

    def every_call(self) -> None:
        """Time the next call of every plan; the trace says whether those after it are timed too."""
        with self._lock:
            for tally in self._live:
                tally.next = 0

    def _bury(self) -> None:
        while self._ended:
            tally = self._ended.popleft().tally
            key, nbytes, moved, _ = self._live.pop(tally)
            self._past.setdefault(key, Sum()).add(tally, nbytes, moved)

    # ---- what there is to tell

    def reset(self) -> None:
        """Begin anew."""
        with self._lock:
            self._bury()
            self._past.clear()
            self._waited.clear()
            self._events.clear()
            self._made = 0
            for tally in self._live:
                tally.clear()

    def sums(self) -> dict[_Key, Sum]:
        """What was counted, by collective, whether it was a part of another operation, and algorithm."""
        sums: dict[_Key, Sum] = {}
        with self._lock:
            self._bury()
            for key, past in self._past.items():
                sums[key] = Sum()
                sums[key].__dict__.update(past.__dict__)
            for tally, (key, nbytes, moved, _) in self._live.items():
                if tally.calls:
                    sums.setdefault(key, Sum()).add(tally, nbytes, moved)
        return sums

    def snapshot(self) -> dict[str, Any]:
        """See Communicator.metrics."""
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
                "events": dict(sorted(self._events.items())),
            }


def _moved(step: Instruction) -> int:
    """Elements that an instruction sends to a peer or reads from a peer's memory."""
    if step.kind is Kind.SEND:
        return 0 if step.a is None else step.a.stop - step.a.start
    return sum(span.stop - span.start for span in (step.a, step.b) if span is not None and span.rank >= 0)
