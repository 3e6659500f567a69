"""The flight record: the last calls of a rank, in a file that other processes of the user read while the rank runs, or
after it.

`record` writes it, `reader` reads it, `layout` has its bytes, `folders` the folders in which records are found.
`description` tells of a call. `door` is the way of a viewer to the ranks' store, `digest` the records of a host in one
message, `load` the processor time of a process, `connections` what TCP measures, `saving` writes copies, `packing` the
parts that both write. Nothing here knows plans, transports or who reads.
"""

from __future__ import annotations

from collectives.flight.connections import Route
from collectives.flight.description import BATCH, MESSAGE, Description, frame_of_program, line_of_program
from collectives.flight.digest import Digest, digest_of, unpack_digest
from collectives.flight.door import Door, read_door
from collectives.flight.folders import is_alive, records, worlds
from collectives.flight.layout import (
    BATCHES,
    BEGAN,
    CALLS,
    CLOSED,
    ENDED,
    ENTRIES,
    ENTRY_WORDS,
    FAILED,
    FEWEST_KEPT,
    FIRST_CYCLES,
    FIRST_TIME,
    KEPT_MASK,
    LAST_CYCLES,
    LAST_TIME,
    MESSAGES,
    OPEN,
    SAVED,
    TEXT,
    TIMED,
)
from collectives.flight.load import Load, load_of
from collectives.flight.reader import CallEntry, Calls, Record, UnreadableRecord, read, save
from collectives.flight.record import CallLog, FlightRecord, NoteLog
from collectives.flight.saving import write_copy

__all__ = [
    "BATCH",
    "BATCHES",
    "BEGAN",
    "CALLS",
    "CLOSED",
    "ENDED",
    "ENTRIES",
    "ENTRY_WORDS",
    "FAILED",
    "FEWEST_KEPT",
    "FIRST_CYCLES",
    "FIRST_TIME",
    "KEPT_MASK",
    "LAST_CYCLES",
    "LAST_TIME",
    "MESSAGE",
    "MESSAGES",
    "OPEN",
    "SAVED",
    "TEXT",
    "TIMED",
    "CallEntry",
    "CallLog",
    "Calls",
    "Description",
    "Digest",
    "Door",
    "FlightRecord",
    "Load",
    "NoteLog",
    "Record",
    "Route",
    "UnreadableRecord",
    "digest_of",
    "frame_of_program",
    "is_alive",
    "line_of_program",
    "load_of",
    "read",
    "read_door",
    "records",
    "save",
    "unpack_digest",
    "worlds",
    "write_copy",
]
