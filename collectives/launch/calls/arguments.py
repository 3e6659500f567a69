"""Arguments of functions that start ranks. They are checked before anything is started, and alike for every engine."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from transports.base import MOST_RANKS

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_MOST_SECONDS: Final = 1e9
"""A longer time to wait, also an infinite one, is this one: clocks and engines take no more."""


def count_of(name: str, value: Any) -> int:
    """A number of ranks, or of something else of which there is one. Raises ValueError."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # an integer of NumPy is one
    except TypeError:
        number = 0
    if not 1 <= number <= MOST_RANKS:
        raise ValueError(f"{name}={value!r}: must be an integer, 1 to {MOST_RANKS}")
    return number


def seconds_of(name: str, value: Any) -> float:
    """A time to wait; an infinite one becomes some decades. Raises ValueError."""
    try:
        seconds = 0.0 if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{name}={value!r}: must be a positive number of seconds")
    return min(seconds, _MOST_SECONDS)


def variables_of(name: str, value: Any) -> dict[str, str]:
    """Environment variables for the ranks, with their values as text; None for none. Raises TypeError and
    ValueError."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r}: must be a mapping of names of variables to their values")
    for key, content in (value or {}).items():
        if not isinstance(key, str) or isinstance(content, bytes | None):
            raise TypeError(f"{name}: {key!r}: {content!r}: must be two strings")
        if not key or "=" in key or "\0" in f"{key}{content}":
            raise ValueError(f"{name}: {key!r}: {content!r}: cannot be an environment variable")
    return {key: str(content) for key, content in (value or {}).items()}


def call_of(name: str, function: Any, args: Any, kwargs: Any) -> Call:
    """The function that the ranks call, with its arguments. `name` is that of its parameter. Raises TypeError."""
    if not callable(function):
        raise TypeError(f"{name}={function!r}: must be callable")
    args = () if args is None else args
    if isinstance(args, str | bytes | Mapping) or not isinstance(args, Iterable):
        raise TypeError(f"args={args!r}: must be a sequence of the arguments of {name}, such as (5,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs={kwargs!r}: must be a mapping of the names of arguments of {name} to values")
    strange = [key for key in kwargs or {} if not isinstance(key, str)]
    if strange:
        raise TypeError(f"kwargs={kwargs!r}: {strange[0]!r} must be the name of an argument of {name}")
    return function, tuple(args), dict(kwargs or {})


def pickled_call(name: str, call: Call, pickler: Callable[[object], bytes]) -> bytes:
    """The pickled call, for ranks in other processes. `name` is that of the function's parameter. Raises TypeError with
    the part that cannot be pickled."""
    function, args, kwargs = call
    try:
        return pickler(call)
    except Exception as error:
        parts = {f"{name}={function!r}": function}
        parts |= {f"args[{place}] ({type(value).__name__})": value for place, value in enumerate(args)}
        parts |= {f"kwargs[{key!r}] ({type(value).__name__})": value for key, value in kwargs.items()}
        wrong = next((part for part, value in parts.items() if not _can_be_pickled(value, pickler)), "the call")
        raise TypeError(f"{wrong}: ranks are processes, and it cannot be pickled: {error}") from error


def _can_be_pickled(value: object, pickler: Callable[[object], bytes]) -> bool:
    try:
        pickler(value)
    except Exception:  # noqa: BLE001  pickling runs code of the object, which may raise anything
        return False
    return True
