"""The packed parts of a flight record, in any memory: those of a rank that runs, and of a copy."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from collectives.flight import layout
from transports.packed import pack


def put_packed(memory: Any, at: int, end: int, value: Any) -> None:
    """Write a length and msgpack. A value that does not fit is left out."""
    data = pack(value)
    if 8 + len(data) > end - at:
        data = pack({} if isinstance(value, Mapping) else [])
    memory[at + 8 : at + 8 + len(data)] = data
    struct.pack_into("q", memory, at, len(data))


def unpacked(memory: Any, at: int) -> Any:
    """The value that `put_packed` has written; None where it has written none."""
    length = struct.unpack_from("q", memory, at)[0]
    return msgpack.unpackb(memory[at + 8 : at + 8 + length]) if length else None


def put_text(memory: Any, number: int, data: bytes) -> None:
    """Write msgpack as the text with this number. The number is written last, so that a reader sees no half of it."""
    at = layout.HEAD_BYTES + number % layout.TEXTS * layout.TEXT_BYTES
    struct.pack_into("qq", memory, at, 0, len(data))
    memory[at + layout.TEXT_HEAD : at + layout.TEXT_HEAD + len(data)] = data
    struct.pack_into("q", memory, at, number)
