"""The wire format of a lane, after the handshake of `transports.auth`.

A lane carries frames in one direction: a header of 24 bytes (little-endian tag u64, check u32, kind u8, three zero
bytes, length u64), then `length` bytes of payload.

    INTRO     forward   the first frame, no payload: the tag is the rank of the sender, the check the number of the
                        connection: 0 for the main lane, 1 to MAX_CONNECTIONS for the lanes of pieces
    DATA      forward   tag, check and payload as given to isend
    SPREAD    forward   announces a large message: its tag, check and length; the payload follows in pieces
    PIECE     forward   the only data on a lane of pieces: the check is the number of the message, counted from 0
                        modulo 2**32 in the order of their SPREAD frames; the tag is the offset of the payload in the
                        message, a multiple of PIECE_BYTES; all pieces but the last have PIECE_BYTES bytes
    GOODBYE   forward   the sender closes and sends nothing more; sent on the lanes of pieces first. It waits for the
                        answer:
              back      the receiver has read everything, or closes and reads nothing more
    ABORT     both      the payload is `errors.to_wire` of the cause in msgpack
"""

from __future__ import annotations

import struct
from typing import Final

from transports.errors import RondeError, TransportError, from_wire, to_wire
from transports.packed import pack, unpack

HEADER: Final = struct.Struct("<QIB3xQ")
DATA, INTRO, ABORT, GOODBYE, SPREAD, PIECE = range(6)
MAX_CONTROL_BYTES = 1 << 16
MAX_CONNECTIONS: Final = 64
"""Lanes of pieces between one sender and one receiver."""
PIECE_BYTES: Final = 1 << 20
SERIALS: Final = 1 << 32
_MAX_FIELDS = 16

GOODBYE_FRAME: Final = HEADER.pack(0, 0, GOODBYE, 0)


def data_header(tag: int, check: int, length: int) -> bytes:
    """The header of a DATA frame."""
    return HEADER.pack(tag, check, DATA, length)


def spread_frame(tag: int, check: int, length: int) -> bytes:
    """The SPREAD frame, which announces a message in pieces."""
    return HEADER.pack(tag, check, SPREAD, length)


def piece_header(serial: int, offset: int, length: int) -> bytes:
    """The header of a PIECE frame: `length` bytes at `offset` of message number `serial`."""
    return HEADER.pack(offset, serial, PIECE, length)


def intro_frame(rank: int, connection: int) -> bytes:
    """The INTRO frame of connection number `connection` of `rank`."""
    return HEADER.pack(rank, connection, INTRO, 0)


def parse_intro(frame: bytes) -> tuple[int, int]:
    """The rank and the number of the connection in an INTRO frame. Raises TransportError if it is another frame."""
    rank, connection, kind, length = HEADER.unpack(frame)
    if kind != INTRO or length:
        raise TransportError(f"the first frame is of kind {kind} with {length} bytes, not an introduction")
    return rank, connection


def abort_frame(cause: RondeError) -> bytes:
    """The frame that carries the cause of an abort."""
    payload = pack(to_wire(cause))
    return HEADER.pack(0, 0, ABORT, len(payload)) + payload


def parse_abort(payload: bytes | bytearray) -> RondeError:
    """The cause in the payload of an ABORT frame. Raises TransportError if there is none."""
    try:
        fields = unpack(payload, max_bytes=MAX_CONTROL_BYTES, max_items=_MAX_FIELDS)
    except ValueError as error:
        raise TransportError(f"received an abort frame of {len(payload)} bytes that cannot be decoded") from error
    if not isinstance(fields, dict):
        raise TransportError(f"received an abort frame of {len(payload)} bytes without a cause")
    return from_wire(fields)
