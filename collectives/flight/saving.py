"""Copies of records that came as digests, as files that `read` reads. `reader.save` copies those of this host."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from collectives.flight import layout
from collectives.flight.packing import put_packed, put_text
from collectives.flight.reader import Calls, Record
from transports.packed import pack


def write_copy(record: Record, path: Path) -> None:
    """Write a record into a file. Raises OSError."""
    lives = record.alive and record.state == layout.OPEN
    data = bytearray(layout.LOGS_AT + min(len(record.calls), layout.MOST_LOGS) * layout.LOG_BYTES)
    data[: len(layout.MAGIC)] = layout.MAGIC
    for word, value in (
        (layout.STATE, layout.SAVED if lives else record.state),
        (layout.ENDED_AT, record.read_at if lives else record.ended_at),
        (layout.LOGS, min(len(record.calls), layout.MOST_LOGS)),
    ):
        struct.pack_into("q", data, 8 * word, value)
    put_packed(data, layout.FACTS_AT, layout.FAILURE_AT, dict(record.facts))
    if record.failure:
        put_packed(data, layout.FAILURE_AT, layout.HEAD_BYTES, dict(record.failure))
    for number, text in record.descriptions.items():
        put_text(data, number, pack(list(text)))
    for index, calls in enumerate(list(record.calls.values())[: layout.MOST_LOGS]):
        _put_log(data, layout.LOGS_AT + index * layout.LOG_BYTES, calls)
    path.write_bytes(data)


def _put_log(data: bytearray, at: int, calls: Calls) -> None:
    words = np.frombuffer(data, np.int64, layout.log_words(layout.KEPT), at)
    kept = calls.numbers[-layout.KEPT :]
    words[layout.CALLS] = calls.newest
    words[layout.KEPT_MASK] = layout.KEPT - 1
    words[layout.TIMED] = 1
    words[layout.IN_USE] = layout.USED if calls.open else layout.LEFT
    entries = words[layout.ENTRIES :].reshape(-1, layout.ENTRY_WORDS)
    for column, values in (
        (layout.TEXT, calls.texts),
        (layout.BEGAN, calls.began),
        (layout.ENDED, calls.ended),
    ):
        entries[kept & (layout.KEPT - 1), column] = values[-layout.KEPT :]
    del words, entries
    put_packed(data, at + 8 * layout.NAME, at + 8 * layout.ENTRIES, [calls.name, calls.size, calls.index, calls.label])
