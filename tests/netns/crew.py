"""Ranks as processes on the hosts of a Network: bounded, and their tracebacks brought home.

The processes are kept between jobs, since starting Python takes longer than most jobs. One that does not end its job
in time shows its stack, is killed, and replaced when the next job begins.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.collectives.launch.launcher import environment
from tests.netns.network import Host

BOUND = 40.0
"""Seconds after which a job has failed; those that end well take a few."""
_ROOT = Path(__file__).parents[2]
_DUMP_SECONDS = 5.0


class RankFailed(RuntimeError):
    """A rank raised what its job did not expect, or ended; `kind` is the name of the error's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Worker:
    """A process on a host that does one job after the other. See worker.py for its side."""

    def __init__(self, rank: int, host: Host) -> None:
        self.rank = rank
        self.host = host
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self.pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                host.command(sys.executable, "-m", "tests.netns.worker", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=[theirs.fileno()],
                env=environment({"PYTHONPATH": str(_ROOT)}),
            )

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def said(self) -> str:
        """Everything that it has written to stdout and stderr."""
        descriptor = self._words.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def dump(self) -> str:
        """Its stack, and everything else that it has written."""
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + _DUMP_SECONDS
        while "most recent call first" not in (text := self.said()) and time.monotonic() < end:
            time.sleep(0.01)  # faulthandler tells nobody when it has written
        return text

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        self._words.close()


class Crew:
    """A process for each rank, `hosts[rank]` being where it runs. A context: no process is left after it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)
        self._workers: dict[int, _Worker] = {}

    def begin(self, job: Callable[..., Any], *args: Any) -> Run:
        """Have every rank call `job(link, rank, *args)`, a function of a module; `link` is a worker.Link."""
        self._complete()
        for rank, worker in self._workers.items():
            worker.pipe.send((job, (rank, *args)))
        return Run(self, self._workers)

    def _complete(self) -> None:
        for rank, host in enumerate(self._hosts):
            if rank not in self._workers:
                self._workers[rank] = _Worker(rank, host)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to the process of a rank."""
        self._workers[rank].signal(number)

    def dismiss(self, ranks: Collection[int]) -> None:
        """Kill processes; the next job begins with new ones."""
        for rank in ranks:
            self._workers.pop(rank).close()

    def __enter__(self) -> Crew:
        try:
            self._complete()
        except BaseException:
            self.dismiss(list(self._workers))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss(list(self._workers))


class Run:
    """A job that all ranks of a crew are doing."""

    def __init__(self, crew: Crew, workers: dict[int, _Worker]) -> None:
        self._crew = crew
        self._busy = dict(workers)
        self._marks: dict[int, deque[str]] = {rank: deque() for rank in workers}
        self._results: dict[int, Any] = {}

    def tell(self, word: str) -> None:
        """Give all ranks what they wait for in Link.hear."""
        for worker in self._busy.values():
            worker.pipe.send(word)

    def await_mark(self, mark: str) -> None:
        """Wait until all ranks have said `mark`; what they said before it is forgotten."""
        missing = set(self._marks)
        deadline = time.monotonic() + BOUND
        while True:
            for rank in list(missing):
                while rank in missing and self._marks[rank]:
                    if self._marks[rank].popleft() == mark:
                        missing.remove(rank)
            if not missing:
                return
            over = sorted(missing & set(self._results))
            if over:
                raise AssertionError(f"ranks {over} ended before {mark!r}: {[self._results[rank] for rank in over]}")
            self._listen(deadline, f"say {mark!r}")

    def results(self, timeout: float = BOUND, ranks: Collection[int] | None = None) -> list[Any]:
        """The results of the job on `ranks`, by default on all, which have `timeout` seconds together. A rank's
        exception is RankFailed here."""
        wanted = sorted(self._marks if ranks is None else ranks)
        deadline = time.monotonic() + timeout
        while not all(rank in self._results for rank in wanted):
            self._listen(deadline, "end")
        return [self._results[rank] for rank in wanted]

    def abandon(self) -> None:
        """Kill the processes that have not ended the job."""
        self._crew.dismiss(list(self._busy))
        self._busy.clear()

    def _listen(self, deadline: float, expected: str) -> None:
        pipes = {worker.pipe: rank for rank, worker in self._busy.items()}
        ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
        if not ready:
            stories = "\n".join(f"rank {rank}:\n{worker.dump()}" for rank, worker in self._busy.items())
            late = sorted(self._busy)
            self.abandon()
            raise TimeoutError(f"ranks {late} did not {expected} in time\n{stories}")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes[pipe]
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError):
                said = self._busy[rank].said()
                self.abandon()
                raise RankFailed("", f"rank {rank} ended without a word; it wrote:\n{said}") from None
            if kind == "mark":
                self._marks[rank].append(value)
                continue
            worker = self._busy.pop(rank)
            if kind == "failed":
                self.abandon()
                name, trace = value
                raise RankFailed(name, f"rank {rank} on {worker.host.name} raised\n{trace}it wrote:\n{worker.said()}")
            self._results[rank] = value

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()
