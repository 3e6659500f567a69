"""Fault rules, and the text in which settings write them.

    <action> <operation> [name=value ...]

    drop send peer=1 nth=3          the third frame that this rank sends to rank 1 gets lost
    delay recv seconds=0.01         every receive completes 10 ms late
    corrupt send rank=2 chance=0.1  on rank 2, one frame in ten has a byte flipped
    kill send nth=5 by=sigkill      the process ends at its fifth send

Operations are send and recv, and for windows publish and wait. Actions:

    drop      send: the frame is lost, the send completes. publish: it does not happen
    delay     the operation completes `seconds` later than it would have
    corrupt   send, recv: a byte is flipped. publish: the check is changed
    truncate  send: the last byte is missing
    mislabel  send: the check is changed, as if the frame belonged to another call
    hang      send, recv, wait: never completes
    raise     the transport fails, on every rank, with an error of the class `error`
    kill      the rank is gone: by=close closes its transport at once, by=sigkill ends its process
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from transports.base import Transport
from transports.errors import WIRE_NAMES, ConfigError, PeerLost, RondeError

Action = Literal["drop", "delay", "corrupt", "truncate", "mislabel", "hang", "raise", "kill"]
Kind = Literal["send", "recv", "publish", "wait"]

_POSSIBLE: Final[dict[str, tuple[str, ...]]] = {
    "drop": ("send", "publish"),
    "delay": ("send", "recv", "publish", "wait"),
    "corrupt": ("send", "recv", "publish"),
    "truncate": ("send",),
    "mislabel": ("send",),
    "hang": ("send", "recv", "wait"),
    "raise": ("send", "recv", "publish", "wait"),
    "kill": ("send", "recv", "publish", "wait"),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a rank. For windows `tag` is the epoch and `peer` the rank waited for (publish: the own rank)."""

    kind: Kind
    rank: int
    peer: int
    tag: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault.

    action, on      the fault, and the operation that it hits: see the module
    rank, peer, tag only operations with these values; None means any
    where           only operations for which this function returns True
    nth             only the nth operation that matches all of the above, counted from 1 per rank; None means every one
    chance          probability, by the transport's seeded random numbers
    seconds         of `delay`
    error           class of the error of `raise`
    by              of `kill`: "close", "sigkill", or a function that gets the transport and need not return
    """

    action: Action
    on: Kind
    rank: int | None = None
    peer: int | None = None
    tag: int | None = None
    where: Callable[[Operation], bool] | None = None
    nth: int | None = None
    chance: float = 1.0
    seconds: float = 0.0
    error: type[RondeError] = PeerLost
    by: Literal["close", "sigkill"] | Callable[[Transport], None] = "close"

    def __post_init__(self) -> None:
        if self.action not in _POSSIBLE:
            raise ConfigError(f"action={self.action!r}: must be one of {', '.join(_POSSIBLE)}")
        if self.on not in _POSSIBLE[self.action]:
            raise ConfigError(f"on={self.on!r}: {self.action} is for {', '.join(_POSSIBLE[self.action])}")
        if self.nth is not None and self.nth < 1:
            raise ConfigError(f"nth={self.nth!r}: must be 1 or more")
        if not 0.0 <= self.chance <= 1.0:
            raise ConfigError(f"chance={self.chance!r}: must be 0 to 1")
        if not 0.0 <= self.seconds < float("inf"):
            raise ConfigError(f"seconds={self.seconds!r}: must be 0 or more")
        if not callable(self.by) and self.by not in ("close", "sigkill"):
            raise ConfigError(f"by={self.by!r}: must be close or sigkill, or a function")

    def matches(self, operation: Operation) -> bool:
        """True if the rule matches an operation, apart from nth and chance."""
        return (
            self.on == operation.kind
            and self.rank in (None, operation.rank)
            and self.peer in (None, operation.peer)
            and self.tag in (None, operation.tag)
            and (self.where is None or self.where(operation))
        )


def parse_rule(text: str) -> Rule:
    """The rule that `text` describes. Raises ConfigError naming the text, the word in it and what is allowed."""
    action, on, *details = text.split() if len(text.split()) >= 2 else ("", "")
    values: dict[str, object] = {}
    try:
        for detail in details:
            name, _, value = detail.partition("=")
            if name not in _READERS:
                raise ConfigError(f"{detail!r}: must be one of {', '.join(f'{known}=...' for known in _READERS)}")
            values[name] = _READERS[name](value)
        if action not in get_args(Action):
            raise ConfigError(f"must begin with one of {', '.join(get_args(Action))} and an operation")
        return Rule(action, on, **values)  # type: ignore[arg-type]  # Rule checks them
    except ConfigError as error:
        raise ConfigError(f"fault rule {text!r}: {error.message}") from None


def _integer(value: str) -> int:
    try:
        return int(value, 0)
    except ValueError:
        raise ConfigError(f"{value!r}: must be an integer") from None


def _real(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{value!r}: must be a number") from None


def _error(value: str) -> type[RondeError]:
    if value not in WIRE_NAMES:
        raise ConfigError(f"error={value!r}: must be one of {', '.join(WIRE_NAMES)}")
    return WIRE_NAMES[value]


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "rank": _integer,
    "peer": _integer,
    "tag": _integer,
    "nth": _integer,
    "chance": _real,
    "seconds": _real,
    "error": _error,
    "by": str,
}
