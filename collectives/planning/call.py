"""Call: a collective call without its arrays, the key of its plan."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import Op
from collectives.schedule import SPECS


class WindowOffset(NamedTuple):
    """The beginning of an array in a window: the window's number, and bytes from the window's beginning."""

    window: int
    offset: int


_SHOWN: Final = 8
"""The most parts whose sizes stand in messages; a number that tells them apart stands for more."""
WindowOffsets = tuple[WindowOffset | None, WindowOffset | None]
"""The offsets of IN and of OUT; None for an array that is in no window, or need not be in one."""


class Call(NamedTuple):
    """A collective call without its arrays: the key of a plan. Equal on all ranks, except for `alias`.

    blocks     elements of every block of a by-rank collective (-1 where unknown); one entry if all are equal, or where
               the algorithm is free to cut the data (then the total)
    alias      element offset of IN within OUT when the call is in place
    algorithm  name of the algorithm that the caller asks for
    uneven     alltoall: blocks were given by the caller and may differ
    shape      shape of x in a speculative call: it assumes that all ranks' x have it, and ends without effect if not
    within     description of the caller's operation, if the call is only a part of that
    windows    offsets of the arrays, if they lie in windows
    packed     elements of the arrays that are packed together, where nothing but this call compares them
    given      dtype of the caller's arrays, if another one is exchanged, in which arrays of several dtypes look alike
    """

    collective: str
    dtype: np.dtype[Any]
    blocks: tuple[int, ...]
    op: str | Op | None = None
    root: int = 0
    alias: int | None = None
    algorithm: str | None = None
    reproducible: bool = False
    uneven: bool = False
    shape: tuple[int, ...] | None = None
    within: str = ""
    windows: WindowOffsets | None = None
    packed: tuple[int, ...] = ()
    given: np.dtype[Any] | None = None

    @property
    def op_name(self) -> str | None:
        """The op as it is named in messages."""
        return None if self.op is None else str(self.op)

    def digest(self, *more: Any) -> int:
        """Return 32 bits that are equal for equal calls and `more`, and hardly for others."""
        return zlib.crc32(repr((_text(self.dtype), self[:1], self[2:], more)).encode())

    def describe(self) -> str:
        """'allreduce(float32, 1000 elements, op=sum)', for messages: texts of calls that do not fit together differ."""
        if self.within:
            return f"{self._replace(within='').describe()} within {self.within}"
        spec = SPECS[self.collective]
        if self.collective == "barrier":
            return "barrier()"
        dtype = _text(self.dtype) if self.given is None else f"{_text(self.given)} as {_text(self.dtype)}"
        words = [dtype, f"{sum(count for count in self.blocks if count > 0)} elements"]
        if self.packed:
            words[-1] += f" in {len(self.packed)} arrays {_sizes(self.packed)}"
        if self.op is not None:
            words.append(f"op={self.op}")
        if self.uneven:
            words.append("of uneven parts")
        elif len(set(self.blocks)) > 1:
            words.append(f"in {len(self.blocks)} parts {_sizes(self.blocks)}")
        if spec.rooted:
            words.append(f"root={self.root}")
        if self.algorithm is not None:
            words.append(f"algorithm={self.algorithm}")
        if self.reproducible:
            words.append("reproducible")
        if self.windows is not None:
            places = [f"{place.window}+{place.offset}" for place in self.windows if place is not None]
            words.append(f"in windows {', '.join(places)}")
        return f"{self.collective}({', '.join(words)})"


def _sizes(parts: tuple[int, ...]) -> str:
    shown = len(parts) <= _SHOWN
    return " + ".join(map(str, parts)) if shown else f"#{zlib.crc32(repr(parts).encode()):08x}"


@cache
def _text(dtype: np.dtype[Any]) -> str:
    """A dtype in words, which takes NumPy several microseconds."""
    return str(dtype)
