"""Options of Horovod's optimizers and tapes that mean the same for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from collectives.program import split_evenly
from frontends.horovod.names import Average

T = TypeVar("T")


def predivided(op: str, factor: float) -> tuple[float, float]:
    """What gradients are scaled by before and after they are combined, for `gradient_predivide_factor`. Raises
    ValueError if `op` is not Average and the factor not 1."""
    if op == Average:
        return 1.0 / factor, factor
    if factor != 1.0:
        raise ValueError("gradient_predivide_factor: can be given with op=Average only")
    return 1.0, 1.0


def divided(items: Sequence[T], groups: int) -> list[list[T]]:
    """`items` in order, in so many groups of about equal length; those that would be empty are left out."""
    left = iter(items)
    return [list(islice(left, size)) for size in split_evenly(len(items), groups) if size]
