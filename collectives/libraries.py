"""Arrays of other libraries: their library, and what DLPack does not tell of their memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def check_sign(x: Any, name: str) -> None:
    """Raise TypeError for a tensor of PyTorch that is a negated view: its memory, which DLPack exports, has the other
    signs."""
    is_negated = getattr(x, "is_neg", None)
    if is_negated is not None and is_negated():
        raise TypeError(f"{name}: is a negated view; give {name}.resolve_neg()")


def no_memory(count: int) -> str:
    """The text of an error for an array of so many elements that has no memory."""
    return f"has {count} elements, but no memory: it was freed, or is not made yet"


def packages_of(array: Any) -> list[str]:
    """The top packages of an array's class and of its base classes: a subclass may be of any package."""
    return [kind.__module__.partition(".")[0] for kind in type(array).__mro__]


def maker_of(array: Any) -> Callable[[Any], Any] | None:
    """`from_dlpack` of an array's library, or None: that of its array namespace (array API standard), or of the package
    of its class or of a base class."""
    namespace = getattr(array, "__array_namespace__", None)
    packages = [sys.modules.get(name) for name in packages_of(array)]
    places = packages if namespace is None else [namespace(), *packages]
    makers = (getattr(place, "from_dlpack", None) for place in places)
    return next((maker for maker in makers if maker is not None), None)
