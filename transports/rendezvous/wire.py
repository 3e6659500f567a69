"""Wire format of the TCP store: frames, their limits, and the address as a URL.

Both ends of a connection prove that they know the job's secret (`transports.auth`). Then the client sends requests. It
may send several before the first is answered; an answer has the number of its request:

    frame     4 bytes length (big-endian), then a msgpack array
    request   [number, "set", key, bytes]       [number, "get", key, seconds]      [number, "add", key, integer]
              [number, "default", key, bytes]   [number, "any", a key, bytes]      [number, "delete", key, nil]
              [number, "put", table, bytes]     [number, "peek", a key, bytes]     [number, "rows", table, nil]
              [number, "forget", prefix, bytes]
    answer    [number, "ok", result]  [number, "late", nil]  [number, "bad", text]  [number, "full", text]

The bytes of "any", "peek", "forget" and "put" are msgpack, too: [keys, seconds]; the keys; the keys that are kept;
[size, [place, row] of each row]. The result of "any" is [position of the key, value], that of "put" has nil or the
reason of a refusal for each row.

The server answers a `get` when the key is set or its seconds have passed, so clients do not poll.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

import msgpack

from transports.errors import ConfigError
from transports.packed import pack
from transports.store import MAX_KEY_BYTES, MAX_VALUE_BYTES

PURPOSE: Final = b"store"
HEADER: Final = struct.Struct("!I")
MAX_FRAME: Final = MAX_VALUE_BYTES + MAX_KEY_BYTES + 64
MAX_TEXT: Final = 16 * MAX_KEY_BYTES
LONGEST_GET: Final = 86400.0
"""Maximum seconds of one `get` request. The client repeats it until its deadline."""


def encode(message: list[object]) -> bytes:
    """A frame."""
    body = pack(message)
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> list[Any]:
    """The message in a frame's body: a number, a text, and at most two more plain values. Raises ValueError."""
    message: Any = msgpack.unpackb(
        body,
        max_str_len=MAX_TEXT,
        max_bin_len=MAX_VALUE_BYTES,
        max_array_len=4,
        max_map_len=0,
        max_ext_len=0,
    )
    match message:
        case [int(), str(), *_]:
            return list(message)
    raise ValueError("a frame must hold an array of a number and a text")


def format_url(host: str, port: int) -> str:
    """'tcp://host:port', the host in brackets if it is an IPv6 address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse_url(url: str) -> tuple[str, int]:
    """Host and port of 'tcp://host:port'. Raises ConfigError."""
    match = re.fullmatch(r"tcp://(?:\[([^\[\]/]+)\]|([^\[\]/:@]+)):([0-9]{1,5})/?", url)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ConfigError(f"store={url!r}: must be tcp://host:port, with an IPv6 address in brackets, port 1 to 65535")
    return match[1] or match[2], int(match[3])
