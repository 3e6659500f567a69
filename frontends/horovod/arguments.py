"""Checks of arguments that several frontends have. Each error names the argument, its value, and what is allowed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

from collectives import ProcessSet
from collectives.arrays import type_name
from collectives.numeric import is_integer

__all__ = ["check_groups", "check_name", "check_number", "check_process_set", "check_root", "check_variables", "listed"]


def listed(given: Any, name: str = "tensors", of: str = "tensors") -> list[Any]:
    """Return what is in a list or the like as a list. Raises TypeError for what is none; `of` says what is in it."""
    if not isinstance(given, str | bytes):
        with contextlib.suppress(TypeError):
            return list(given)
    raise TypeError(f"{name}={given!r:.60}: must be a list of {of}, not {type_name(given)}")


def check_variables(variables: Any, *attributes: str, name: str = "variables") -> list[Any]:
    """Return variables as a list. Raises TypeError unless each has `assign` and the other attributes."""
    if not hasattr(variables, "__iter__") or hasattr(variables, "assign"):
        raise TypeError(f"{name}={variables!r:.60}: must be a list of variables, not {type_name(variables)}")
    found = list(variables)
    for index, one in enumerate(found):
        if not all(hasattr(one, attribute) for attribute in ("assign", *attributes)):
            raise TypeError(f"{name}[{index}]={one!r:.60}: must be a variable, not {type_name(one)}")
    return found


def check_process_set(process_set: Any) -> None:
    """Raise TypeError for what is no process set."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: must be a ProcessSet")


def check_root(root_rank: Any) -> int:
    """Return a rank as an int. Raises ValueError for what is none."""
    try:
        return operator.index(root_rank)
    except TypeError as error:
        raise ValueError(f"root_rank={root_rank!r}: must be a rank, an int") from error


def check_name(name: Any) -> None:
    """Raise TypeError for the name of an operation that is neither a text nor None."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name={name!r}: must be a str, or None")


def check_number(value: Any, name: str) -> float:
    """Return a number as a float. Raises TypeError for what is none, also for a text."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}={value!r}: must be a number") from error


def check_groups(groups: Any, name: str = "groups") -> None:
    """Raise ValueError or TypeError unless `groups` is None, a number of groups, or lists of variables."""
    if is_integer(groups):
        if groups < 0:
            raise ValueError(f"{name}={groups}: must be 0 or more")
    elif groups is not None and not (
        isinstance(groups, Sequence)
        and not isinstance(groups, str | bytes)
        and all(isinstance(group, Sequence) and not isinstance(group, str | bytes) for group in groups)
    ):
        raise TypeError(f"{name}={groups!r:.60}: must be lists of variables, or the number of groups")
