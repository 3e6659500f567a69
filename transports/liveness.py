"""Liveness of other processes of the host, from the kernel: alive, stopped, replaced by another program, or ended.

The end of a process is detected by pidfd_open(2) where it exists, else by process id and start time; a stop and another
program by proc(5).
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass
from typing import Final

STOPPED_SECONDS: Final = 0.5
"""Seconds for which a process must be seen stopped."""
_HIGHEST_ID: Final = (1 << 31) - 1
_WORD: Final = (1 << 64) - 1
LONGEST_GAP: Final = 0.3
"""Maximum seconds between two observations. After a longer gap the observer itself did not run."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process. Its start time distinguishes it from a later process with its id (0: unknown on this system).

    `space` is the namespace of the id and of the time (0: there is only one).
    """

    pid: int
    start: int
    space: int

    @classmethod
    def own(cls) -> Identity:
        """The calling process."""
        start = space = 0
        with contextlib.suppress(OSError):  # not Linux
            start = _start_of(os.getpid())
            space = _space()
        return cls(os.getpid(), start, space)

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Another process in this one's namespace. Raises OSError if it has ended, or the system does not tell."""
        start = _start_of(pid)
        if not start:
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(pid, start, _space())


def _space() -> int:
    """The namespaces of ids and of time of this process, as one number of 64 bits: from other ones the same process has
    another id or start time. Raises OSError."""
    ids = os.stat("/proc/self/ns/pid").st_ino
    times = os.stat("/proc/self/ns/time").st_ino if os.path.exists("/proc/self/ns/time") else 0  # since Linux 5.6
    return (ids << 32 ^ times) & _WORD


class Steady:
    """Measures how long an observed value has not changed.

    After more than `gap` seconds between two observations the observer itself did not run (it was stopped, or starved),
    and the measurement begins anew. So no process is blamed for a pause that stopped the observer too.
    """

    __slots__ = ("_gap", "_last", "_since", "_value")

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._value: object = None
        self._since = self._last = float("-inf")

    def seen(self, value: object, now: float) -> float:
        """Record the value at `now` (monotonic seconds); returns the seconds for which it has not changed."""
        if value != self._value or now - self._last > self._gap:
            self._value, self._since = value, now
        self._last = now
        return now - self._since

    def forget(self) -> None:
        """Begin anew."""
        self._last = float("-inf")


MOST_DESCRIPTORS: Final = 64
"""Number of processes that a `Watch` watches by a descriptor each. It looks at further ones in proc(5)."""


class Watch:
    """Watches processes. A rank in this process or in another namespace of ids cannot be watched and counts as alive.
    On systems without POSIX this applies to every rank."""

    def __init__(self) -> None:
        self._own = Identity.own()
        self._processes: dict[int, Identity] = {}
        self._stops: dict[int, Steady] = {}
        self._programs: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._poll: select.poll | None = None

    def add(self, rank: int, process: Identity) -> None:
        """Watch the process of a rank."""
        if os.name != "posix" or process.space != self._own.space or process.pid == self._own.pid:
            return
        if not 0 < process.pid <= _HIGHEST_ID:  # nonsense, not a process
            return
        self._processes[rank] = process
        self._stops[rank] = Steady(LONGEST_GAP)
        self._programs[rank] = _program_of(process)
        if not hasattr(os, "pidfd_open") or len(self._descriptors) >= MOST_DESCRIPTORS:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # it is dead, or the system refuses: `_dead` decides
            return
        if _dead(process):  # the descriptor may be that of a later process
            os.close(descriptor)
            return
        self._descriptors[descriptor] = rank
        self._poll = self._poll or select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def dead(self) -> list[int]:
        """The ranks whose process has ended."""
        suspects = self._processes.keys() - self._descriptors.values()
        if self._poll is not None:
            suspects |= {self._descriptors[descriptor] for descriptor, _ in self._poll.poll(0)}
        # A descriptor may refer to another file: other code may have closed all descriptors.
        return [rank for rank in sorted(suspects) if _dead(self._processes[rank])]

    def stopped(self, seconds: float = STOPPED_SECONDS) -> list[int]:
        """The ranks whose process is stopped (by SIGSTOP, or Ctrl-Z; not by a debugger), and was stopped in every call
        of the last `seconds`. Call it more often than every LONGEST_GAP."""
        now, found = time.monotonic(), []
        for rank, steady in self._stops.items():
            stopped = _stopped(self._processes[rank])
            if steady.seen(stopped, now) >= seconds and stopped:
                found.append(rank)
        return found

    def replaced(self) -> list[int]:
        """The ranks whose process has become another program by exec(3) since it was added: it runs, and is no rank."""
        found = []
        for rank, before in self._programs.items():
            now = _program_of(self._processes[rank]) if before else 0
            if now not in (0, before):
                found.append(rank)
        return found

    def close(self) -> None:
        """Release the descriptors. Idempotent."""
        self._poll = None
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):  # likewise
                os.close(descriptor)
        self._descriptors.clear()
        self._processes.clear()
        self._stops.clear()
        self._programs.clear()


def is_running(process: Identity) -> bool:
    """True if a process of this host runs; False if it has ended, or if that is unknown: it is in another namespace of
    ids, or there is no POSIX. (os.kill of Windows ends a process, whatever the signal.)"""
    return os.name == "posix" and process.space == Identity.own().space and not _dead(process)


def _dead(process: Identity) -> bool:
    try:
        if process.start:
            return _start_of(process.pid) != process.start
        os.kill(process.pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # unknown
        return False
    return False


def _stopped(process: Identity) -> bool:
    try:
        return bool(process.start) and _state_of(process.pid) == (b"T", process.start)
    except OSError:  # it has ended, or its state is unknown
        return False


def _program_of(process: Identity) -> int:
    """A number that changes when the process becomes another program: the address at which its stack begins. 0 if it
    has ended, or if the system does not tell."""
    try:
        fields = _fields(process.pid)
    except OSError:
        return 0
    return int(fields[25]) if process.start and int(fields[19]) == process.start else 0


def parent_of(pid: int) -> int:
    """The id of a process's parent, 0 if that is in another namespace. Raises OSError."""
    return int(_fields(pid)[1])


def children_of(pid: int) -> list[int]:
    """The ids of a process's children. Raises OSError where there is no proc(5)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                if parent_of(int(name)) == pid:
                    found.append(int(name))
    return found


def _start_of(pid: int) -> int:
    """The start time of a process in clock ticks, 0 if it has ended and is a zombie. Raises OSError."""
    state, start = _state_of(pid)
    return 0 if state in (b"Z", b"X") else start


def _state_of(pid: int) -> tuple[bytes, int]:
    """State and start time of a process. Raises OSError."""
    fields = _fields(pid)
    return fields[0], int(fields[19])


def _fields(pid: int) -> list[bytes]:
    """The fields of a process in proc(5), from its state on. Raises OSError.

    They are those of its first thread: an emulator of another processor answers for /proc/PID/stat itself, of its own
    process alone, and with a start time of 0.
    """
    with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
