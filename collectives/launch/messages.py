"""Messages between the launcher and its agents: msgpack arrays in frames of 4 bytes length (big-endian) and body.

Texts that come from the system (arguments, variables, paths) travel as bytes, since they need not be UTF-8.

    launcher to agent                                     agent to launcher
    ["open", marker, seconds of silence allowed, grace,   marker, then ["hello", facts]
      whether the ranks outlast the launcher's silence]
    ["serve", secret, interface, hints]                   ["serving", url, host and port for torch]
    ["start", start]                                      ["started", rank, pid] for each rank
      each of these may also be answered by               ["failed", text, errno or 0]
    ["credit", stream, bytes]                             ["output", rank, stream, data], no data at its end
    ["input", data], no data at its end                   ["taken", bytes]
    ["signal", number, whole groups]                      ["ended", rank, status, last signal of the launcher]
    ["signal rank", rank, number]
    ["heed", file or '', seconds to leave]                ["preempted", why], when the host is about to go
                                                          ["gone"] when no process is left
                                                          ["drained"] after the last output
    ["ask", question, ranks]                              ["answer", question, value]
    ["announce end", rank]
    ["give up"]                                           ["ending", why], when something else than the launcher
    ["finish", exit code]                                                             ends the ranks
    ["beat"]                                              ["beat"]
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from typing import Any, Final

from transports.errors import RondeError
from transports.packed import pack, unpack

MAX_FRAME: Final = 1 << 25
"""Bytes. A command line with its environment takes a few MiB at most."""

STDOUT: Final = 0
STDERR: Final = 1
WINDOW: Final = 1 << 18
"""Bytes of one stream that may be on their way without a credit for them."""

_LENGTH: Final = struct.Struct("!I")

Message = list[object]


def encode(message: Message) -> bytes:
    """The frame of a message."""
    body = pack(message)
    return _LENGTH.pack(len(body)) + body


def fields_of(kind: type, values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields in a message, which another version may have sent: without those that this one
    does not know. Raises RondeError if one is missing that has no default."""
    found, missing = {}, []
    for field in dataclasses.fields(kind):
        if field.name in values:
            found[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING:
            missing.append(field.name)
    if missing:
        raise RondeError(f"a message lacks {', '.join(missing)}: was it sent by another version of Ronde?")
    return found


class Decoder:
    """Takes messages out of a stream of bytes.

    marker  what comes before the first frame; everything before it is skipped. b"" for none
    """

    def __init__(self, marker: bytes = b"") -> None:
        self._skipped = b""
        self._marker = marker
        self._rest = bytearray()

    @property
    def skipped(self) -> bytes:
        """The end of what came before the marker, or instead of it so far."""
        return self._skipped + (bytes(self._rest) if self._marker else b"")

    def feed(self, data: bytes) -> list[Message]:
        """Add `data`; the messages that it completes. Raises ValueError for anything that is no message."""
        self._rest += data
        if self._marker and not self._skip():
            return []
        messages = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if not 0 < length <= MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            message = unpack(bytes(self._rest[_LENGTH.size : end]), max_bytes=MAX_FRAME)
            del self._rest[:end]
            if not isinstance(message, list) or not message:
                raise ValueError("a frame that holds no array")
            messages.append(message)
        return messages

    def _skip(self) -> bool:
        """Drop what comes before the marker, and the marker; False if it has not come yet."""
        noise, found, rest = bytes(self._rest).partition(self._marker)
        kept = len(noise) if found else max(0, len(noise) - len(self._marker) + 1)
        self._skipped = (self._skipped + noise[:kept])[-2000:]
        self._rest = bytearray(rest if found else noise[kept:])
        if found:
            self._marker = b""
        return bool(found)
