"""Failures as Horovod's users expect them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transports.errors import RondeError


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagreed about it, or one was lost. The runtime's own error is the cause."""


@contextlib.contextmanager
def as_horovod() -> Iterator[None]:
    """Raise the runtime's errors as HorovodInternalError."""
    try:
        yield
    except RondeError as error:
        raise HorovodInternalError(str(error)) from error
