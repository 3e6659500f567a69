"""The root of the error tree. Every failure that Ronde raises on purpose is one of these.

    RondeError
      ConfigError            a setting has a bad value (also a ValueError)
      RendezvousError        the ranks did not find each other
      MismatchError          ranks made calls that do not fit together
      ForkedError            the process was forked by a rank and is no rank itself
      ReentryError           a call waits in the middle of another one of the same thread
      TransportError
        ConnectError         a connection could not be made or was refused
        ClosedError          the transport was closed before the call
        AbortedError         a rank gave up on purpose and gave a reason
        PeerLost             a rank died, hung or became unreachable
        DeadlineExceeded     a wait ran out of time (also a TimeoutError)

A bad argument of a call is a plain TypeError or ValueError, raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MOST_RANKS: Final = 1 << 31
LONGEST_TEXT: Final = 1 << 13


class RondeError(Exception):
    """Base class. `rank` is the rank that raised, `peer` the rank it is about; None where unknown."""

    def __init__(self, message: str, *, rank: int | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer

    @property
    def message(self) -> str:
        """The text without decoration."""
        return str(self.args[0])

    def within(self, context: str) -> RondeError:
        """The same failure, with its place (collective, step) at the end of the text."""
        return type(self)(f"{self.message} [{context}]", rank=self.rank, peer=self.peer)


class ConfigError(RondeError, ValueError):
    """A setting has a bad value; the text names the setting, the value, its source and what is allowed."""


class RendezvousError(RondeError):
    """The ranks did not find each other: store unreachable, a rank missing, a key never set."""


class MismatchError(RondeError):
    """Ranks made calls that do not fit together (operation, dtype, count, op, root, order)."""


class ForkedError(RondeError):
    """The process was forked by a rank and is no rank itself; the text names the rank and its process."""


REENTRY: Final = (
    "a signal handler, a destructor, a callback or an Op has made a call that waits, in the middle of another call of "
    "its thread"
)


class ReentryError(RondeError):
    """A signal handler, a destructor, a callback or an Op has made a call that waits, in the middle of another call of
    its thread. Nothing was sent; the other call goes on."""


class TransportError(RondeError):
    """Bytes could not be moved."""


class ConnectError(TransportError):
    """A connection could not be made, or its handshake was refused."""


class ClosedError(TransportError):
    """The transport or communicator was closed before the call."""


class Withdrawn(ClosedError):
    """The receive was taken back before it matched a frame."""


class AbortedError(TransportError):
    """A rank gave up on purpose; the text carries its reason. It is about the rank that raised it first, by default."""

    def __init__(self, message: str, *, rank: int | None = None, peer: int | None = None) -> None:
        super().__init__(message, rank=rank, peer=rank if peer is None else peer)


class PeerLost(TransportError):
    """A rank died, hung or became unreachable."""


class DeadlineExceeded(TransportError, TimeoutError):
    """A wait ran out of time."""


def text_of(error: BaseException) -> str:
    """The text of any error. That of a user's error is made by code of the user, which may raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  see above
        return "(its text cannot be made)"


def described(error: BaseException) -> str:
    """Kind and text of any error, for another rank or a report: 'ValueError: text'."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


WIRE_NAMES: Final[dict[str, type[RondeError]]] = {
    cls.__name__: cls
    for cls in (
        RondeError,
        ConfigError,
        RendezvousError,
        MismatchError,
        TransportError,
        ConnectError,
        ClosedError,
        AbortedError,
        PeerLost,
        DeadlineExceeded,
    )
}


def to_wire(error: RondeError) -> dict[str, object]:
    """A description of an error in plain values, for the other ranks. A text of more than 8192 characters is cut."""
    return {
        "kind": type(error).__name__,
        "message": error.message[:LONGEST_TEXT],
        "rank": error.rank,
        "peer": error.peer,
    }


def from_wire(fields: Mapping[str, object]) -> RondeError:
    """The error that another rank described. An unknown kind becomes an AbortedError with the same text; fields that
    `to_wire` cannot have made are ignored."""
    kind, message = fields.get("kind"), fields.get("message")
    return (WIRE_NAMES.get(kind, AbortedError) if isinstance(kind, str) else AbortedError)(
        message if isinstance(message, str) else "a rank gave up without a reason",
        rank=_rank(fields.get("rank")),
        peer=_rank(fields.get("peer")),
    )


def _rank(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS else None
