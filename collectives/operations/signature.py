"""The signature of a named operation: everything that all ranks must specify alike."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from collectives.arrays import ADASUM, OPS


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

    def describe(self) -> str:
        """Format the call for messages: 'allreduce(float32 (3, 4), op=sum, prescale=0.5)'."""
        words = [f"{dtype} {shape}" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        if len(words) > 3:
            words[2:] = [f"... {len(self.dtypes)} arrays"]
        for name in ("op", "root", "prescale", "postscale", "algorithm"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value}")
        if self.reproducible:
            words.append("reproducible")
        words += map(str, self.detail)
        offsets = [f"{window}+{offset}" for pair in self.windows if pair for window, offset in pair[:1]]
        if offsets:
            words.append(f"in windows {', '.join(offsets[:3])}")
        return f"{self.kind}({', '.join(words)})"


def told(factor: float | None) -> float | str | None:
    """A factor for a signature. NaN is a text there: as a number it would differ from that of every other rank."""
    return "nan" if factor is not None and math.isnan(factor) else factor
