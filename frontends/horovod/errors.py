"""The exception that Horovod's users expect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transports.errors import RondeError

__all__ = ["HorovodInternalError", "UnsupportedOpError", "as_horovod"]


class HorovodInternalError(RuntimeError):
    """An operation failed, because the ranks disagreed or a rank was lost. Its cause is the runtime's own error."""


class UnsupportedOpError(HorovodInternalError, ValueError):
    """An operation does not support the reduction operator. Horovod raises HorovodInternalError for it."""


@contextlib.contextmanager
def as_horovod() -> Iterator[None]:
    """Convert the runtime's errors to HorovodInternalError."""
    try:
        yield
    except RondeError as error:
        raise HorovodInternalError(str(error)) from error
