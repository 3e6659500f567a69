"""Messages of the negotiation: announcements to the coordinator, answers to the ranks, packed by msgpack.

A mask is an integer whose bits stand for ranks, or for entries of the response cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgpack

from collectives.operations import Signature
from transports.packed import pack

_MAX_ITEMS: Final = 1 << 20
JOIN: Final = ""
"""The name of join in withdrawals and failures. No operation can have it."""


class Announcement(NamedTuple):
    """A message from a rank to the coordinator.

    version    version of the response cache at the sender; it defines the meaning of `cached`
    cached     mask of cache entries: operations negotiated before and submitted again now
    uncached   name and signature of every other operation submitted now
    withdrawn  names of operations whose timeout has passed
    joined     True if the rank has no more data
    left       True if the rank closes: its last announcement
    """

    version: int = 0
    cached: int = 0
    uncached: tuple[tuple[str, Signature], ...] = ()
    withdrawn: tuple[str, ...] = ()
    joined: bool = False
    left: bool = False

    def pack(self) -> bytes:
        """Encode the message."""
        return pack((self.version, _to_bytes(self.cached), *self[2:]))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Announcement:
        """Decode the message. Raises ValueError if `data` is not an announcement."""
        version, cached, uncached, *others = _unpack(data, 6)
        return cls(
            version,
            int.from_bytes(cached, "little"),
            tuple((name, Signature(*signature)) for name, signature in uncached),
            *others,
        )


class Failure(NamedTuple):
    """An operation that cannot run.

    error   name of the error class (errors.WIRE_NAMES)
    text    message of the error
    peer    rank to blame, if there is one
    """

    name: str
    error: str
    text: str
    peer: int | None = None


class Answer(NamedTuple):
    """A message from the coordinator to some ranks. Every answer allows the receiver to announce again.

    cached     mask of cache entries: operations to run now, lowest bit first
    uncached   operations to run after them: cache bit, name, signature. The operation is stored in the cache under
               this bit from now on; -1: it is not stored
    failed     operations that have failed
    last       the last rank to join, once all ranks have joined; otherwise -1
    ended      True in the last answer: rank 0 has closed
    fusion     maximum bytes that are packed into one collective
    """

    cached: int = 0
    uncached: tuple[tuple[int, str, Signature], ...] = ()
    failed: tuple[Failure, ...] = ()
    last: int = -1
    ended: bool = False
    fusion: int = 0

    def pack(self) -> bytes:
        """Encode the message."""
        return pack((_to_bytes(self.cached), *self[1:]))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Answer:
        """Decode the message. Raises ValueError if `data` is not an answer."""
        cached, uncached, failed, *others = _unpack(data, 6)
        return cls(
            int.from_bytes(cached, "little"),
            tuple((bit, name, Signature(*signature)) for bit, name, signature in uncached),
            tuple(Failure(*failure) for failure in failed),
            *others,
        )


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def ranks_text(mask: int) -> str:
    """Format a mask of ranks for messages: 'rank 3', 'ranks 0, 2-5 and 9'."""
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


def _unpack(data: bytes | memoryview, count: int) -> tuple[Any, ...]:
    message = msgpack.unpackb(data, use_list=False, max_array_len=_MAX_ITEMS, max_map_len=0, max_ext_len=0)
    if not isinstance(message, tuple) or len(message) != count:
        raise ValueError(f"a message of {len(data)} bytes is not a negotiation message of {count} fields")
    return message
