"""Ranks of `run` as threads of this process, for the transport "local"."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from collectives.communicator import Communicator
from collectives.config import Config
from collectives.launch.calls.outcome import Outcome, Success, failure
from collectives.startup import connect
from collectives.world_communicator import world_scope
from transports.errors import AbortedError
from transports.rendezvous import MemoryStore, join

GRACE: Final = 2.0
"""Seconds for threads to end after their communicators were aborted."""


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
        self._aborted = False

    def start(self) -> None:
        """Start the threads."""
        for rank in range(self._np):
            thread = threading.Thread(target=self._call_function, args=(rank,), name=f"ronde-rank-{rank}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def receive(self, until: float) -> list[Outcome]:
        """Wait for an outcome, at most until that moment."""
        timeout = min(until - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            return [self._outcomes.get(timeout=max(0.0, timeout))]
        except queue.Empty:
            return []

    def close(self, *, abort: bool) -> None:
        """Wait up to GRACE seconds for the threads; with `abort`, after aborting their communicators."""
        if abort:
            with self._lock:
                self._aborted = True
                for communicator in self._communicators:
                    communicator.current.abort("run is ending its ranks")
        self._store.close()
        deadline = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _call_function(self, rank: int) -> None:
        fn, args, kwargs = self._call
        try:
            deadline = time.monotonic() + self._config.connect_timeout
            communicator = connect(join(rank, self._np, self._store, deadline=deadline), self._config, deadline)
            with communicator, world_scope(communicator):
                self._register(communicator)
                value = fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  the caller of run must learn of any error
            self._outcomes.put(failure(rank, error))
        else:
            self._outcomes.put(Success(rank, value))

    def _register(self, communicator: Communicator) -> None:
        with self._lock:
            self._communicators.append(communicator)
            if self._aborted:
                raise AbortedError("run is ending its ranks")
