"""Finds leaks of a piece of code: threads, descriptors, shared-memory files, processes."""

from __future__ import annotations

import contextlib
import gc
import glob
import multiprocessing
import os
import threading
import time
from types import TracebackType
from typing import Final

from transports.liveness import parent_of

SETTLE_PAUSE: Final = 0.01


class LeakError(AssertionError):
    """Something was left behind."""


class Leaks:
    """A context that raises LeakError at its end if there are new threads, open descriptors (where /proc/self/fd
    exists), files `directory`/ronde-*, or child processes since its beginning.

    A file in the memory of a foreign process is no leak: another world may be starting at the same time. Foreign is a
    process that neither this one nor a descendant has started. An orphan counts as a descendant.

    settle  seconds to wait for threads and processes that are just ending. An error of the body is raised instead.
    """

    def __init__(self, settle: float = 2.0, directory: str = "/dev/shm") -> None:
        self._settle = settle
        self._directory = directory
        self._threads: set[threading.Thread] = set()
        self._files: set[str] = set()
        self._before: set[str] = set()

    def __enter__(self) -> Leaks:
        _start_resource_tracker()
        self._threads = set(threading.enumerate())
        self._files = self._paths()
        self._before = self._inventory()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None and (left := self.found()):
            raise LeakError("left behind: " + "; ".join(left))

    def found(self) -> list[str]:
        """Descriptions of the leaks that remain after `settle` seconds."""
        deadline = time.monotonic() + self._settle
        if self._new_threads():
            gc.collect()  # a thread may end only with an object that only tracebacks of errors refer to
        for thread in self._new_threads():
            thread.join(max(0.0, deadline - time.monotonic()))
        left = self._inventory() - self._before
        if left:
            gc.collect()  # objects that only tracebacks of errors refer to are garbage, not leaks
            left &= self._inventory()  # later additions belong to other code
        while left and time.monotonic() < deadline:
            time.sleep(SETTLE_PAUSE)  # there is no event for the end of other descriptors, files and processes
            gc.collect()  # threads that have ended since may have left such garbage too
            left &= self._inventory()
        return [f"thread {thread.name!r}" for thread in self._new_threads()] + sorted(left)

    def _new_threads(self) -> list[threading.Thread]:
        here = threading.current_thread()
        return [thread for thread in threading.enumerate() if thread not in self._threads and thread is not here]

    def _inventory(self) -> set[str]:
        files = self._paths() - self._files
        if files:
            files -= foreign_files()
        return _descriptors() | {f"file {path}" for path in files} | _children()

    def _paths(self) -> set[str]:
        return set(glob.glob(f"{glob.escape(self._directory)}/ronde-*"))


def foreign_files() -> set[str]:
    """The files that foreign processes map. Empty where there is no proc(5)."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                parents[int(name)] = parent_of(int(name))
    found: set[str] = set()
    for pid in parents:
        if not _related(pid, parents):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:  # it has ended, or is another user's
                found.update(line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "/" in line)
    return found


def _related(pid: int, parents: dict[int, int]) -> bool:
    """True for this process, its descendants, and orphans."""
    if parents[pid] <= 1:
        return True
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False


def _descriptors() -> set[str]:
    """Open descriptors with their targets."""
    found: set[str] = set()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:  # not Linux
        return found
    for number in numbers:
        try:
            found.add(f"descriptor {number} ({os.readlink(f'/proc/self/fd/{number}')})")
        except FileNotFoundError:
            continue  # closed since, as is the descriptor of the listing itself
    return found


def _children() -> set[str]:
    """Child processes, including those that were not started by multiprocessing."""
    found = {str(process.pid) for process in multiprocessing.active_children()}
    for path in glob.glob("/proc/self/task/*/children"):
        try:
            with open(path) as file:
                found.update(file.read().split())
        except FileNotFoundError:
            continue  # the thread ended meanwhile
    return {f"process {pid}" for pid in found}


def _start_resource_tracker() -> None:
    """Start multiprocessing's helper process now: it stays until the interpreter ends, and is not a leak."""
    if os.name == "posix":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
