"""The checks of arguments that the collectives share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from collectives.arrays import type_name
from collectives.numeric import NUMBERS, is_integer
from collectives.schedule import split_evenly

FOREVER: Final = 2_000_000.0
"""Seconds, 23 days, that stand for no deadline: more are too many milliseconds for calls of the system that wait."""


def bounded(seconds: float) -> float:
    """A number of any kind as seconds that calls of the system take."""
    return float(min(seconds if isinstance(seconds, int) else float(seconds), FOREVER))


class Arguments:
    """Checks arguments for one communicator. Every check happens before anything is sent.

    rank, size     this rank's number, and the number of ranks
    reproducible   the setting
    """

    def __init__(self, rank: int, size: int, timeout: float, reproducible: bool) -> None:
        self.rank = rank
        self.size = size
        self.reproducible = reproducible
        self.seconds = timeout
        """The setting timeout."""

    def timeout(self, timeout: float | None) -> float:
        """The seconds that a call may take. Raises ValueError for a bad value."""
        if timeout is None:
            return self.seconds
        check_timeout(timeout)
        return bounded(timeout)

    def deadline(self) -> float:
        """The time by which an answer that is asked for now must be known (monotonic seconds)."""
        return time.monotonic() + self.seconds

    def root(self, rank: int, name: str = "root") -> int:
        """A rank of this communicator as an int. Raises TypeError or ValueError, naming the argument."""
        if type(rank) is not int and not is_integer(rank):
            raise TypeError(f"{name}={rank!r}: must be an int")
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: must be a rank of this communicator, 0 to {self.size - 1}")
        return int(rank)

    def rows(self, shape: tuple[int, ...], given: Sequence[int] | None, name: str, *, even: bool) -> tuple[int, ...]:
        """The number of rows of axis 0 that belong to each rank, for an array of `shape`.

        given   the caller's numbers; None: equal ones, or if not `even` as equal as possible, larger ones first
        """
        if not shape:
            raise ValueError("x: has no axis to split; it must have at least one dimension")
        rows = shape[0]
        if given is None:
            if even and rows % self.size:
                raise ValueError(
                    f"x: its first dimension {rows} is not divisible by {self.size} ranks; "
                    f"give {name}= for uneven parts"
                )
            return tuple(split_evenly(rows, self.size))
        try:
            numbers = np.asarray(given)
            fits = numbers.shape == (self.size,) and numbers.dtype.kind in "iu"
        except ValueError:  # sequences of several lengths
            fits = False
        if not fits:
            raise ValueError(f"{name}={list(given)!r}: must be {self.size} ints, one for each rank")
        if numbers.min() < 0 or sum(numbers.tolist()) != rows:  # NumPy's sum wraps
            text = f"{name}={list(given)!r}: must be at least 0 each and {rows} together, the first dimension of x"
            raise ValueError(text)
        return tuple(int(number) for number in numbers)

    def expected(self, given: Sequence[int], name: str = "expected") -> tuple[int, ...]:
        """The rows that a receiver expects from each rank. Raises TypeError or ValueError, naming the argument."""
        rows = as_tuple(given, name) or ()
        if len(rows) != self.size or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in rows):
            raise ValueError(f"{name}={list(rows)!r}: must be {self.size} ints of at least 0, one for each rank")
        return tuple(map(int, rows))  # NumPy's have other texts, and products that overflow


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError unless it is None or a positive number of seconds."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, NUMBERS) or not timeout > 0):
        raise ValueError(f"timeout={timeout!r}: must be a positive number of seconds, or math.inf")


def as_tuple(value: Sequence[int] | None, name: str) -> tuple[int, ...] | None:
    """Numbers of rows as a tuple, which can be hashed. Raises TypeError, naming the argument, for anything else."""
    try:
        return None if value is None else tuple(value)
    except TypeError as error:
        raise TypeError(f"{name}={value!r}: must be a sequence of ints, one for each rank") from error


def check_list(xs: Any, name: str, of: str) -> None:
    """Raise TypeError, naming the argument, unless `xs` is a list or the like: an iterator would be at its end for the
    next call. `of` says in words what is in it."""
    if not hasattr(xs, "__len__") or not hasattr(xs, "__iter__") or getattr(xs, "ndim", 1) == 0:
        raise TypeError(f"{name}={xs!r}: must be a list of {of}, not {type_name(xs)}")


def check_callback(callback: Any) -> None:
    """Raise TypeError, naming the argument, unless it can be called."""
    if not callable(callback):
        raise TypeError(f"callback={callback!r:.60}: must be a function of a Work, not {type_name(callback)}")


def check_pickler(pickler: Any) -> None:
    """Raise TypeError, naming the argument, unless it is None or can pickle and unpickle."""
    if pickler is not None and not (hasattr(pickler, "dumps") and hasattr(pickler, "loads")):
        raise TypeError(f"pickler={pickler!r}: must have functions dumps and loads, such as a module has")


def shape_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths of a new array. Raises TypeError or ValueError, naming the argument, for a bad shape."""
    given = shape if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    lengths = []
    for length in given:
        if not is_integer(length):
            raise TypeError(f"shape={shape!r}: must be an int or a sequence of ints")
        if length < 0:
            raise ValueError(f"shape={shape!r}: must be 0 or more in every dimension")
        lengths.append(int(length))
    return tuple(lengths)


def scale_factor(value: float | None, name: str) -> float | None:
    """A factor as a float, None for 1. Raises TypeError, naming the argument, for anything but a number, and ValueError
    for an integer that is too large."""
    if value is None or type(value) is float:
        return None if value == 1 else value
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"{name}={value!r}: must be a number")
    try:
        return None if value == 1 else float(value)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from error


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """'float32', 'bfloat16': a name that np.dtype accepts."""
    return dtype.name
