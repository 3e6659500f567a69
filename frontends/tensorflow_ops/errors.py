"""The exceptions of failed operations: in graphs TensorFlow's, chosen by a status code; in eager mode the same classes,
which are also the classes that Horovod's users and Python programmers expect.

| failure                                    | in a graph, tf.errors.   | eager: that class, and also |
| ------------------------------------------ | ------------------------ | --------------------------- |
| the ranks disagree, or there is no world   | FailedPreconditionError  | HorovodInternalError        |
| a bad argument                             | InvalidArgumentError     | ValueError or TypeError     |
| anything else, such as a lost rank         | UnknownError             | HorovodInternalError        |

These are Horovod's codes. None of them makes a MonitoredSession start over, as ABORTED would.
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from collectives import NotInitializedError
from frontends.horovod import HorovodInternalError
from transports.errors import MismatchError


class DisagreementError(HorovodInternalError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """The ranks disagree about an operation, or there is no world."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class BadValueError(ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """An argument has a bad value."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class BadTypeError(TypeError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """An argument has a bad type."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class FailureError(HorovodInternalError, tf.errors.UnknownError):  # type: ignore[misc]
    """An operation failed."""

    def __init__(self, message: str) -> None:
        tf.errors.UnknownError.__init__(self, None, None, message)


_KINDS: Final = (
    ((MismatchError, NotInitializedError), tf.errors.FAILED_PRECONDITION, DisagreementError),
    ((TypeError,), tf.errors.INVALID_ARGUMENT, BadTypeError),
    ((ValueError, tf.errors.InvalidArgumentError), tf.errors.INVALID_ARGUMENT, BadValueError),
    ((BaseException,), tf.errors.UNKNOWN, FailureError),
)


def status_of(error: BaseException) -> int:
    """Return TensorFlow's status code for a failed operation."""
    return next(int(code) for causes, code, _ in _KINDS if isinstance(error, causes))


def eager(error: BaseException) -> Exception:
    """Return the exception to raise for a failed operation in eager mode. Its text is that of `error`."""
    kind = next(kind for causes, _, kind in _KINDS if isinstance(error, causes))
    return kind(error.message if isinstance(error, tf.errors.OpError) else str(error))
