"""Trees: dicts, lists and tuples (also named tuples) of arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Number
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

ARRAYS_AND_NUMBERS: Final = (np.ndarray, np.generic, Number)
"""Classes of leaves: NumPy's arrays and scalars, and Python's numbers."""


def leaves(tree: Any, kinds: tuple[type, ...] = ARRAYS_AND_NUMBERS) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf, such as ("layers/0/bias", array).

    kinds   classes of leaves

    Dicts are walked by sorted keys, so the order is the same on ranks that filled them differently. None is a tree
    without leaves. Raises TypeError for a leaf of another class, and for a masked array; ValueError for two leaves of
    one path, as of the keys 1 and "1", or of {"a/b": x} and {"a": {"b": y}}.
    """
    return told_apart(_leaves(tree, "", kinds))


def told_apart(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of a path and a leaf. Raises ValueError for a path that comes twice."""
    known = set[str]()
    for path, leaf in named:
        if path in known:
            raise ValueError(f"tree[{path!r}]: two leaves have this path; give one of them another key")
        known.add(path)
        yield path, leaf


def _leaves(tree: Any, path: str, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    argument = f"tree[{path!r}]" if path else "tree"
    if tree is None:
        return
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield from _leaves(tree[key], f"{path}/{key}" if path else str(key), kinds)
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from _leaves(part, f"{path}/{index}" if path else str(index), kinds)
    elif isinstance(tree, np.ma.MaskedArray):
        raise TypeError(f"{argument}: is a masked array, and masks are not communicated; pass its filled(value)")
    elif isinstance(tree, kinds):
        yield path, tree
    else:
        wanted = "an array, a number" if kinds == ARRAYS_AND_NUMBERS else " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{argument}: must be {wanted} or a dict, list or tuple, not {type(tree).__name__}")


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree of the same structure with these leaves, in the order of `leaves`."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        found = {key: rebuilt(tree[key], values) for key in sorted(tree, key=str)}
        return {key: found[key] for key in tree}
    if isinstance(tree, list):
        return [rebuilt(part, values) for part in tree]
    if isinstance(tree, tuple):
        return like(tree, (rebuilt(part, values) for part in tree))
    return next(values)


def like(given: tuple[Any, ...], parts: Iterator[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same class as `given`, which may be a named tuple."""
    make: Callable[..., tuple[Any, ...]] | None = getattr(type(given), "_make", None)
    return tuple(parts) if make is None else make(parts)
