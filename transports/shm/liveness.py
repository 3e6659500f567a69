"""Which processes of the host are still alive: pidfd_open(2) where possible, else process ids and start times."""

from __future__ import annotations

import contextlib
import os
import select
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told from a later one with its id by its start time (0: not known on this system).

    `space` is the namespace that the id is counted in (0: there is only one).
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
            space = os.stat("/proc/self/ns/pid").st_ino
        return cls(os.getpid(), start, space)


class Watch:
    """Watches processes. A rank of the own process or of another namespace of ids cannot be watched: it never dies."""

    def __init__(self) -> None:
        self._own = Identity.own()
        self._ranks: dict[int, int] = {}
        self._poll = select.poll()
        self._others: dict[int, Identity] = {}

    def add(self, rank: int, process: Identity) -> None:
        """Watch the process of a rank."""
        if process.space != self._own.space or process.pid == self._own.pid:
            return
        self._others[rank] = process
        if not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # it is dead, or the system refuses: the slower way tells
            return
        if _dead(process):  # the descriptor may be that of a later process
            os.close(descriptor)
            return
        del self._others[rank]
        self._ranks[descriptor] = rank
        self._poll.register(descriptor, select.POLLIN)

    def dead(self) -> list[int]:
        """The ranks whose process has ended."""
        ended = [self._ranks[descriptor] for descriptor, _ in self._poll.poll(0)] if self._ranks else []
        return ended + [rank for rank, process in self._others.items() if _dead(process)]

    def close(self) -> None:
        """Release the descriptors. Idempotent."""
        for descriptor in self._ranks:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._ranks.clear()
        self._others.clear()


def _dead(process: Identity) -> bool:
    try:
        if process.start:
            return _start_of(process.pid) != process.start
        os.kill(process.pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # it cannot be told
        return False
    return False


def _start_of(pid: int) -> int:
    """The start time of a process in clock ticks (proc(5)), 0 if it has ended and is a zombie. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
