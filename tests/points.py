"""Interrupts at a chosen point of a call: a line, an instruction, or a return from C."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

LONG: Final = os.environ.get("RONDE_INTERRUPTS") == "long"
"""Every point is tried; otherwise some of them."""
_TESTS: Final = os.path.dirname(__file__) + os.sep


class Interrupt(KeyboardInterrupt):
    pass


class Points:
    """Raises Interrupt at the point of this number. `kind`: "line", "instruction", or "return", which is one from C."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.left = number
        self.place = ""
        # CPython 3.11 may call it once more after the raise: in a finalizer that the collector runs while the frame
        # object of a "call" event is made. By then `sys` has let go of it.
        self._function: Callable[[FrameType, str, Any], Any] = self._profile if kind == "return" else self._trace

    @property
    def fired(self) -> bool:
        return self.left < 0

    def start(self) -> None:
        if self.kind == "return":
            sys.setprofile(self._function)
        else:
            sys.settrace(self._function)

    def stop(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def interrupt(self, call: Callable[[], object]) -> bool:
        """Make a call; True if it was interrupted."""
        try:
            self.start()
            call()
        except Interrupt:
            return True
        finally:
            self.stop()
        return False

    def _of_a_test(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(_TESTS)

    def _count(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == -1:
            self.place = f"{self.kind} {frame.f_code.co_filename}:{frame.f_lineno}"
            raise Interrupt

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._of_a_test(frame):
            return None
        if self.kind == "instruction":
            frame.f_trace_opcodes = True
        if event == ("opcode" if self.kind == "instruction" else "line") and self.left >= 0:
            self._count(frame)
        return self._trace

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and self.left >= 0 and not self._of_a_test(frame):
            self._count(frame)


def each_point(kind: str, stride: int = 1) -> Iterator[Points]:
    """The points of a call, until one is behind its end; `stride`: only every so many."""
    number, fired = 0, True
    while fired:
        points = Points(kind, number)
        yield points
        fired = points.fired
        number += stride
    assert number > 5 * stride, "the call has hardly any points"
