"""Ranks that come and go, as threads, for tests of `regroup`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from collectives import Communicator, Config, connect, wait_to_join, world_scope
from tests.worlds import COMPILED, SECRET
from transports.rendezvous import MemoryStore, join

SECONDS = 30.0


class Job:
    """A job in whose store processes meet, each in a thread of its own. `body(comm)` is called on every rank, with its
    communicator as the world. It may return the communicator that it ended with."""

    def __init__(self, transport: str, **settings: Any) -> None:
        given = {"transport": transport, "timeout": SECONDS, "calibrate": False, "compiled": COMPILED, **settings}
        self.config = Config.load({**given, "tcp": {"interface": "lo"}}, environment={})
        self.store = MemoryStore()
        self._pool = ThreadPoolExecutor(16)

    def start(self, size: int, body: Callable[[Communicator], Any]) -> list[Future[Any]]:
        """The first ranks."""

        def rank(number: int) -> Any:
            deadline = time.monotonic() + SECONDS
            group = join(number, size, self.store, secret=SECRET, deadline=deadline)
            return self._run(connect(group, self.config, deadline), body)

        return [self._pool.submit(rank, number) for number in range(size)]

    def come(
        self, body: Callable[[Communicator], Any], number: int | None = None, timeout: float = SECONDS
    ) -> Future[Any]:
        """A newcomer, which waits to be admitted."""

        def newcomer() -> Any:
            comm = wait_to_join(self.store, number=number, secret=SECRET, config=self.config, timeout=timeout)
            return self._run(comm, body)

        return self._pool.submit(newcomer)

    def wait_for_request(self, place: int) -> None:
        """Wait until the log of requests has an entry at `place`."""
        self.store.get(f"elastic/log/{place}", time.monotonic() + SECONDS)

    def close(self) -> None:
        self.store.close()
        self._pool.shutdown()

    def _run(self, comm: Communicator, body: Callable[[Communicator], Any]) -> Any:
        with comm, world_scope(comm):
            return body(comm)


@contextlib.contextmanager
def job(transport: str, **settings: Any) -> Iterator[Job]:
    made = Job(transport, **settings)
    try:
        yield made
    finally:
        made.close()
