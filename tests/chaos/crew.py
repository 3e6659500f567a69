"""Processes that run cases on threads, so that one that hangs, or kills its process, cannot spoil the rest."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Final

from tests.chaos import thread_bed
from tests.chaos.case import Case
from tests.chaos.verdict import Finding, Outcome
from transports.shm.segments import default_directory

PATIENCE: Final = thread_bed.BOUND + 30.0
"""Seconds after which a process that runs a case is given up."""


class _Worker:
    """A process that runs one case after the other."""

    def __init__(self, patience: float, room: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        with theirs:
            self._process = context.Process(target=_work, args=(theirs, patience, room), name="chaos crew", daemon=True)
            self._process.start()
        self.case: Case | None = None
        self.until = 0.0

    def begin(self, case: Case) -> None:
        self.case, self.until = case, time.monotonic() + PATIENCE
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will tell
            self.pipe.send(case)

    def outcome(self) -> Outcome:
        """The outcome of its case. Call it when there are data to read, or the case is overdue."""
        case = self.case
        assert case is not None
        self.case = None
        try:
            if self.pipe.poll():
                outcome = self.pipe.recv()
                assert isinstance(outcome, Outcome)
                return outcome
            text = f"the process that ran it did not end within {PATIENCE:g} s"
        except (EOFError, ConnectionResetError):
            self._process.join()
            text = f"the process that ran it ended, exit code {self._process.exitcode}"
        return Outcome(case, False, 0, 0, None, None, (Finding("hang", text),))

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def run(cases: Iterable[Case], jobs: int, patience: float) -> Iterator[Outcome]:
    """Run cases on threads, `jobs` at a time; the outcomes as they come."""
    coming = iter(cases)
    room = tempfile.TemporaryDirectory(prefix="chaos-ronde-", dir=default_directory())
    workers: dict[Connection, _Worker] = {}

    def hire() -> None:
        case = next(coming, None)
        if case is not None:
            worker = _Worker(patience, room.name)
            workers[worker.pipe] = worker
            worker.begin(case)

    try:
        for _ in range(jobs):
            hire()
        while workers:
            soonest = min(worker.until for worker in workers.values())
            ready = wait(list(workers), max(0.0, soonest - time.monotonic()))
            overdue = [pipe for pipe, worker in workers.items() if worker.until <= time.monotonic()]
            for pipe in {*ready, *overdue}:
                assert isinstance(pipe, Connection)
                worker = workers[pipe]
                outcome = worker.outcome()
                spoilt = any(finding.broken == "hang" for finding in outcome.findings)
                case = None if spoilt else next(coming, None)
                if case is not None:
                    worker.begin(case)
                else:
                    workers.pop(pipe).end()
                if spoilt:  # its threads may run on
                    hire()
                yield outcome
    finally:
        for worker in workers.values():
            worker.end()
        room.cleanup()  # of those that were killed in the middle of a case too


def _work(pipe: Connection, patience: float, room: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness decides what an interrupt means
    logging.disable()  # what transports log of ranks that vanish is no news here
    with contextlib.suppress(EOFError, BrokenPipeError):  # the harness is gone
        while True:
            pipe.send(thread_bed.run(pipe.recv(), patience, room=room))
