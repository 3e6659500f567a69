"""Which child ended, with what status, and in what order: the order tells the cause from its consequences."""

from __future__ import annotations

import os
import selectors


class Reaper:
    """Collects ended children among those added. Call `collect` after every SIGCHLD.

    Where there are pidfds (Linux), children that ended between two calls are told in the order in which they ended:
    epoll reports what became ready first first. Elsewhere their order is that of adding.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._pidfds: dict[int, int] = {}
        self._order: selectors.BaseSelector | None = None

    def add(self, pid: int) -> None:
        """Look after `pid`, a child of this process. Raises OSError when there are no descriptors left."""
        self._pids.append(pid)
        if hasattr(os, "pidfd_open") and hasattr(selectors, "EpollSelector"):
            if self._order is None:
                self._order = selectors.EpollSelector()
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except (PermissionError, NotImplementedError):  # a sandbox forbids it
                return
            self._order.register(self._pidfds[pid], selectors.EVENT_READ, pid)

    def collect(self) -> list[tuple[int, int]]:
        """(pid, status) of the children that have ended since; status as of `os.waitstatus_to_exitcode`."""
        first = [] if self._order is None else [key.data for key, _ in self._order.select(0)]
        ended = []
        for pid in first + [pid for pid in self._pids if pid not in self._pidfds]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append((pid, os.waitstatus_to_exitcode(status)))
                self._forget(pid)
        return ended

    def collect_orphans(self, group: int) -> None:
        """Free what is left of ended processes that this one has adopted, in a group whose leader was collected."""
        if hasattr(os, "waitid"):
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                return

    def _forget(self, pid: int) -> None:
        self._pids.remove(pid)
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None and self._order is not None:
            self._order.unregister(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Release the descriptors. Idempotent."""
        for pid in list(self._pids):
            self._forget(pid)
        if self._order is not None:
            self._order.close()
            self._order = None
