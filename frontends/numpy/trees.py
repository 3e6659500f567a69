"""Trees: dicts, lists and tuples (also named ones) of arrays and numbers, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves with their paths, such as layers/0/bias, in an order that is that of the paths' last parts.

    Dicts are walked by sorted keys, so that ranks that filled them differently agree. None is a tree without leaves.
    Raises TypeError for what is neither a container, nor an array or number.
    """
    if tree is None:
        return
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield from leaves(tree[key], f"{path}/{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from leaves(part, f"{path}/{index}" if path else str(index))
    elif is_array(tree) or isinstance(tree, Number):
        yield path, tree
    else:
        place = f"tree[{path!r}]" if path else "tree"
        raise TypeError(f"{place}: must be an array, a number or a dict, list or tuple, not {type(tree).__name__}")


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """A tree of this form whose leaves are the next values, in the order of `leaves`."""
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
    """A tuple of the kind of `given`, which may be a named one."""
    make: Callable[..., tuple[Any, ...]] | None = getattr(type(given), "_make", None)
    return tuple(parts) if make is None else make(parts)


def is_array(leaf: Any) -> bool:
    """True for NumPy's arrays and numbers."""
    return isinstance(leaf, np.ndarray | np.generic)
