"""Integers that a program gives: a float is no rank, tag, count or index, as with mpi4py."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


def as_int(value: Any, name: str) -> int:
    """An integer. Raises TypeError for anything else, also for a float without a fraction."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be an int") from None


def as_ints(values: Iterable[Any], name: str) -> list[int]:
    """Integers. Raises TypeError."""
    return [as_int(value, name) for value in values]
