"""Ranks of `run` as new processes of this machine, for every transport that connects processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from collectives.config import Config
from collectives.launch.calls.notebook import RankOutput
from collectives.launch.calls.outcome import Failure, Outcome, load
from collectives.launch.calls.worker import send, without_interrupts, work
from collectives.launch.processes import describe_status
from transports import launchers, registry, rendezvous
from transports.auth import new_secret
from transports.interfaces import choose_address
from transports.moments import seconds_until

GRACE: Final = 3.0
"""Seconds for processes to end by themselves, and then after SIGTERM, before the next harder means."""


@dataclass
class _Process:
    rank: int
    process: BaseProcess
    results: connection.Connection
    received: bytearray = field(default_factory=bytearray)
    open: bool = True
    outcome: Outcome | None = None
    pidfd: int | None = None

    def watch(self, resources: contextlib.ExitStack) -> None:
        """Watch the started process by a descriptor of its own, if the system has them. `resources` closes it."""
        if hasattr(os, "pidfd_open") and self.process.pid is not None:
            with contextlib.suppress(OSError):  # then by the sentinel
                self.pidfd = os.pidfd_open(self.process.pid)
                resources.callback(os.close, self.pidfd)

    @property
    def end(self) -> int:
        """It is ready once the process has ended; the sentinel only once all that it has forked have ended too."""
        return self.process.sentinel if self.pidfd is None else self.pidfd

    def read(self) -> None:
        """Read the pieces that have arrived; the last one completes the outcome."""
        try:
            while self.open and self.outcome is None and self.results.poll():
                piece = self.results.recv_bytes()
                self.received += piece
                if not piece:
                    self.outcome = load(self.rank, bytes(self.received))
        except (EOFError, OSError):  # OSError: it has died in the middle of a piece
            self.open = False

    def check_exit(self) -> None:
        """Record a failure if the process has ended without sending an outcome."""
        if self.outcome is None and self.process.exitcode is not None:
            self.read()
        if self.outcome is None and self.process.exitcode is not None:
            self.outcome = Failure(
                self.rank,
                RuntimeError(
                    f"rank {self.rank} (pid {self.process.pid}) {describe_status(self.process.exitcode)} before the "
                    "function returned. If the function was not even called: a script must call run under "
                    "if __name__ == '__main__'"
                ),
            )


class ProcessRanks:
    """`np` processes that call a function. See `outcome.Ranks`.

    payload  the pickled (fn, args, kwargs)
    pickler  as for `worker.work`
    output   what shows the output of the ranks; None leaves them this process's own streams
    """

    def __init__(
        self,
        np: int,
        config: Config,
        payload: bytes,
        pickler: Callable[[object], bytes],
        output: RankOutput | None = None,
    ) -> None:
        self._np = np
        self._config = config
        self._payload = payload
        self._pickler = pickler
        self._output = output
        self._processes: list[_Process] = []
        self._resources = contextlib.ExitStack()

    def start(self) -> None:
        """Start the processes, and the store by which they find each other."""
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "run: this process is a daemon of multiprocessing, such as a worker of a Pool, and may start no "
                "processes; use concurrent.futures.ProcessPoolExecutor, or transport='local'"
            )
        main = sys.modules["__main__"]
        program = getattr(main, "__file__", None)
        if program is not None and getattr(main, "__spec__", None) is None and not os.path.exists(program):
            raise RuntimeError(
                f"run: each rank loads this program again, and its file {program!r} does not exist; start it from a "
                "file or by python -c, or use transport='local'"
            )
        context = multiprocessing.get_context("spawn")
        secret = new_secret()
        server = rendezvous.TcpStoreServer(choose_address("", None), secret=secret, tls=self._config.load_tls())
        self._resources.enter_context(server)
        name = secrets.token_hex(4)
        if self._output is not None:
            self._resources.callback(self._output.close)
        for rank in range(self._np):
            job = launchers.Job(rank, self._np, server.url, secret, rank, self._np, name)
            receiver, sender = context.Pipe(duplex=False)
            self._resources.callback(receiver.close)
            call, feed = context.Pipe(duplex=False)
            # Not an argument of the process: `start` would wait until it is read, which a process that dies never does.
            feeder = threading.Thread(target=_feed, args=(feed, self._payload), name=f"ronde-call-{rank}", daemon=True)
            with sender, call, contextlib.ExitStack() as ends:
                stream = None if self._output is None else ends.enter_context(self._output.pipe(rank))
                environment = launchers.job_to_environment(job)
                arguments = (rank, environment, self._config.transport, call, self._pickler, sender, stream)
                process = context.Process(target=work, args=arguments, name=f"ronde-rank-{rank}")
                self._processes.append(_Process(rank, process, receiver))  # an interrupt finds it, to end it
                with without_interrupts():
                    process.start()
            self._processes[-1].watch(self._resources)
            feeder.start()
        if self._output is not None:
            self._output.start()

    def receive(self, until: float) -> list[Outcome]:
        """Wait for outcomes, at most until that moment."""
        unfinished = [process for process in self._processes if process.outcome is None]
        waiting: list[Any] = [process.end for process in unfinished]
        waiting += [process.results for process in unfinished if process.open]
        connection.wait(waiting, seconds_until(until))
        for process in unfinished:
            process.read()
            process.check_exit()
        return [process.outcome for process in unfinished if process.outcome is not None]

    def close(self, *, abort: bool) -> None:
        """Wait for the processes (not with `abort`), then terminate and at last kill them. Releases everything, also
        the shared memory that those have named which could not do so themselves."""
        with self._resources:
            started = [process for process in self._processes if process.process.pid is not None]
            for end in ([] if abort else [None]) + [BaseProcess.terminate, BaseProcess.kill]:
                deadline = time.monotonic() + GRACE
                for process in started:
                    if end is not None:
                        end(process.process)
                for process in started:
                    if connection.wait([process.end], seconds_until(deadline)):
                        process.process.join()  # a sentinel is ready a moment before the process has ended
            if any(process.process.exitcode for process in started):
                registry.remove_abandoned(self._config.transport_options("shm").directory)
            for process in started:
                if process.process.exitcode is not None:
                    process.process.close()


def _feed(call: connection.Connection, payload: bytes) -> None:
    """Give a rank its call; one that has ended does not need it."""
    with call:
        send(call, payload)
