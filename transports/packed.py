"""Plain values as bytes, in msgpack: the format of all messages between ranks beside their data.

Bytes from a wire, a store or shared memory may be invalid, so they are decoded with limits; the reader checks the
structure of the value (for example with `match`) before it is used.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgpack

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1 << 16
_BUFFER_BYTES: Final = 1 << 10
"""First size of msgpack's buffer, by default 256 KiB: a rank that has run out of memory still tells the others."""


def pack(value: object) -> bytes:
    """Encode None, bools, integers of 64 bits, floats, texts, bytes, and lists and dictionaries of these (keys: texts).
    Characters without UTF-8 encoding are replaced."""
    return cast(bytes, msgpack.packb(value, unicode_errors="replace", buf_size=_BUFFER_BYTES))


def unpack(data: bytes | bytearray | memoryview, *, max_bytes: int = MAX_BYTES, max_items: int = MAX_ITEMS) -> Any:
    """Decode the value that `pack` has encoded; tuples become lists.

    Raises ValueError if the data are invalid or longer than `max_bytes`, or if a list or dictionary has more than
    `max_items`. The decoded value takes less than 100 times the memory of the data.
    """
    if len(data) > max_bytes:
        raise ValueError(f"{len(data)} bytes are too many: at most {max_bytes} are allowed")
    return msgpack.unpackb(data, max_array_len=max_items, max_map_len=max_items, max_ext_len=0)
