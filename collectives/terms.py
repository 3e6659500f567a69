"""What ranks tell each other about named operations: terms, announcements, answers, and how they travel (msgpack)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgpack

_MOST_ITEMS: Final = 1 << 20
JOIN: Final = ""
"""The name by which withdrawals and failures speak of join; no operation has it."""


class Terms(NamedTuple):
    """What all ranks must say alike about the operation of one name.

    kind             the collective, as the method is called
    dtypes, shapes   of every array, as far as they must agree (allgather: without the first dimension)
    algorithm        a name that the callers insist on
    detail           whatever else must agree: numbers, strings, tuples of them
    windows          of every array, where it and its result lie in windows, None if they do not; () if none does
    """

    kind: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    op: str | None = None
    root: int | None = None
    prescale: float | None = None
    postscale: float | None = None
    algorithm: str | None = None
    reproducible: bool = False
    detail: tuple[Any, ...] = ()
    windows: tuple[Any, ...] = ()

    @property
    def joinable(self) -> bool:
        """True if ranks that have joined can take part with zeros."""
        return self.kind in ("allreduce", "grouped_allreduce") and self.op in ("sum", "average") and not self.detail

    def describe(self) -> str:
        """'allreduce(float32 (3, 4), op=sum, prescale=0.5)', for messages."""
        words = [f"{dtype} {shape}" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        if len(words) > 3:
            words[2:] = [f"... {len(self.dtypes)} arrays"]
        for name in ("op", "root", "prescale", "postscale", "algorithm"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value}")
        if self.reproducible:
            words.append("reproducible")
        words += map(str, self.detail)
        if lying := [f"{window}+{offset}" for places in self.windows if places for window, offset in places[:1]]:
            words.append(f"in windows {', '.join(lying[:3])}")
        return f"{self.kind}({', '.join(words)})"


class Announcement(NamedTuple):
    """What a rank tells the coordinator.

    known      how many assignments of slots it has heard of: what its bits mean
    slots      bits: operations that were negotiated before and are submitted now
    fresh      others: name and terms
    withdrawn  names whose time is up
    joined     it has no more data
    left       it closes: nothing will follow
    """

    known: int = 0
    slots: int = 0
    fresh: tuple[tuple[str, Terms], ...] = ()
    withdrawn: tuple[str, ...] = ()
    joined: bool = False
    left: bool = False

    def pack(self) -> bytes:
        return _pack((self.known, _to_bytes(self.slots), *self[2:]))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Announcement:
        """Raises ValueError for anything else than an announcement."""
        known, slots, fresh, *rest = _unpack(data, 6)
        return cls(known, int.from_bytes(slots, "little"), tuple((name, Terms(*terms)) for name, terms in fresh), *rest)


class Failure(NamedTuple):
    """An operation that comes to nothing: an error's class (as in errors.WIRE_NAMES), its text, the rank to blame."""

    name: str
    error: str
    text: str
    peer: int | None = None


class Answer(NamedTuple):
    """What the coordinator tells ranks. Whatever it says, they may announce again.

    slots    bits: operations to run now, in ascending order of their slots
    fresh    and then these: slot (-1: none), name, terms; from now on the slot means this operation
    failed   operations that are over
    last     the last rank to join, when all have; else -1
    ended    there will be no more answers
    fusion   the most bytes that are packed together
    """

    slots: int = 0
    fresh: tuple[tuple[int, str, Terms], ...] = ()
    failed: tuple[Failure, ...] = ()
    last: int = -1
    ended: bool = False
    fusion: int = 0

    def pack(self) -> bytes:
        return _pack((_to_bytes(self.slots), *self[1:]))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Answer:
        """Raises ValueError for anything else than an answer."""
        slots, fresh, failed, *rest = _unpack(data, 6)
        return cls(
            int.from_bytes(slots, "little"),
            tuple((slot, name, Terms(*terms)) for slot, name, terms in fresh),
            tuple(Failure(*failure) for failure in failed),
            *rest,
        )


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def ranks_text(mask: int) -> str:
    """'rank 3', 'ranks 0, 2-5 and 9', for messages."""
    runs: list[list[int]] = []
    for rank in bits(mask):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words: list[str] = []
    for first, last in runs:
        words += [f"{first}-{last}"] if last > first + 1 else map(str, range(first, last + 1))
    text = ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1] if words else "no rank"
    return f"rank {text}" if mask.bit_count() == 1 else f"ranks {text}" if mask else text


def _to_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _pack(message: tuple[Any, ...]) -> bytes:
    data: bytes = msgpack.packb(message)
    return data


def _unpack(data: bytes | memoryview, count: int) -> tuple[Any, ...]:
    message = msgpack.unpackb(data, use_list=False, max_array_len=_MOST_ITEMS, max_map_len=0, max_ext_len=0)
    if not isinstance(message, tuple) or len(message) != count:
        raise ValueError(f"a message of {len(data)} bytes that is none of the engine's")
    return message
