"""Trees: dicts, lists and tuples (also named tuples) of arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf, such as ("layers/0/bias", array).

    Dicts are walked by sorted keys, so the order is the same on ranks that filled them differently. None is a tree
    without leaves. Raises TypeError for a leaf that is neither an array nor a number, and for a masked array.
    """
    argument = f"tree[{path!r}]" if path else "tree"
    if tree is None:
        return
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield from leaves(tree[key], f"{path}/{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from leaves(part, f"{path}/{index}" if path else str(index))
    elif isinstance(tree, np.ma.MaskedArray):
        raise TypeError(f"{argument}: is a masked array, and masks are not communicated; pass its filled(value)")
    elif is_array(tree) or isinstance(tree, Number):
        yield path, tree
    else:
        raise TypeError(f"{argument}: must be an array, a number or a dict, list or tuple, not {type(tree).__name__}")


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


def is_array(leaf: Any) -> bool:
    """True for NumPy arrays and scalars."""
    return isinstance(leaf, np.ndarray | np.generic)
