"""Ranks as threads of this process, for the transport "local"."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from collectives.communicator import Communicator
from collectives.config import Config
from collectives.launch.outcome import Outcome, Success, failure
from collectives.world import connect, world_scope
from transports.errors import AbortedError
from transports.rendezvous.bootstrap import join
from transports.rendezvous.memory import MemoryStore

GRACE: Final = 2.0
"""Seconds that threads have to notice that they are to end."""


class ThreadRanks:
    """`np` threads, each with its own world communicator, that call a function. See `outcome.Ranks`."""

    def __init__(
        self, np: int, config: Config, call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    ) -> None:
        self._np = np
        self._config = config
        self._call = call
        self._store = MemoryStore()
        self._threads: list[threading.Thread] = []
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._communicators: list[Communicator] = []
        self._ended = False

    def start(self) -> None:
        """Start the threads."""
        for rank in range(self._np):
            thread = threading.Thread(target=self._live, args=(rank,), name=f"ronde-rank-{rank}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def receive(self, until: float) -> list[Outcome]:
        """The next outcome, or none by then."""
        timeout = min(until - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            return [self._outcomes.get(timeout=max(0.0, timeout))]
        except queue.Empty:
            return []

    def end(self, *, at_once: bool) -> None:
        """Wait for the threads, after making them give up if `at_once`; for those that do not, a moment only."""
        if at_once:
            with self._lock:
                self._ended = True
                for communicator in self._communicators:
                    communicator.current.abort("run is ending its ranks")
        self._store.close()
        deadline = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _live(self, rank: int) -> None:
        fn, args, kwargs = self._call
        try:
            deadline = time.monotonic() + self._config.connect_timeout
            communicator = connect(join(rank, self._np, self._store, deadline=deadline), self._config, deadline)
            with communicator, world_scope(communicator):
                self._enter(communicator)
                value = fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  whatever it is, the caller of run must learn of it
            self._outcomes.put(failure(rank, error))
        else:
            self._outcomes.put(Success(rank, value))

    def _enter(self, communicator: Communicator) -> None:
        with self._lock:
            self._communicators.append(communicator)
            if self._ended:
                raise AbortedError("run is ending its ranks")
