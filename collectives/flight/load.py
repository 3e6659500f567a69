"""The load of a process: the time of its threads on a processor, and in wait for one. The kernel counts both."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Load(NamedTuple):
    """Nanoseconds of all threads of a process.

    running   on a processor
    delayed   ready to run, while other threads had the processors
    """

    running: int
    delayed: int


def load_of(pid: int) -> Load | None:
    """The load of a process; None where the kernel does not tell."""
    running = delayed = 0
    found = False
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                fields = (thread / "schedstat").read_text().split()
            except OSError:  # the thread has ended meanwhile
                continue
            if len(fields) >= 2:
                running, delayed, found = running + int(fields[0]), delayed + int(fields[1]), True
    except (OSError, ValueError):
        return None
    return Load(running, delayed) if found else None
