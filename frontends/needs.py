"""Errors that name the command which installs an absent framework."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec


@contextlib.contextmanager
def needs(**texts: str) -> Iterator[None]:
    """Around imports: raise ModuleNotFoundError with a text of ours if a package is not installed.

    texts   by the name of the package
    """
    try:
        yield
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in texts or (error.name != absent and find_spec(absent) is not None):  # a part of it is missing
            raise
        raise ModuleNotFoundError(texts[absent], name=absent) from None
