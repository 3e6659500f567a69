"""Events of other threads for a thread that waits on a selector, and the two threads of an elastic job."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from collectives.launch.job import Discovery, DiscoveryError, NamedHost, discovery_mark
from collectives.launch.processes import marked, signal_process
from collectives.membership import Change, History
from transports.errors import RondeError
from transports.rendezvous import first_meeting
from transports.store import Store

FIND_SECONDS: Final = 1.0
"""Time between two looks for hosts, as in horovodrun."""

_HISTORY_SECONDS: Final = 0.2
"""Time for the thread to notice that it is to end."""


class Mailbox:
    """Calls functions in the thread of a selector. Any thread may `post` them. A context."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._looks_since: float | None = None
        os.set_blocking(self._read, False)
        selector.register(self._read, selectors.EVENT_READ, self._deliver)

    def post(self, call: Callable[[], None]) -> None:
        """Call it in the selector's thread."""
        self._calls.put(call)
        os.write(self._write, b"\0")

    def watch_hosts(
        self, discovery: Discovery, found: Callable[[Sequence[NamedHost]], None], failed: Callable[[str], None]
    ) -> None:
        """Look for hosts in a thread of its own; once, if they never change."""
        self._start("ronde-discovery", partial(self._find_hosts, discovery, found, failed))

    @property
    def looks_for(self) -> float:
        """The seconds that the present look for hosts has taken so far; 0 if there is none."""
        since = self._looks_since
        return 0.0 if since is None else time.monotonic() - since

    def watch_changes(
        self,
        store: Store,
        met: Callable[[Sequence[int]], None],
        changed: Callable[[Change], None],
        failed: Callable[[str], None],
    ) -> None:
        """Wait for the first world and then read the changes of the ranks, in a thread of its own. It closes the
        store."""
        self._start("ronde-history", partial(self._read_history, store, met, changed, failed))

    def close(self) -> None:
        """End the threads, and the command of a look for hosts. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            for pid in marked({discovery_mark()}):
                signal_process(pid, signal.SIGKILL)
            for thread in self._threads:
                thread.join(2 * _HISTORY_SECONDS)
            self._selector.unregister(self._read)
            if not any(thread.is_alive() for thread in self._threads):
                os.close(self._read)
                os.close(self._write)

    def _start(self, name: str, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _deliver(self) -> None:
        os.read(self._read, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()

    def _find_hosts(
        self, discovery: Discovery, found: Callable[[Sequence[NamedHost]], None], failed: Callable[[str], None]
    ) -> None:
        while not self._closing.is_set():
            self._looks_since = time.monotonic()
            try:
                hosts = discovery.find()
            except DiscoveryError as error:
                self.post(partial(failed, str(error)))
            else:
                self.post(partial(found, hosts))
                if not discovery.changes:
                    return
            finally:
                self._looks_since = None
            self._closing.wait(FIND_SECONDS)

    def _read_history(
        self,
        store: Store,
        met: Callable[[Sequence[int]], None],
        changed: Callable[[Change], None],
        failed: Callable[[str], None],
    ) -> None:
        with contextlib.closing(store), contextlib.closing(History(store)) as history:
            try:
                first = None
                while first is None and not self._closing.is_set():
                    first = first_meeting(store, time.monotonic() + _HISTORY_SECONDS)
                self.post(partial(met, first or ()))
                while not self._closing.is_set():
                    change = history.wait(time.monotonic() + _HISTORY_SECONDS)
                    if change is not None:
                        self.post(partial(changed, change))
            except RondeError as error:
                if not self._closing.is_set():
                    self.post(partial(failed, str(error)))
