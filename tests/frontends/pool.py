"""Rank processes that stay, so that a framework is imported once and not for every test.

pool = Pool(2)
results = pool.run(function, *args, transport="shm")     # function(*args) in every rank, `collectives.init()` works
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from transports.auth import new_secret
from transports.rendezvous.bootstrap import Job, job_to_environment
from transports.rendezvous.server import TcpStoreServer

BOUND = 90.0


class RankError(AssertionError):
    """What the ranks raised, with their tracebacks."""


class Pool:
    """`size` processes, started with the first run. Those of a run that did not end well are replaced."""

    def __init__(self, size: int, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is what the processes have beside this one's, from the first."""
        self.size = size
        self._environment = dict(environment or {})
        self._ranks: list[tuple[Any, Connection]] = []

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        transport: str = "shm",
        bound: float = BOUND,
        ranks: int | None = None,
        **settings: Any,
    ) -> list[Any]:
        """function(*args) in every rank, which finds its job in the environment; the results in rank order.

        `function` must be importable. `ranks`, if given, is how many of the processes take part. `settings` are
        Ronde's, by name. Raises RankError.
        """
        self._start()
        size = ranks or self.size
        secret = new_secret()
        given = {"transport": transport, "timeout": 60, **settings}
        variables = {f"RONDE_{name.upper()}": str(value) for name, value in given.items()}
        with TcpStoreServer("127.0.0.1", secret=secret) as server:
            for rank, (_, link) in enumerate(self._ranks[:size]):
                job = Job(rank, size, server.url, secret, rank, size, "test")
                link.send((function, args, variables | job_to_environment(job), bound))
            outcomes = self._collect(size, time.monotonic() + bound)
        missing = [rank for rank in range(size) if rank not in outcomes]
        failed = {rank: text for rank, (text, _) in outcomes.items() if text}
        if missing or failed:
            self.close()
            told = "".join(f"\n--- rank {rank}:\n{text}" for rank, text in sorted(failed.items()))
            raise RankError(f"no result within {bound:g} s from ranks {missing}{told}" if missing else told)
        return [outcomes[rank][1] for rank in range(size)]

    def close(self) -> None:
        """End the processes."""
        for process, link in self._ranks:
            link.close()
            process.join(3.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._ranks.clear()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._environment.items():
                patch.setenv(name, value)
            while len(self._ranks) < self.size:
                near, far = context.Pipe()
                process = context.Process(target=_serve, args=(far,), daemon=True)
                process.start()
                far.close()
                self._ranks.append((process, near))

    def _collect(self, size: int, deadline: float) -> dict[int, tuple[str, Any]]:
        outcomes: dict[int, tuple[str, Any]] = {}
        waiting = {link: rank for rank, (_, link) in enumerate(self._ranks[:size])}
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for link in ready:
                assert isinstance(link, Connection)
                rank = waiting.pop(link)
                try:
                    outcomes[rank] = link.recv()
                except EOFError:
                    self._ranks[rank][0].join(5.0)
                    outcomes[rank] = f"the process ended, exit code {self._ranks[rank][0].exitcode}", None
                if outcomes[rank][0]:  # the others may be waiting for this one
                    deadline = min(deadline, time.monotonic() + 15.0)
        return outcomes


def _serve(link: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, args, variables, bound = link.recv()
            faulthandler.dump_traceback_later(0.9 * bound)
            for name in [name for name in os.environ if name.startswith("RONDE_")]:
                del os.environ[name]
            os.environ.update(variables)
            try:
                link.send(("", function(*args)))
            except BaseException:
                link.send((traceback.format_exc(), None))
            faulthandler.cancel_dump_traceback_later()
