"""Flight records as others read them, while their ranks run or after they have ended.

A reader maps the file and copies a log at once. The rank goes on meanwhile: an entry that was begun during the copy is
left out, since the numbers before and after it differ. Times are nanoseconds of the clock of the rank's host.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from collectives.flight import layout
from collectives.flight.description import Description
from collectives.flight.folders import is_alive
from collectives.flight.packing import unpacked

_NAME: Final = re.compile("[0-9a-f]+-[0-9]+(-[a-z]+)*", re.ASCII)
"""The name of a log: the tag and the first rank of its communicator, and the ending of a log for something else."""
_UNKNOWN: Final = Description("a call", "", 0, "", 0, -1, "")


class UnreadableRecord(Exception):
    """The file is no flight record, or one of another version."""


class CallEntry(NamedTuple):
    """A call of a rank.

    number  within its communicator
    began   when, in nanoseconds
    ended   when; None if it has not, or if this is not known
    text    the description
    """

    number: int
    began: int
    ended: int | None
    text: Description


@dataclass(frozen=True)
class Calls:
    """The calls of one communicator of a rank, in numbers that arrays can work on; the newest ones, oldest first.

    name     of the communicator, the same on all its ranks
    label    for people
    size     ranks of the communicator; `index` is this rank's place among them
    open     False once it was closed
    newest   number of the newest call
    numbers, began, ended   of each call; `ended` is 0 where the call has not ended
    texts    the number of the description of each call
    """

    name: str
    label: str
    size: int
    index: int
    open: bool
    newest: int
    numbers: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    texts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.size:
            raise ValueError(f"rank {self.index} of {self.size}")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a communicator")


@dataclass(frozen=True)
class Record:
    """The record of a rank at one moment.

    path          of the file
    facts         world, rank, size, host, hostname, pid, transport, program and others: see FlightRecord.create
    alive         True if the process lives; always False for a copy
    state         layout.OPEN, CLOSED, FAILED, or SAVED: a copy of an open one
    ended_at      when it was closed or failed, or the copy was made
    failure       error, text, rank and peer of the failure, or empty
    calls         by the name of the communicator
    descriptions  by the numbers of texts
    read_at       when it was read, if that was on the host of the rank
    """

    path: Path
    facts: Mapping[str, Any]
    alive: bool
    state: int
    ended_at: int
    failure: Mapping[str, Any]
    calls: Mapping[str, Calls]
    descriptions: Mapping[int, Description]
    read_at: int

    @property
    def rank(self) -> int:
        return int(self.facts["rank"])

    @property
    def runs(self) -> bool:
        """True if the process lived when this was read, or copied."""
        return self.alive or self.state == layout.SAVED

    @property
    def size(self) -> int:
        return int(self.facts["size"])

    def text(self, number: int) -> Description:
        """The description with this number; one that says nothing if it was overwritten."""
        return self.descriptions.get(number, _UNKNOWN)

    def entries(self, name: str) -> Iterator[CallEntry]:
        """The calls of a communicator, oldest first."""
        calls = self.calls[name]
        rows = zip(*(column.tolist() for column in (calls.numbers, calls.began, calls.ended, calls.texts)), strict=True)
        for number, began, ended, text in rows:
            yield CallEntry(number, began, ended or None, self.text(text))


def read(path: Path, read_at: int) -> Record:
    """Read a record at the time `read_at`. Raises OSError; UnreadableRecord."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size < layout.LOGS_AT:
            raise UnreadableRecord(f"{path}: is no flight record")
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as memory:
            if memory[: len(layout.MAGIC)] != layout.MAGIC:
                raise UnreadableRecord(f"{path}: is no flight record, or one of another version")
            try:
                return _record(path, memory, read_at)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
                raise UnreadableRecord(f"{path}: is damaged or cut off: {error}") from error
    finally:
        os.close(descriptor)


def save(path: Path, folder: Path) -> Path:
    """Copy the record of a rank of this host, while it runs or later, into a folder, which is made; returns the path of
    the copy. Raises OSError; UnreadableRecord.
    """
    with path.open("rb") as file:
        data = bytearray(file.read(layout.LOGS_AT))
        if len(data) < layout.LOGS_AT or not data.startswith(layout.MAGIC):
            raise UnreadableRecord(f"{path}: is no flight record, or one of another version")
        logs = min(struct.unpack_from("q", data, 8 * layout.LOGS)[0], layout.MOST_LOGS)
        data += file.read(logs * layout.LOG_BYTES)
        for at in range(layout.LOGS_AT, len(data), layout.LOG_BYTES):
            file.seek(at + 8 * layout.CALLS)
            newest = struct.unpack_from("q", data, at + 8 * layout.CALLS)[0]
            later = int.from_bytes(file.read(8), sys.byteorder)
            struct.pack_into("q", data, at + 8 * layout.OVERTAKEN, max(0, later - newest))
    if is_alive(path) and struct.unpack_from("q", data, 8 * layout.STATE)[0] == layout.OPEN:
        struct.pack_into("q", data, 8 * layout.STATE, layout.SAVED)
        struct.pack_into("q", data, 8 * layout.ENDED_AT, time.perf_counter_ns())
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / path.name
    copy.write_bytes(data)
    return copy


def _record(path: Path, memory: mmap.mmap, read_at: int) -> Record:
    words = struct.unpack_from("4q", memory)
    calls = {}
    logs = min(words[layout.LOGS], layout.MOST_LOGS)
    if layout.LOGS_AT + logs * layout.LOG_BYTES > len(memory):
        raise ValueError(f"it has {len(memory)} bytes, too few for {logs} communicators")
    for index in range(logs):
        found = _calls(
            bytes(memory[(at := layout.LOGS_AT + index * layout.LOG_BYTES) : at + layout.LOG_BYTES]), memory, at
        )
        if found is not None:
            calls[found.name] = found
    facts, failure = unpacked(memory, layout.FACTS_AT), unpacked(memory, layout.FAILURE_AT)
    if not (isinstance(facts["world"], str) and 0 <= int(facts["rank"]) < int(facts["size"])):
        raise ValueError(f"rank {facts['rank']} of {facts['size']} in {facts['world']!r}")
    return Record(
        path,
        facts,
        is_alive(path),
        words[layout.STATE],
        words[layout.ENDED_AT],
        failure or {},
        calls,
        _descriptions(memory),
        read_at,
    )


def _calls(data: bytes, memory: mmap.mmap, at: int) -> Calls | None:
    """The calls of one log, of which `data` is a copy; None if nothing was noted in it."""
    words = np.frombuffer(data, np.int64)
    if not words[layout.IN_USE]:
        return None
    name, size, index, label = unpacked(data, 8 * layout.NAME)
    newest, mask = int(words[layout.CALLS]), int(words[layout.KEPT_MASK])
    if not 0 <= mask < layout.KEPT:
        raise ValueError(f"entries of {mask + 1} calls")
    later = struct.unpack_from("q", memory, at + 8 * layout.CALLS)[0] + int(words[layout.OVERTAKEN])
    numbers = np.arange(
        max(1, later - mask + 1), newest + 1, dtype=np.int64
    )  # what later calls have overwritten is out
    entries = words[layout.ENTRIES :].reshape(-1, layout.ENTRY_WORDS)[numbers & mask]
    began, ended = (_times(words, entries[:, column]) for column in (layout.BEGAN, layout.ENDED))
    ended[ended < began] = 0  # it is that of a call of KEPT numbers before
    used = words[layout.IN_USE] == layout.USED
    return Calls(name, label, size, index, bool(used), newest, numbers, began, ended, entries[:, layout.TEXT].copy())


def _times(words: NDArray[np.int64], stamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stamps as nanoseconds of the clock. Cycles lie on the line through the two readings of both."""
    first, last = int(words[layout.FIRST_CYCLES]), int(words[layout.LAST_CYCLES])
    start, end = int(words[layout.FIRST_TIME]), int(words[layout.LAST_TIME])
    if last <= first:
        return np.where(stamps < 0, end, stamps)
    per_cycle = (end - start) / (last - first)
    from_cycles = end + ((-stamps - last) * per_cycle).astype(np.int64)
    return np.where(stamps < 0, from_cycles, stamps)


def _descriptions(memory: mmap.mmap) -> dict[int, Description]:
    found = {}
    for slot in range(layout.TEXTS):
        at = layout.HEAD_BYTES + slot * layout.TEXT_BYTES
        number, length = struct.unpack_from("2q", memory, at)
        if number and 0 < length <= layout.TEXT_BYTES - layout.TEXT_HEAD:
            data = memory[at + layout.TEXT_HEAD : at + layout.TEXT_HEAD + length]
            if struct.unpack_from("q", memory, at)[0] == number:
                found[number] = Description.of(msgpack.unpackb(data))
    return found
