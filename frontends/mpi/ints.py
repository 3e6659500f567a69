"""Integers that a program gives: a float is no rank, tag, count or index. (mpi4py cuts off the fractions of some.)"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

Default = TypeVar("Default", int, None)


def as_int(value: Any, name: str) -> int:
    """An integer, or a bool, also of NumPy. Raises TypeError for anything else, also for a float without a fraction."""
    try:
        return operator.index(value.item() if isinstance(value, np.bool_) else value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be an int") from None


def as_ints(values: Iterable[Any], name: str) -> list[int]:
    """Integers. Raises TypeError."""
    return [as_int(value, name) for value in values]


def whole(text: str, name: str, least: int, most: int | None = None) -> int:
    """The integer that a text means. Raises ValueError, also for one below `least` or above `most`."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name}={text!r}: must be an int of {least} {'or more' if most is None else f'to {most}'}")
    return number


def from_environment(name: str, least: int, most: int | None = None, *, default: Default) -> int | Default:
    """The integer that a variable of the environment means, or the default without one. Raises as `whole`."""
    text = os.environ.get(name, "")
    return whole(text, name, least, most) if text else default
