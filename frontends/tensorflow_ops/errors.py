"""The exceptions of failed operations: in graphs TensorFlow's, chosen by a status code; in eager mode the same classes,
which are also the classes that Horovod's users and Python programmers expect.

| failure                                    | in a graph, tf.errors.   | eager: that class, and also |
| ------------------------------------------ | ------------------------ | --------------------------- |
| the ranks disagree, or there is no world   | FailedPreconditionError  | HorovodInternalError        |
| a bad argument                             | InvalidArgumentError     | ValueError or TypeError     |
| anything else, such as a lost rank         | UnknownError             | HorovodInternalError        |

These are Horovod's codes. None of them makes a MonitoredSession start over, as ABORTED would. The classes are made of
the arguments of TensorFlow's, as Keras and AutoGraph make them again with more text.
"""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from collectives import NotInitializedError
from frontends.horovod import HorovodInternalError
from transports.errors import MismatchError


class DisagreementError(tf.errors.FailedPreconditionError, HorovodInternalError):  # type: ignore[misc]
    """The ranks disagree about an operation, or there is no world."""


class BadValueError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """An argument has a bad value."""


class BadTypeError(tf.errors.InvalidArgumentError, TypeError):  # type: ignore[misc]
    """An argument has a bad type."""


class FailureError(tf.errors.UnknownError, HorovodInternalError):  # type: ignore[misc]
    """An operation failed."""


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
    return kind(None, None, error.message if isinstance(error, tf.errors.OpError) else str(error))
