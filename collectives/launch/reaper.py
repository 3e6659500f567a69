"""Collects ended child processes with their status, in the order in which they ended.

The order helps to tell the first failure from its consequences.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors


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
