"""The digest of the records of a host: their newest calls in a message of bounded size, for viewers on other hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.flight.connections import Route, routes
from collectives.flight.description import Description
from collectives.flight.folders import records
from collectives.flight.layout import SUFFIX
from collectives.flight.load import Load, load_of
from collectives.flight.reader import Calls, Record, UnreadableRecord, read
from transports.packed import pack, unpack

NEWEST: Final = 256
"""Calls of a communicator in a digest, at most."""
_FEWEST: Final = 4
_MOST_UNPACKED: Final = 1 << 26
_COLUMNS: Final = ("began", "ended", "texts")


class Digest(NamedTuple):
    """The records of the ranks of a host, and the loads of their processes by rank.

    now     the clock of the host when they were read
    routes  of the host's connections to other hosts
    """

    now: int
    records: tuple[Record, ...]
    loads: Mapping[int, Load]
    routes: tuple[Route, ...] = ()

    def pack(self, most: int) -> bytes:
        """The bytes, at most `most` of them: with fewer calls if it must be, and then without the last ranks."""
        newest, records = NEWEST, list(self.records)
        while True:
            rows = [_packed(record, newest, self.loads.get(record.rank)) for record in records]
            data = zlib.compress(pack([self.now, rows, self.routes]), 1)
            if len(data) <= most or not records:
                return data
            if newest > _FEWEST:
                newest //= 2
            else:
                del records[len(records) // 2 :]

    def shifted(self, offset: int) -> Digest:
        """The same with all times later by `offset`: on another clock."""
        return self._replace(now=self.now + offset, records=tuple(_shifted(record, offset) for record in self.records))


def digest_of(folder: Path) -> Digest:
    """The digest of the records in the folder of a world."""
    found = []
    for path in records(folder):
        with contextlib.suppress(OSError, UnreadableRecord):  # of a rank that has just begun
            found.append(read(path, time.perf_counter_ns()))
    loads = {record.rank: load_of(int(record.facts.get("pid", 0))) for record in found if record.alive}
    known = {rank: load for rank, load in loads.items() if load is not None}
    far = any(record.size > len(found) for record in found)
    return Digest(time.perf_counter_ns(), tuple(found), known, routes() if far else ())


def unpack_digest(data: bytes) -> Digest:
    """The digest of such bytes. Raises ValueError if they are none."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MOST_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"a digest that cannot be read: {error}") from error
    if not unpacker.eof:
        raise ValueError("a digest that is cut short, or too large")
    try:
        now, rows, ways = unpack(plain, max_bytes=_MOST_UNPACKED)
        found = [_unpacked(row) for row in rows]
        loads = {record.rank: Load(*map(int, row[-1])) for record, row in zip(found, rows, strict=True) if row[-1]}
        routes = tuple(Route(str(local), str(remote), int(trip), int(rate)) for local, remote, trip, rate in ways)
        return Digest(int(now), tuple(found), loads, routes)
    except (TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"a digest of another form: {error}") from error


def _packed(record: Record, newest: int, load: Load | None) -> list[Any]:
    calls, texts = [], set[int]()
    for one in record.calls.values():
        if len(one.numbers) == 0 and not one.open:
            continue
        columns = [getattr(one, name)[-newest:] for name in _COLUMNS]
        texts.update(columns[-1].tolist())
        first = int(one.numbers[-newest:][0]) if len(one.numbers) else 0
        arrays = [column.astype("<i8").tobytes() for column in columns]
        calls.append([one.name, one.label, one.size, one.index, one.open, one.newest, first, *arrays])
    described = {str(number): record.descriptions[number] for number in texts if number in record.descriptions}
    return [
        dict(record.facts),
        record.alive,
        record.state,
        record.ended_at,
        dict(record.failure),
        record.read_at,
        calls,
        described,
        load,
    ]


def _unpacked(row: Sequence[Any]) -> Record:
    facts, alive, state, ended_at, failure, read_at, calls, described, _ = row
    int(facts["rank"]), int(facts["size"])
    found = {}
    for name, label, size, index, is_open, newest, first, *columns in calls:
        began, ended, texts = (np.frombuffer(column, "<i8").astype(np.int64) for column in columns)
        if not len(began) == len(ended) == len(texts):
            raise ValueError("a digest whose columns differ in length")
        numbers = np.arange(first, first + len(began), dtype=np.int64)
        found[str(name)] = Calls(
            str(name), str(label), int(size), int(index), bool(is_open), int(newest), numbers, began, ended, texts
        )
    descriptions = {int(number): Description.of(fields) for number, fields in described.items()}
    return Record(
        Path(f"rank-{int(facts['rank'])}{SUFFIX}"),
        facts,
        bool(alive),
        int(state),
        int(ended_at),
        failure,
        found,
        descriptions,
        int(read_at),
    )


def _shifted(record: Record, offset: int) -> Record:
    calls = {
        name: dataclasses.replace(one, began=one.began + offset, ended=np.where(one.ended > 0, one.ended + offset, 0))
        for name, one in record.calls.items()
    }
    ended_at = record.ended_at + offset if record.ended_at else 0
    facts = {**record.facts, "clock": int(record.facts.get("clock", 0)) + offset}
    return dataclasses.replace(record, facts=facts, calls=calls, ended_at=ended_at, read_at=record.read_at + offset)
