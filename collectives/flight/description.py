"""The description of calls in a flight record."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Final, NamedTuple, Self

_PACKAGES: Final = frozenset(
    {"collectives", "transports", "frontends", "ronde", "torch", "keras", "tensorflow", "jax", "mxnet"}
    | {"threading", "concurrent", "typing_extensions", "warnings"}
)
"""The packages whose lines are not those of the user's program: Ronde's, the frameworks', those that begin a thread,
and those of the decorator `deprecated`, which frameworks put around their functions."""

BATCH: Final = "batch"
"""The collective of a batch of named operations: it begins when this rank has submitted all of them."""
MESSAGE: Final = "message"
"""The collective of a wait for a message, whose root is the rank of the world that is waited for, or -1."""


class Description(NamedTuple):
    """The calls of one plan.

    call        in words: 'allreduce(float32, 1000 elements, op=sum)'
    collective  its name
    nbytes      size of the arrays as nccl-tests defines it
    algorithm   its name
    digest      of all that must be equal on all ranks
    root        the rank, or -1
    line        of the user's program from which such a call was made first
    """

    call: str
    collective: str
    nbytes: int
    algorithm: str
    digest: int
    root: int
    line: str

    @classmethod
    def of(cls, fields: Any) -> Self:
        """The description with these fields, which were stored or sent. Raises ValueError."""
        match fields:
            case [str(), str(), int(), str(), int(), int(), str()]:
                return cls(*fields)
        raise ValueError(f"{fields!r} describes no call")


def frame_of_program() -> FrameType | None:
    """The innermost frame of this thread that is neither Ronde's nor a framework's; None if there is none, as in the
    thread that runs asynchronous calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _PACKAGES:
        frame = frame.f_back
    return frame


def line_of_program() -> str:
    """'train.py:12': the line of `frame_of_program`; empty if there is none."""
    frame = frame_of_program()
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
