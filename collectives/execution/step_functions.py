"""Steps of a program as Python functions, written out as source text and compiled once.

A small call takes a few microseconds. Calling one function per step, and looking up the operands of each step, would
take as long as the steps themselves. So the steps of a small program become the lines of one function, whose operands
are variables of an enclosing function:

    def make(v0, v1, v2, ...):                      the arguments: operands, peers, bound methods
     def steps(source, target, epoch, check, deadline, requests, hook):
      v0[...] = source                              step 0
      if hook is not None: hook()
      v1(epoch + v2, check)                         step 1
      if hook is not None: hook()
     return steps

The text names no size, rank or memory, and nothing that came from outside. One text serves all programs with the same
kinds of steps in the same order. The texts are registered in `linecache`, so tracebacks show them.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from collectives.arrays import Array
from transports.base import Request

StepHook = Callable[[], object]
"""Called before the first step of a call and after every step."""
StepFunction = Callable[[Array, Array, int, int, float, list[Request | None], StepHook | None], object]
"""Runs some steps: (source, target, epoch, check, deadline, requests, hook). Source and target are the caller's flat
arrays; `requests` has room for the requests that the steps begin."""

_REMEMBERED: Final = 256
"""Texts that are kept compiled, up to 10 KiB each, besides the texts of plans that are bound."""
_numbers = itertools.count(1)


class StepTemplate(NamedTuple):
    """A compiled factory and its arguments. `staged` lists the arguments to replace when the staging slot changes, as
    pairs of position and span."""

    make: Callable[..., StepFunction]
    values: tuple[Any, ...]
    staged: tuple[tuple[int, Any], ...]

    def function(self) -> StepFunction:
        """The function for the first staging slot."""
        return self.make(*self.values)

    def moved(self, array_of: Callable[[Any], Array]) -> StepFunction:
        """The function for another staging slot, where `array_of(span)` is the memory of a span."""
        values = list(self.values)
        for number, span in self.staged:
            values[number] = array_of(span)
        return self.make(*values)


class StepWriter:
    """Writes the text of one function. Its variables are `source`, `target`, `epoch`, `check`, `deadline`, `requests`,
    `hook`, and the names that `name` gives to values."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._before: list[str] = []
        self._values: list[Any] = []
        self._names: dict[int, str] = {}
        self._pieces: dict[tuple[str, int, int], str] = {}
        self._staged: list[tuple[int, Any]] = []

    def name(self, value: Any, staged: Any = None) -> str:
        """The variable that holds a value; `staged` is the span of a value in the staging window."""
        known = self._names.get(id(value))
        if known is None:
            number = len(self._values)
            known = self._names[id(value)] = f"v{number}"
            self._values.append(value)
            if staged is not None:
                self._staged.append((number, staged))
        return known

    def piece(self, array: str, start: int, stop: int) -> str:
        """The variable that holds a slice of `source` or `target`, which is cut before its first use."""
        known = self._pieces.get((array, start, stop))
        if known is None:
            known = self._pieces[array, start, stop] = f"p{len(self._pieces)}"
            self._before.append(f"{known} = {array}[{self.name(slice(start, stop))}]")
        return known

    def step(self, *statements: str) -> None:
        """The next step."""
        self._lines.append("; ".join([*self._before, *statements]))
        self._before = []

    def template(self) -> StepTemplate:
        """The steps written so far."""
        return StepTemplate(_compiled(tuple(self._lines), len(self._values)), tuple(self._values), tuple(self._staged))


@lru_cache(_REMEMBERED)
def _compiled(lines: Sequence[str], count: int) -> Callable[..., StepFunction]:
    """The factory that makes a function of `lines` from `count` values."""
    values = ", ".join(f"v{number}" for number in range(count))
    body = "".join(f"  {line}\n  if hook is not None: hook()\n" for line in lines)
    head = f"def make({values}):\n def steps(source, target, epoch, check, deadline, requests, hook):\n"
    text, name = f"{head}{body} return steps\n", f"<steps {next(_numbers)}>"
    found: dict[str, Callable[..., StepFunction]] = {}
    exec(compile(text, name, "exec"), found)
    make = found.pop("make")  # the namespace and the function would keep each other alive
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    weakref.finalize(make, linecache.cache.pop, name, None).atexit = False
    return make
