"""Plain calls, ready to be repeated: a call on NumPy arrays without options finds its plan in one look-up.

What the jobs check and look up for every call is done once per kind of call here: collective, op or root, dtype, shape
and whether it works in place. Calls that are not plain, or not right, are left to the jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.buffers import Array
from collectives.plan import Plan
from collectives.windows import Places, Windows

_REMEMBERED: Final = 512


class Ready(NamedTuple):
    """A kind of call, checked and planned.

    shape   of the result
    reads   this rank's `x` goes in
    flat    it does, and both `x` and the result have one dimension
    """

    plan: Plan
    shape: tuple[int, ...]
    reads: bool = True
    flat: bool = False


Prepare = Callable[[str, Array, Any, bool, Places | None], Ready | None]
"""(collective, x, op or root or None, in place, where x and out lie) -> the call, None if it must be left to the jobs.
"""


class ReadyCalls:
    """The plain calls of one communicator."""

    def __init__(self, prepare: Prepare, windows: Windows) -> None:
        self._prepare = prepare
        self._windows = windows
        self._known: dict[tuple[Any, ...], Ready | None] = {}

    def forget(self) -> None:
        """Drop everything."""
        self._known.clear()

    def find(self, collective: str, x: Array, argument: Any, out: Any) -> Ready | None:
        """The call on NumPy array `x`, None if it is not a plain and right one."""
        in_place = out is x
        flags = x.flags
        if not flags.c_contiguous or (in_place and not flags.writeable):
            return None
        places = self._windows.places(collective, x, out) if self._windows.pieces else None
        try:
            ready = self._known[collective, argument, in_place, x.dtype, x.shape, places]
        except (KeyError, TypeError):  # TypeError: an argument that cannot be hashed, for the jobs to complain of
            ready = self._make(collective, x, argument, in_place, places)
        if ready is None or in_place or out is None:
            return ready
        return ready if type(out) is np.ndarray and _fits(out, x, ready.shape) else None

    def _make(self, collective: str, x: Array, argument: Any, in_place: bool, places: Places | None) -> Ready | None:
        try:
            ready = self._prepare(collective, x, argument, in_place, places)
            if ready is not None:
                ready = ready._replace(flat=ready.reads and x.ndim == len(ready.shape) == 1)
            key = collective, argument, in_place, x.dtype, x.shape, places
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = ready
        except (TypeError, ValueError):  # the jobs say it better
            return None
        return ready


def _fits(out: Array, x: Array, shape: tuple[int, ...]) -> bool:
    """True if a result of `shape` with the dtype of `x` can be written to `out` while `x` is read."""
    if out.dtype != x.dtype or out.shape != shape:
        return False
    flags = out.flags
    if not (flags.c_contiguous and flags.writeable):
        return False
    return (flags.owndata and x.flags.owndata) or not np.may_share_memory(out, x)  # which takes long to ask
