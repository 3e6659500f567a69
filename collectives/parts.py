"""Parts of programs as Python functions: the steps are written out as source text, which is compiled once.

A small call is over in a few microseconds; to call a function for each of its steps, and to look up in each what it
works on, would take as long as the work. In a part it is all at hand, as variables of the function.

A text says nothing of sizes, ranks or memory, nor anything that comes from outside: these are values that the function
is made with. One text serves all programs that do the same kinds of steps in the same order. Each step is one line, so
that the number of the line that is under way tells the step. Behind each there is a mark, where the time of calls that
are timed is taken, and what else is to be done between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType, TracebackType
from typing import Any, Final, NamedTuple

from collectives.buffers import Array
from transports.base import Request

Mark = Callable[[], object]
"""Called before the first step of a call, and after every one."""
Part = Callable[[Array, Array, int, int, float, list[Request | None], Mark | None], object]
"""Runs some steps. Takes the caller's flat source and target, the call's epoch and check, when it must be over, room
for the requests that it begins, and what is to be called after each step."""

_FILE: Final = "<part of a program>"
_FIRST: Final = 3
"""The line of the first step: two for the heads of the functions are before it."""
_LINES: Final = 2
"""Of each step, with its mark."""
_REMEMBERED: Final = 256
"""Texts that are kept compiled, up to 10 KiB each, beside those of plans that are bound."""


class Draft(NamedTuple):
    """What a part is made of: what makes the function, of `values`; some of which lie in the stage, `staged` tells
    which, and what they are there."""

    make: Callable[..., Part]
    values: tuple[Any, ...]
    staged: tuple[tuple[int, Any], ...]

    def part(self) -> Part:
        """The function."""
        return self.make(*self.values)

    def moved(self, place: Callable[[Any], Array]) -> Part:
        """The same function in other places of the stage."""
        values = list(self.values)
        for number, what in self.staged:
            values[number] = place(what)
        return self.make(*values)


class Writer:
    """Writes the text of one part. Its variables are `source`, `target`, `epoch`, `check`, `deadline`, `requests`,
    `mark`, and those that `name` gives to values."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._before: list[str] = []
        self._values: list[Any] = []
        self._names: dict[int, str] = {}
        self._pieces: dict[tuple[str, int, int], str] = {}
        self._staged: list[tuple[int, Any]] = []

    def name(self, value: Any, staged: Any = None) -> str:
        """The variable that holds a value; `staged` tells what it is if it lies in the stage."""
        known = self._names.get(id(value))
        if known is None:
            number = len(self._values)
            known = self._names[id(value)] = f"v{number}"
            self._values.append(value)
            if staged is not None:
                self._staged.append((number, staged))
        return known

    def piece(self, array: str, start: int, stop: int) -> str:
        """The variable that holds a piece of `source` or `target`, which is cut where it is used first."""
        known = self._pieces.get((array, start, stop))
        if known is None:
            known = self._pieces[array, start, stop] = f"p{len(self._pieces)}"
            self._before.append(f"{known} = {array}[{self.name(slice(start, stop))}]")
        return known

    def step(self, *statements: str) -> None:
        """The next step."""
        self._lines.append("; ".join([*self._before, *statements]))
        self._before = []

    def draft(self) -> Draft:
        """What has been written."""
        return Draft(_compiled(tuple(self._lines), len(self._values)), tuple(self._values), tuple(self._staged))


@lru_cache(_REMEMBERED)
def _compiled(lines: Sequence[str], count: int) -> Callable[..., Part]:
    """What makes a part of `lines` from `count` values."""
    values = ", ".join(f"v{number}" for number in range(count))
    body = "".join(f"  {line}\n  if mark is not None: mark()\n" for line in lines)
    head = f"def make({values}):\n def part(source, target, epoch, check, deadline, requests, mark):\n"
    found: dict[str, Callable[..., Part]] = {}
    exec(compile(f"{head}{body} return part\n", _FILE, "exec"), found)
    return found["make"]


def step_at(code: CodeType, line: int | None) -> int | None:
    """Which of a part's steps is under way there, from 0; None if that is no part."""
    if code.co_filename != _FILE or line is None:
        return None
    return max(0, line - _FIRST) // _LINES


def step_of(trace: TracebackType | None) -> int:
    """Which of a part's steps an error comes from; 0 if it comes from none."""
    while trace is not None:
        step = step_at(trace.tb_frame.f_code, trace.tb_lineno)
        if step is not None:
            return step
        trace = trace.tb_next
    return 0
