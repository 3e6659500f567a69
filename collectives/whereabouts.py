"""What the threads of this process are doing, read from their Python stacks, so that calls need not say it.

A small call takes microseconds; whoever asks for its whereabouts is in no hurry.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, chain, islice, repeat, takewhile, tee
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from collectives.alarm import Alarm
from collectives.execute import Executor
from collectives.parts import step_at
from collectives.plan import Plan
from collectives.point_to_point import Message
from transports.base import Request

_LONGEST_STACK: Final = 24


class Place(NamedTuple):
    """A place in a call that is under way.

    executor  that of the communicator whose call it is
    number    that of the collective; 0 for a message
    step      changes as the call gets on
    text      call, step, and whom it waits for
    peers     the ranks of the world that can tell why it does not get on, and perhaps this one
    awaits    the one of them that it waits for, None if it waits for none
    """

    executor: Executor
    number: int
    step: int
    text: str
    peers: tuple[int, ...]
    awaits: int | None = None


def places(alarm: Alarm) -> list[Place]:
    """Where the threads of this process are that are inside calls of the rank which `alarm` is of."""
    with _stacks() as stacks:
        return [place for stack in stacks.values() for place in _places_in(stack) if place.executor.alarm is alarm]


def _places_in(stack: list[FrameType]) -> list[Place]:
    found: list[Place] = []
    step = 0
    for frame in stack:
        look = _LOOKS.get(frame.f_code)
        if look is not None:
            found += look(step, **frame.f_locals)
            step = 0
        step = step_at(frame.f_code, frame.f_lineno) or step
    return found


def stack_of(thread: int) -> str:
    """The innermost part of a thread's Python stack, as in a traceback."""
    with _stacks() as stacks:
        innermost = stacks.get(thread, [])[:_LONGEST_STACK]
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(innermost))
        innermost.clear()
    return "".join(lines.format()) or "  its thread has ended\n"


@contextmanager
def _stacks() -> Iterator[dict[int, list[FrameType]]]:
    """The frames of all threads, the innermost first, as they are at one moment.

    From one frame to the next no other thread may run: CPython 3.11 has been seen to give an object of another kind as
    `f_back`, and to crash, where the thread that is looked at went on meanwhile. So all is done in one call, of `dict`,
    and by functions that are not written in Python; the collector could call some that are.

    Afterwards the frames are let go: those of who looks are among them, and would keep themselves and all the others,
    with their variables, until they are collected.
    """
    once, again, current = tee(islice(iter(sys._current_frames, None), 1), 3)
    innermost = chain.from_iterable(map(dict.values, once))
    outwards: Any = map(accumulate, map(chain, zip(innermost), repeat(repeat("f_back"))), repeat(getattr))
    frames = map(list, map(takewhile, repeat(bool), outwards))
    collects = gc.isenabled()
    gc.disable()
    try:
        found = dict(zip(chain.from_iterable(map(dict.keys, again)), frames, strict=True))
    finally:
        if collects:
            gc.enable()
    try:
        yield found
    finally:
        for stack in found.values():
            stack.clear()
        next(current).clear()


# The arguments are the step of the part that it runs, and the variables of the method that is under way; what it has
# not set yet has a default here.


def _in_collective(
    step: int, /, self: Executor, plan: Plan, at: int | None = None, stuck: int | None = None, **_: object
) -> list[Place]:
    if at is None or not plan.program.instructions:  # it has not begun, or has nothing to do
        return []
    # The thread goes on while it is looked at: `step` may be of a part that has failed since.
    at = at + step if stuck is None else stuck
    return [Place(self, self.calls, at, self.locate(plan, self.calls, at), self.ranks, self.awaits(plan, at))]


def _in_message(
    _step: int, /, self: Message, request: Request | None = None, doing: str = "", rank: int = 0, **_: object
) -> list[Place]:
    if not doing:
        return []
    executor = self.executor
    peer = executor.ranks[rank]
    return [Place(executor, 0, id(request), f"a call to {doing} rank {rank}", (peer,), peer)]


_LOOKS: Final[Mapping[CodeType, Callable[..., list[Place]]]] = {
    Executor.perform.__code__: _in_collective,
    Message.wait.__code__: _in_message,
}
