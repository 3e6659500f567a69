"""Plain values as bytes, in msgpack: all that ranks tell each other beside their data.

Whatever comes from a wire, a store or shared memory may be anything, so it is read with limits; who reads it checks
what it is (with `match`, say) before it is used.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgpack

MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1 << 16


def pack(value: object) -> bytes:
    """None, bools, integers of 64 bits, floats, texts, bytes, and lists and dictionaries of them (keys: texts), as
    bytes. What is no UTF-8 in a text is replaced."""
    return cast(bytes, msgpack.packb(value, unicode_errors="replace"))


def unpack(data: bytes | bytearray | memoryview, *, max_bytes: int = MAX_BYTES, max_items: int = MAX_ITEMS) -> Any:
    """The value that `pack` made bytes of; lists where there were tuples.

    Raises ValueError if it is anything else, if the data are longer than `max_bytes`, or if a list or dictionary has
    more than `max_items`. What is made of it in memory is less than 100 times as long as the data.
    """
    if len(data) > max_bytes:
        raise ValueError(f"{len(data)} bytes are too many: at most {max_bytes} are allowed")
    return msgpack.unpackb(data, max_array_len=max_items, max_map_len=max_items, max_ext_len=0)
