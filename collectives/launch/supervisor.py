"""Runs the ranks of a job as child processes: one thread, one selector, every wait on an event.

How a job ends
    every rank exits with 0          processes that ranks left behind are ended; exit code 0
    a rank fails                     the others get REPORT_SECONDS to report, then SIGTERM, `grace`, SIGKILL; exit code
                                     of the rank that failed first
      with keep_going                the job goes on until its ranks have ended or were left behind by a shrink; exit
                                     code 0 if any rank exits with 0, otherwise that of the first that failed
    SIGINT, SIGTERM, SIGHUP          passed on to the ranks, `grace`, SIGKILL; a second one: SIGKILL; 128 + N
    timeout, output closed           SIGTERM, `grace`, SIGKILL; 124 as from timeout(1), 141 as from SIGPIPE
    the launcher is killed           the guardian kills all ranks
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from collectives.launch.processes import Guardian, adopt_orphans, exit_code, fill_standard_descriptors
from collectives.launch.rank_processes import RankProcess, RankProcesses
from collectives.launch.reaper import Reaper
from collectives.launch.relay import Relay, Tail
from collectives.launch.summary import summarize

REPORT_SECONDS: Final = 1.5
"""Time for the other ranks to notice a failure and to print their errors."""

LEFTOVER_SECONDS: Final = 1.0
"""Time for processes that ranks left behind to end after the last rank."""

KILL_SECONDS: Final = 5.0
"""Time for a process to end after SIGKILL; later it is given up as hanging in the kernel."""

OUTPUT_SECONDS: Final = 2.0
"""Time for a slow reader to take the remaining output after a signal ended the job."""

TIMED_OUT: Final = 124
_NEVER: Final = float("inf")


@dataclass(frozen=True)
class Job:
    """The processes to start, one for each environment in rank order, and how to treat them. Times in seconds.

    prefix      put the rank in front of every line of output
    culprit     given the failed ranks in the order of their ends, returns the rank that failed first. It is called
                once, after all ranks have ended
    keep_going  let the others go on when a rank fails
    left_out    with keep_going: returns True if a shrink has left all the given ranks behind
    """

    command: Sequence[str]
    environments: Sequence[Mapping[str, str]] = field(repr=False)  # they contain the job's secret
    prefix: bool = True
    grace: float = 5.0
    timeout: float | None = None
    culprit: Callable[[Sequence[int]], int] = lambda failed: failed[0]
    keep_going: bool = False
    left_out: Callable[[Sequence[int]], bool] = lambda ranks: False


@dataclass(frozen=True)
class _Ending:
    """Why the job ends other than by all ranks exiting with 0.

    code     exit code
    reason   text for the report; '' if a rank failed
    brief    True to report only the ranks that still run
    """

    code: int
    reason: str = ""
    brief: bool = False


def supervise(job: Job) -> int:
    """Run the job and return its exit code. On return no process of the job is left.

    Call it in the main thread of a process of its own: it takes over signals, stdout and stderr. Raises OSError when a
    rank cannot be started, after ending those already started.
    """
    fill_standard_descriptors()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        relay = stack.enter_context(contextlib.closing(Relay(selector)))
        reaper = stack.enter_context(contextlib.closing(Reaper()))
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        processes = RankProcesses(reaper, guardian)
        supervisor = _Supervisor(job, selector, relay, processes)
        stack.enter_context(_signals(selector, supervisor.on_signals))
        stack.callback(processes.kill)  # also after an exception
        relay.open()
        guardian.start()
        supervisor.start()
        return supervisor.run()


@contextlib.contextmanager
def _signals(selector: selectors.BaseSelector, handle: Callable[[bytes], None]) -> Iterator[None]:
    """Turn signals into bytes in a pipe that the selector watches. Ignored signals (nohup, `&`) stay ignored."""

    def do_nothing(number: int, frame: FrameType | None) -> None:
        """The interpreter has written the number to the wakeup descriptor already."""

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in wanted}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, do_nothing)
    selector.register(read, selectors.EVENT_READ, lambda: handle(os.read(read, 4096)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        selector.unregister(read)
        os.close(read)
        os.close(write)


class _Supervisor:
    def __init__(self, job: Job, selector: selectors.BaseSelector, relay: Relay, processes: RankProcesses) -> None:
        self._job = job
        self._selector = selector
        self._relay = relay
        self._processes = processes
        self._failed: list[RankProcess] = []
        self._ending: _Ending | None = None
        self._interrupted = False
        self._escalation: deque[tuple[float, signal.Signals | None]] = deque()  # when to send what; None: give up
        self._timeout_at = _NEVER
        self._stop_at = _NEVER

    def start(self) -> None:
        """Start the ranks. Raises OSError."""
        width = len(str(len(self._job.environments) - 1))
        with open(os.devnull, "rb") as null:
            for rank, environment in enumerate(self._job.environments):
                prefix = f"[rank {rank:>{width}}] ".encode() if self._job.prefix else b""
                (out, out_end), (err, err_end) = os.pipe(), os.pipe()
                tail = Tail()
                self._relay.add(out, err, prefix, tail)
                stdin = 0 if rank == 0 else null.fileno()
                try:
                    self._processes.start(rank, self._job.command, environment, (stdin, out_end, err_end), tail)
                finally:
                    os.close(out_end)
                    os.close(err_end)
        if self._job.timeout is not None:
            self._timeout_at = time.monotonic() + self._job.timeout

    def run(self) -> int:
        """Wait for the ranks, pass on the rest of their output, report; the exit code."""
        self._loop(lambda: self._processes.all_gone, lambda: _NEVER)
        if self._ending is None and self._failed and all(process.status for process in self._processes):
            self._ending = _Ending(exit_code(self._failed[0].status or 0))  # with keep_going, all ranks failed
        self._escalation.clear()
        self._timeout_at = _NEVER
        if self._interrupted:
            self._stop_at = time.monotonic() + OUTPUT_SECONDS
        self._loop(lambda: time.monotonic() >= self._relay.drained_at, lambda: self._relay.drained_at)
        if self._ending is not None:
            self._relay.print(self._report(self._ending))
        self._loop(lambda: not self._relay.pending, lambda: _NEVER)
        return 0 if self._ending is None else self._ending.code

    def _loop(self, done: Callable[[], bool], next_check: Callable[[], float]) -> None:
        """Handle events until `done` returns True. `next_check`: when to ask it again if no event happens."""
        while not done() and time.monotonic() < self._stop_at:
            signal_at = self._escalation[0][0] if self._escalation else _NEVER
            until = min(self._timeout_at, self._stop_at, next_check(), signal_at)
            timeout = None if until == _NEVER else max(0.0, until - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            self._relay.update()
            if self._relay.failure is not None:
                closed = isinstance(self._relay.failure, BrokenPipeError)
                text = "the reader closed the output" if closed else f"cannot write output: {self._relay.failure}"
                self._finish(_Ending(exit_code(-signal.SIGPIPE) if closed else 1, text, brief=True))
            if time.monotonic() >= self._timeout_at:
                self._timeout_at = _NEVER
                self._finish(_Ending(TIMED_OUT, f"timed out after {self._job.timeout:g} s"))
            while self._escalation and time.monotonic() >= self._escalation[0][0]:
                _, number = self._escalation.popleft()
                if number is None:
                    self._processes.give_up()
                else:
                    self._processes.signal_groups(number)

    def on_signals(self, numbers: bytes) -> None:
        """Handle signals, one byte each."""
        for number in map(signal.Signals, numbers):
            if number == signal.SIGCHLD:
                self._on_child_exit()
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                self._processes.signal_ranks(number)
            elif self._processes.all_gone:
                self._stop_at = 0.0
            elif self._interrupted:
                self._escalate(time.monotonic(), signal.SIGKILL)
            else:
                self._interrupted = True
                self._ending = self._ending or _Ending(exit_code(-number), f"ended by {number.name}", brief=True)
                self._escalate(time.monotonic(), number)

    def _on_child_exit(self) -> None:
        for process in self._processes.collect():
            if not process.status:
                continue
            self._failed.append(process)
            if self._job.keep_going:
                self._relay.print(f"ronde: rank {process.rank} failed: {process.describe()}, pid {process.pid}")
            elif self._ending is None:
                self._ending = _Ending(exit_code(process.status))
                self._escalate(time.monotonic() + REPORT_SECONDS, signal.SIGTERM)
        running = self._processes.running
        if not self._escalation and not running:
            self._escalate(time.monotonic() + LEFTOVER_SECONDS, signal.SIGTERM)
        elif not self._escalation and self._job.keep_going and self._job.left_out(running):
            self._escalate(time.monotonic() + REPORT_SECONDS, signal.SIGTERM)

    def _escalate(self, when: float, number: signal.Signals) -> None:
        """Send a signal to all ranks at `when`, SIGKILL after the grace time, and give up after that."""
        kill_at = when if number == signal.SIGKILL else when + self._job.grace
        self._escalation = deque([(when, number), (kill_at, signal.SIGKILL), (kill_at + KILL_SECONDS, None)])

    def _finish(self, ending: _Ending) -> None:
        """End the job by SIGTERM, unless it is ending already."""
        if self._ending is None:
            self._ending = ending
            self._escalate(time.monotonic(), signal.SIGTERM)

    def _report(self, ending: _Ending) -> str:
        """The report for stderr. If ranks failed, the one that failed first determines the exit code."""
        processes = [process for process in self._processes if not ending.brief or process.status is None]
        if ending.reason:
            return summarize(ending.reason, None, processes)
        rank = self._job.culprit([process.rank for process in self._failed])
        first = next(process for process in self._failed if process.rank == rank)
        if first.status is not None and not first.ended_by_launcher:
            self._ending = _Ending(exit_code(first.status))
        return summarize("", first, processes)
