"""The wire format of a lane, after the handshake of `transports.auth`.

A lane carries frames in one direction: a header of 24 bytes (little-endian tag u64, check u32, kind u8, three zero
bytes, length u64), then `length` bytes of payload.

    INTRO     forward   the first frame, no payload: the tag is the rank of the sender
    DATA      forward   tag, check and payload as given to isend
    GOODBYE   forward   the sender closes; all it had to say has been said. It waits for the answer:
              back      the receiver has read everything, or closes and reads no more
    ABORT     both      the payload is `errors.to_wire` of the cause in msgpack
"""

from __future__ import annotations

import struct
from typing import Final

from transports.errors import RondeError, TransportError, from_wire, to_wire
from transports.packed import pack, unpack

HEADER: Final = struct.Struct("<QIB3xQ")
DATA, INTRO, ABORT, GOODBYE = range(4)
MAX_CONTROL_BYTES = 1 << 16
_MAX_FIELDS = 16

GOODBYE_FRAME: Final = HEADER.pack(0, 0, GOODBYE, 0)


def data_header(tag: int, check: int, length: int) -> bytes:
    """The header of a DATA frame."""
    return HEADER.pack(tag, check, DATA, length)


def intro_frame(rank: int) -> bytes:
    """The first frame of a lane that `rank` has opened."""
    return HEADER.pack(rank, 0, INTRO, 0)


def parse_intro(frame: bytes) -> int:
    """The rank in an INTRO frame. Raises TransportError if it is another frame."""
    rank, _, kind, length = HEADER.unpack(frame)
    if kind != INTRO or length:
        raise TransportError(f"the first frame is of kind {kind} with {length} bytes, not an introduction")
    return int(rank)


def abort_frame(cause: RondeError) -> bytes:
    """The frame that carries the cause of an abort."""
    payload = pack(to_wire(cause))
    return HEADER.pack(0, 0, ABORT, len(payload)) + payload


def parse_abort(payload: bytes | bytearray) -> RondeError:
    """The cause in the payload of an ABORT frame. Raises TransportError if there is none."""
    try:
        fields = unpack(payload, max_bytes=MAX_CONTROL_BYTES, max_items=_MAX_FIELDS)
    except ValueError as error:
        raise TransportError(f"an abort frame of {len(payload)} bytes that cannot be read came") from error
    if not isinstance(fields, dict):
        raise TransportError(f"an abort frame of {len(payload)} bytes without a cause came")
    return from_wire(fields)
