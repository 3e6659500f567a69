"""The signature of a named operation: everything that all ranks must specify alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from collectives.arrays import ADASUM, OPS

_SHOWN: Final = 3
"""The most arrays that a description shows if there are more."""


class Signature(NamedTuple):
    """The arguments of a named operation that must be equal on all ranks.

    kind             name of the collective, as the method is called
    dtypes, shapes   one entry per array, as far as arrays must agree (allgather: shape without the first dimension)
    algorithm        algorithm requested by the caller
    prescale, postscale
                     factors, as `told` gives them
    detail           other arguments that must agree: numbers, strings, tuples of them
    windows          one entry per array: window offsets of the array and of its result, None if they are not in
                     windows; () if no array is
    """

    kind: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    op: str | None = None
    root: int | None = None
    prescale: float | str | None = None
    postscale: float | str | None = None
    algorithm: str | None = None
    reproducible: bool = False
    detail: tuple[Any, ...] = ()
    windows: tuple[Any, ...] = ()

    @property
    def for_host(self) -> bool:
        """True if arrays of GPUs must be reduced in the host's memory."""
        return self.kind in ("scan", "exscan") or (self.op is not None and (self.op == ADASUM or self.op not in OPS))

    @property
    def joinable(self) -> bool:
        """True if ranks that have joined can take part, with zeros."""
        reduces = self.kind in ("allreduce", "grouped_allreduce", "barrier") and not self.detail
        return reduces and (self.op is None or self.op in OPS)

    def describe(self, places: Sequence[int] = ()) -> str:
        """Format the call for messages: 'allreduce(float32 (3, 4), op=sum, prescale=0.5)'.

        places   numbers of the arrays that matter, of many
        """
        arrays = [f"{dtype} {shape}" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        words, chosen = arrays, list(range(len(arrays)))
        if len(arrays) > _SHOWN:
            chosen = [place for place in places if place < len(arrays)][:_SHOWN] or [0, 1]
            words = [arrays[place] if not places else f"[{place}] {arrays[place]}" for place in chosen]
            words.append(f"... {len(arrays)} arrays")
        for name in ("op", "root", "prescale", "postscale", "algorithm"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value}")
        if self.reproducible:
            words.append("reproducible")
        words += map(str, self.detail)
        pairs = [self.windows[place] for place in chosen if place < len(self.windows)]
        offsets = [f"{window}+{offset}" for pair in pairs if pair for window, offset in pair[:1]]
        if offsets:
            words.append(f"in windows {', '.join(offsets)}")
        return f"{self.kind}({', '.join(words)})"

    @staticmethod
    def differing(signatures: Collection[Signature]) -> list[int]:
        """Return the numbers of the arrays in which signatures differ, as far as all have them."""
        columns = zip(*(signature._arrays() for signature in signatures), strict=False)
        return [place for place, column in enumerate(columns) if len(set(column)) > 1]

    def _arrays(self) -> list[tuple[Any, ...]]:
        return list(zip_longest(self.dtypes, self.shapes, self.windows))


def told(factor: float | None) -> float | str | None:
    """A factor for a signature. NaN is a text there: as a number it would differ from that of every other rank."""
    return "nan" if factor is not None and math.isnan(factor) else factor
