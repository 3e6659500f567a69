"""The flight record of a rank: its last calls, in a file that outlives the process.

The file is mapped into memory. To note a call is to store three words, so nothing has to be written when the process
fails: after SIGKILL the kernel still has the pages. The file lies in a folder that the user alone may enter, and its
room is allocated at once, since a full file system would end the process later.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectives.flight import layout
from collectives.flight.description import Description
from collectives.flight.door import Door, remove_door
from collectives.flight.folders import new_folder
from collectives.flight.packing import put_packed, put_text
from transports import forking
from transports.numbers import Numbers
from transports.packed import pack

try:
    import fcntl
except ImportError:  # Windows: there is no lock that ends with a process, by which readers know who lives
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("ronde.flight")

now: Final = time.perf_counter_ns
"""The clock of the entries, in nanoseconds. On Linux all processes of a host share it."""
_TEXT_ROOM: Final = layout.TEXT_BYTES - layout.TEXT_HEAD
_LONGEST: Final = 120
"""Characters of one field of a text."""


class CallLog:
    """The last calls of one communicator. One thread writes at a time.

    words   see layout; the owner notes a call by storing into them
    """

    def __init__(self, memory: NDArray[np.int64], *, kept: int, timed: bool, free: Callable[[], None]) -> None:
        """`free` is called once the memory is not used any more."""
        self.memory = memory
        self.words = memory.data
        self.words[layout.KEPT_MASK] = kept - 1
        self.words[layout.TIMED] = timed
        self._free = free

    def close(self) -> None:
        """The communicator makes no more calls: go on with memory of this process, which the calls that were begun may
        still be told from. Idempotent; `words` and `memory` are others afterwards."""
        if self.words[layout.IN_USE] == layout.USED:
            self.words[layout.IN_USE] = layout.LEFT
            self.memory = self.memory.copy()
            self.words = self.memory.data
            self._free()


class NoteLog:
    """The last ones of what a communicator does beside its calls: waits for messages, batches of named operations. One
    thread writes at a time."""

    def __init__(self, record: FlightRecord, log: CallLog) -> None:
        self._record = record
        self._log = log
        self._mask = log.words[layout.KEPT_MASK]
        self._open: set[int] = set()

    def begin(self, description: Description, began: int | None = None) -> int:
        """Note one that begins now, or has begun at a moment of the clock; returns the number for `end`."""
        words, text = self._log.words, self._record.passing_text(description)
        number = words[layout.CALLS] + 1
        entry = layout.ENTRIES + (number & self._mask) * layout.ENTRY_WORDS
        words[entry + layout.TEXT] = text
        words[entry + layout.BEGAN] = now() if began is None else began
        words[layout.CALLS] = number
        self._open.add(entry)
        return entry

    def end(self, entry: int) -> None:
        """Note that it has ended. One that fails has no end."""
        self._log.words[entry + layout.ENDED] = now()
        self._open.discard(entry)

    def close(self) -> None:
        """The communicator makes no more calls. What goes on ends now, unless the rank has failed: an end that is still
        to be noted would not come into the record. Idempotent."""
        if not self._record.failed:
            for entry in tuple(self._open):
                self.end(entry)
        self._log.close()


class FlightRecord:
    """The record of one rank, or of nothing: then all methods do the same to memory of this process.

    numbers   the numbers of texts, which no two texts of the rank share
    path      of the file; None if there is none
    """

    def __init__(self, memory: mmap.mmap | None = None, path: Path | None = None, descriptor: int = -1) -> None:
        self.numbers: Numbers = _LastingNumbers(1)
        self._passing: dict[Description, int] = {}
        self._passed = 0
        self.path = path
        self._memory = memory
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._logs = 0
        self._has_door = False
        forking.register(self)

    @classmethod
    def create(cls, world: str, rank: int, facts: Mapping[str, Any]) -> FlightRecord:
        """The record of a rank in a file of the folder of `world`; one of nothing if there can be no file, which is
        logged, since no call needs it.

        world  a name that all ranks of the world share, and no other world that this host remembers
        facts  of the rank: numbers and short texts
        """
        if fcntl is None:
            return cls()
        try:
            folder = new_folder(world)
            path = folder / f"rank-{rank}{layout.SUFFIX}"
            memory, descriptor = _map(path)
        except OSError as error:
            log.info("there is no flight record: %s", error)
            return cls()
        put_packed(memory, layout.FACTS_AT, layout.FAILURE_AT, {"world": world, "rank": rank, **facts})
        memory[: len(layout.MAGIC)] = layout.MAGIC
        return cls(memory, path, descriptor)

    def call_log(self, name: str, size: int, index: int, label: str) -> CallLog:
        """A log for the calls of a communicator, until it is closed.

        name   of the communicator, the same on all its ranks
        size   the number of its ranks; `index` is this rank's place among them
        label  distinguishes the communicators of a rank for people
        """
        with self._lock:
            at = self._place()
            if at is None or self._memory is None:
                return _private_log()
            words = np.frombuffer(self._memory, np.int64, layout.log_words(layout.KEPT), at)
            words[:] = 0
            put_packed(
                self._memory, at + 8 * layout.NAME, at + 8 * layout.ENTRIES, [name[:100], size, index, label[:60]]
            )
            words[layout.IN_USE] = layout.USED
            return CallLog(words, kept=layout.KEPT, timed=True, free=lambda: self._free.append(at))

    def note_log(self, name: str, size: int, index: int, label: str) -> NoteLog:
        """A log for what a communicator does beside its calls. Arguments as for `call_log`; `name` is that of the
        communicator with an ending of the log's own."""
        return NoteLog(self, self.call_log(name, size, index, label))

    def passing_text(self, description: Description) -> int:
        """The number of a text that stays for a while only, and displaces none of the others. One that is asked for
        often keeps its number."""
        with self._lock:
            kept = layout.TEXTS - layout.LASTING
            number = self._passing.get(description)
            if (
                number is None
                or self._passed - number // layout.TEXTS * kept - number % layout.TEXTS + layout.LASTING > kept // 2
            ):
                if len(self._passing) >= kept:
                    self._passing.clear()
                self._passed += 1
                number = self._passed // kept * layout.TEXTS + layout.LASTING + self._passed % kept
                self._passing[description] = number
                self.describe(number, description)
            return number

    def describe(self, number: int, fields: Sequence[Any]) -> None:
        """Keep what is said of calls with the text `number`: `fields` are numbers and short texts."""
        memory = self._memory
        if memory is None:
            return
        short = [field[:_LONGEST] if isinstance(field, str) else field for field in fields]
        data = pack(short)
        while len(data) > _TEXT_ROOM:
            longest = max(range(len(short)), key=lambda at: len(short[at]) if isinstance(short[at], str) else 0)
            short[longest] = short[longest][: len(short[longest]) * 2 // 3]
            data = pack(short)
        with _while_open():
            put_text(memory, number, data)

    def fail(self, cause: Mapping[str, Any]) -> None:
        """Note the failure that ended the world. The first one stays."""
        memory = self._memory
        if memory is None:
            return
        short = {key: value[:1000] if isinstance(value, str) else value for key, value in cause.items()}
        with _while_open():
            if _word(memory, layout.STATE) == layout.OPEN:
                put_packed(memory, layout.FAILURE_AT, layout.HEAD_BYTES, short)
                _end(memory, layout.FAILED)

    @property
    def failed(self) -> bool:
        """True if a failure is noted."""
        memory = self._memory
        with _while_open():
            return memory is not None and _word(memory, layout.STATE) == layout.FAILED
        return False

    def open_door(self, door: Door) -> None:
        """Write the door of the world beside the record, until this is closed. Without a record, and where it cannot
        be written, there is none."""
        if self.path is not None:
            try:
                door.write(self.path.parent)
            except OSError as error:
                log.info("viewers cannot reach the ranks: %s", error)
            else:
                self._has_door = True

    def close(self) -> None:
        """Note that the world was closed; the file stays. Idempotent."""
        if self._has_door and self.path is not None:
            remove_door(self.path.parent)
        self._has_door = False
        with self._lock:  # a thread may be making a log
            memory, self._memory = self._memory, None
        if memory is not None:
            if _word(memory, layout.STATE) == layout.OPEN:
                _end(memory, layout.CLOSED)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the memory keeps a descriptor of its own
            with contextlib.suppress(BufferError):  # a communicator that was not closed: the memory ends with it
                memory.close()
        self._release()

    def after_fork(self) -> None:
        """In a forked child, which is no rank: record nothing, and do not keep the lock that says that the rank
        lives."""
        self._memory = None
        self._has_door = False
        self._lock = threading.Lock()
        self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _place(self) -> int | None:
        """The place of a new log; None if there is no room."""
        if self._memory is None:
            return None
        with contextlib.suppress(IndexError):
            return self._free.pop()
        if self._logs == layout.MOST_LOGS:
            return None
        at = layout.LOGS_AT + self._logs * layout.LOG_BYTES
        try:
            _allocate(self._descriptor, at, layout.LOG_BYTES)
        except OSError as error:
            log.info("the calls of a communicator are not recorded: %s", error)
            return None
        self._logs += 1
        struct.pack_into("q", self._memory, 8 * layout.LOGS, self._logs)
        return at


class _LastingNumbers(Numbers):
    """The numbers of texts whose slots are not those that stay for a while only."""

    def __next__(self) -> int:
        number = super().__next__()
        return number // layout.LASTING * layout.TEXTS + number % layout.LASTING


def _private_log() -> CallLog:
    words = np.zeros(layout.log_words(layout.FEWEST_KEPT), np.int64)
    return CallLog(words, kept=layout.FEWEST_KEPT, timed=False, free=lambda: None)


def _while_open() -> contextlib.AbstractContextManager[None]:
    """For a write to memory that another thread may close: it raises ValueError then, and nothing is noted."""
    return contextlib.suppress(ValueError)


def _word(memory: mmap.mmap, index: int) -> int:
    found: int = struct.unpack_from("q", memory, 8 * index)[0]
    return found


def _end(memory: mmap.mmap, state: int) -> None:
    struct.pack_into("q", memory, 8 * layout.ENDED_AT, now())
    struct.pack_into("q", memory, 8 * layout.STATE, state)


def _map(path: Path) -> tuple[mmap.mmap, int]:
    """The memory of a new file, and its descriptor, which is locked as long as the process lives. Readers find the
    file once it is locked."""
    made = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _allocate(descriptor, 0, layout.LOGS_AT)
        size = layout.LOGS_AT + layout.MOST_LOGS * layout.LOG_BYTES
        os.truncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        os.replace(made, path)
        return memory, descriptor
    except BaseException:
        os.close(descriptor)
        made.unlink(missing_ok=True)
        raise


def _allocate(descriptor: int, at: int, count: int) -> None:
    """Have the file system keep room. Raises OSError: memory without room would end the process when it is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, at, count)
    else:
        os.pwrite(descriptor, bytes(count), at)
