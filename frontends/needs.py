"""Errors that name the command which installs an absent framework."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(**texts: str) -> Iterator[None]:
    """Around imports: raise ModuleNotFoundError with a text of ours for an absent module.

    texts   by the name of the module
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in texts:
            raise
        raise ModuleNotFoundError(texts[error.name], name=error.name) from None
