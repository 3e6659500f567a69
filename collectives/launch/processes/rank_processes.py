"""The processes of a host's ranks. Each rank leads a process group of its own, with everything that it starts.

A process that has left the group, as daemons do, is a stray. It has the variables of its rank, by which it is found
when the ranks have ended. One that is to outlive the job must begin without the variable RONDE_JOB.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collectives.launch.processes.guardian import marked
from collectives.launch.processes.processes import Guardian, group_of, signal_group, signal_process, spawn

_MARKS: Final = ("RONDE_JOB", "RONDE_STORE", "RONDE_RANK", "RONDE_JOIN")
"""The variables that together no other rank has."""


class Reaper:
    """Collects the ended ones among the children added. Call `collect` after every SIGCHLD.

    With pidfds (Linux), children are returned in the order in which they ended, because epoll reports descriptors in
    the order in which they became ready. Elsewhere children that ended between two calls are returned in the order in
    which they were added.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._pidfds: dict[int, int] = {}
        self._epoll: selectors.BaseSelector | None = None

    def add(self, pid: int) -> None:
        """Watch `pid`, a child of this process. Raises OSError when there are no descriptors left."""
        self._pids.append(pid)
        if hasattr(os, "pidfd_open") and hasattr(selectors, "EpollSelector"):
            if self._epoll is None:
                self._epoll = selectors.EpollSelector()
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                return  # a sandbox forbids it, or an emulator does not have it
            self._epoll.register(self._pidfds[pid], selectors.EVENT_READ, pid)

    def collect(self) -> list[tuple[int, int]]:
        """(pid, status) of the children that ended since the last call; status as of `os.waitstatus_to_exitcode`."""
        ready = [] if self._epoll is None else [key.data for key, _ in self._epoll.select(0)]
        ended = []
        for pid in ready + [pid for pid in self._pids if pid not in self._pidfds]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append((pid, os.waitstatus_to_exitcode(status)))
                self._remove(pid)
        return ended

    def wait(self, pid: int) -> int:
        """Wait for the end of a child that was added and not collected yet; its status."""
        _, status = os.waitpid(pid, 0)
        self._remove(pid)
        return os.waitstatus_to_exitcode(status)

    def collect_orphans(self, group: int) -> None:
        """Collect ended processes that this one adopted, in a process group whose leader was collected."""
        if hasattr(os, "waitid"):
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                return

    def collect_stray(self, pid: int) -> None:
        """Collect a process that this one may have adopted, if it has ended."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def _remove(self, pid: int) -> None:
        self._pids.remove(pid)
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None and self._epoll is not None:
            self._epoll.unregister(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Release the descriptors. Idempotent."""
        for pid in list(self._pids):
            self._remove(pid)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None


@dataclass
class RankProcess:
    """The process of a rank, and its process group of the same number.

    marks         the variables by which processes are known that it has started; empty if it has none
    status        its status as of `os.waitstatus_to_exitcode`; None while it runs
    group_exists  True while processes of its group may be left
    last_signal   the last signal that the launcher sent it while it ran; 0 if none
    """

    rank: int
    pid: int
    marks: frozenset[bytes] = frozenset()
    status: int | None = None
    group_exists: bool = True
    last_signal: int = 0


class RankProcesses:
    """All rank processes of a host, in rank order. Nothing else waits for them."""

    def __init__(self, guardian: Guardian) -> None:
        self._reaper = Reaper()
        self._guardian = guardian
        self._by_pid: dict[int, RankProcess] = {}
        self._strays: set[int] = set()

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(self._by_pid.values())

    @property
    def all_gone(self) -> bool:
        """True once no process is left in any group, and no stray."""
        return not self._strays and not any(process.group_exists for process in self)

    def start(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str], descriptors: tuple[int, int, int]
    ) -> int:
        """Start a rank with these descriptors as stdin, stdout and stderr; its process id. Raises OSError if it cannot
        be started."""
        pid = spawn(command, environment, *descriptors)
        self._guardian.add(pid)
        marks: frozenset[bytes] = frozenset()
        if environment.get(_MARKS[0]):
            marks = frozenset(os.fsencode(f"{name}={environment[name]}") for name in _MARKS if name in environment)
            self._guardian.mark(marks)
        self._by_pid[pid] = RankProcess(rank, pid, marks)
        self._reaper.add(pid)
        return pid

    def collect(self) -> list[RankProcess]:
        """The processes that have ended since the last call, in the order in which they ended."""
        ended = []
        for pid, status in self._reaper.collect():
            self._by_pid[pid].status = status
            ended.append(self._by_pid[pid])
        for process in self:
            if process.group_exists and process.status is not None:
                self._reaper.collect_orphans(process.pid)
                self._check_group(process)
        if self._strays or (self._by_pid and all(process.status is not None for process in self)):
            self._find_strays()
        return ended

    def signal_groups(self, number: signal.Signals) -> None:
        """Send a signal to all ranks and everything that they started. Stopped processes go on, to handle it."""
        for process in self:
            self._signal(process, number)
        for stray in self._strays:
            signal_process(stray, number, signal.SIGCONT)

    def signal_group(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and everything that it started; to the latter alone if the rank has ended. Stopped
        processes go on, to handle it."""
        for process in [process for process in self if process.rank == rank]:
            self._signal(process, number)
            strays = self._strays_of([process])
            for stray in strays:
                signal_process(stray, number, signal.SIGCONT)
            self._strays |= strays  # to be collected

    def signal_ranks(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the ranks alone, while they run."""
        for process in self:
            if process.status is None:
                signal_process(process.pid, number)

    def give_up(self) -> None:
        """Wait for no process any more, though some are left."""
        for process in self:
            process.group_exists = False
        self._strays.clear()

    def kill(self) -> None:
        """Kill all processes that are left, and wait for those of the ranks."""
        self._find_strays()
        for stray in self._strays:
            signal_process(stray, signal.SIGKILL)
        for process in self:
            if process.group_exists:
                signal_group(process.pid, signal.SIGKILL)
                if process.status is None:
                    process.status = self._reaper.wait(process.pid)

    def close(self) -> None:
        """Kill all processes that are left, and release the descriptors. Idempotent."""
        self.kill()
        self.give_up()  # the system may use the numbers again
        self._reaper.close()

    def _find_strays(self) -> None:
        """Look for processes that have left the groups of their ranks. Those that have ended are collected."""
        for stray in self._strays:
            self._reaper.collect_stray(stray)
        self._strays = self._strays_of(self)

    def _strays_of(self, processes: Iterable[RankProcess]) -> set[int]:
        found = marked({process.marks for process in processes if process.marks})
        return {pid for pid in found if group_of(pid) not in self._by_pid}

    def _signal(self, process: RankProcess, number: signal.Signals) -> None:
        """Send a signal to the group of a process."""
        if process.group_exists:
            signal_group(process.pid, number, signal.SIGCONT)
            if process.status is None:
                process.last_signal = number
            else:
                self._check_group(process)

    def _check_group(self, process: RankProcess) -> None:
        """Forget the group of an ended process once it is empty: the system may use its number again."""
        if not signal_group(process.pid, 0):
            process.group_exists = False
            self._guardian.remove(process.pid)
