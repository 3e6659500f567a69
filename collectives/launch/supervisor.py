"""Runs the ranks of a job as child processes: one thread, one selector, every wait on an event.

How a job ends
    every rank exits with 0          what they left running is ended, exit code 0
    a rank fails                     the others get a moment to report, then SIGTERM, `grace`, SIGKILL; its exit code
      and the job is to keep going   it goes on while ranks run that the others have not gone on without; exit code 0 if
                                     any rank exits with 0, else that of the first that failed
    SIGINT, SIGTERM, SIGHUP          is passed on, `grace`, SIGKILL; a second one kills at once; 128 + N
    timeout, output closed           SIGTERM, `grace`, SIGKILL; 124 as of timeout(1), 141 as of SIGPIPE
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

from collectives.launch.processes import (
    Guardian,
    adopt_orphans,
    exit_code,
    fill_standard_descriptors,
    signal_group,
    spawn,
)
from collectives.launch.reaper import Reaper
from collectives.launch.relay import Relay, Tail
from collectives.launch.summary import Fate, summarize

REPORT: Final = 1.5
"""Seconds that the other ranks have, after one failed, to notice and to say so."""

LINGER: Final = 1.0
"""Seconds that processes which ranks left behind may run on after all ranks have ended."""

GIVE_UP: Final = 5.0
"""Seconds after SIGKILL when a process counts as beyond reach (it hangs in the kernel)."""

HURRY: Final = 2.0
"""Seconds that a slow reader of the output has left after a signal ended the job."""

TIMED_OUT: Final = 124
_NEVER: Final = float("inf")


@dataclass(frozen=True)
class Job:
    """What to start: one process per environment, in rank order. Times in seconds. `culprit`, asked once when
    ranks have failed and all have ended, says which of those in the order of their end failed first. `left_out`, asked
    if the job is to keep going, says whether the others have gone on without all these ranks."""

    command: Sequence[str]
    environments: Sequence[Mapping[str, str]] = field(repr=False)  # the secret is in there
    prefix: bool = True
    grace: float = 5.0
    timeout: float | None = None
    culprit: Callable[[Sequence[int]], int] = lambda failed: failed[0]
    keep_going: bool = False
    left_out: Callable[[Sequence[int]], bool] = lambda ranks: False


@dataclass(frozen=True)
class _End:
    """Why the job ends otherwise than by all ranks exiting with 0; `brief`: no need to tell how each rank ended."""

    code: int
    reason: str = ""
    brief: bool = False


def supervise(job: Job) -> int:
    """Start the ranks and see the job through; its exit code. On return no process of the job is left.

    For the main thread of a process that is the launcher's own: it takes over signals, stdout and stderr. Raises
    OSError when a rank cannot be started; those that were are ended first.
    """
    fill_standard_descriptors()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        relay = stack.enter_context(contextlib.closing(Relay(selector)))
        reaper = stack.enter_context(contextlib.closing(Reaper()))
        guardian = stack.enter_context(contextlib.closing(Guardian()))
        supervisor = _Supervisor(job, selector, relay, reaper, guardian)
        stack.enter_context(_signals(selector, supervisor.on_signals))
        stack.callback(supervisor.kill)
        relay.open()
        guardian.start()
        supervisor.start()
        return supervisor.run()


@contextlib.contextmanager
def _signals(selector: selectors.BaseSelector, act: Callable[[bytes], None]) -> Iterator[None]:
    """Turn signals into bytes in a pipe that the selector watches. What was ignored (nohup, `&`) stays ignored."""

    def noted(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has told the loop already."""

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in wanted}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, noted)
    selector.register(read, selectors.EVENT_READ, lambda: act(os.read(read, 4096)))
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
    def __init__(
        self, job: Job, selector: selectors.BaseSelector, relay: Relay, reaper: Reaper, guardian: Guardian
    ) -> None:
        self._job = job
        self._selector = selector
        self._relay = relay
        self._reaper = reaper
        self._guardian = guardian
        self._fates: dict[int, Fate] = {}
        self._failed: list[Fate] = []
        self._end: _End | None = None
        self._signalled = False
        self._plan: deque[tuple[float, signal.Signals | None]] = deque()
        self._deadline = _NEVER
        self._limit = _NEVER

    def start(self) -> None:
        width = len(str(len(self._job.environments) - 1))
        with open(os.devnull, "rb") as null:
            for rank, environment in enumerate(self._job.environments):
                prefix = f"[rank {rank:>{width}}] ".encode() if self._job.prefix else b""
                (out, out_end), (err, err_end) = os.pipe(), os.pipe()
                tail = Tail()
                self._relay.add(out, err, prefix, tail)
                try:
                    stdin = 0 if rank == 0 else null.fileno()
                    pid = spawn(self._job.command, environment, stdin, out_end, err_end)
                finally:
                    os.close(out_end)
                    os.close(err_end)
                self._guardian.watch(pid)
                self._fates[pid] = Fate(rank, pid, tail)
                self._reaper.add(pid)
        if self._job.timeout is not None:
            self._deadline = time.monotonic() + self._job.timeout

    def run(self) -> int:
        self._loop(self._all_gone, lambda: _NEVER)
        if self._end is None and self._failed and all(fate.status for fate in self._fates.values()):
            self._end = _End(exit_code(self._failed[0].status or 0))
        self._plan.clear()
        self._deadline = _NEVER
        if self._signalled:
            self._limit = time.monotonic() + HURRY
        self._loop(lambda: time.monotonic() >= self._relay.drain_at, lambda: self._relay.drain_at)
        if self._end is not None:
            self._relay.say(self._report(self._end))
        self._loop(lambda: not self._relay.pending, lambda: _NEVER)
        return 0 if self._end is None else self._end.code

    def kill(self) -> None:
        """Leave nothing behind, even after an exception."""
        for fate in self._fates.values():
            if fate.here:
                signal_group(fate.pid, signal.SIGKILL)
                if fate.status is None:
                    os.waitpid(fate.pid, 0)

    # The loop

    def _loop(self, done: Callable[[], bool], wake: Callable[[], float]) -> None:
        """Handle events, and what its time has come for, until `done` or the limit. `wake` is when to ask again."""
        while not done() and time.monotonic() < self._limit:
            until = min(self._deadline, self._limit, wake(), self._plan[0][0] if self._plan else _NEVER)
            timeout = None if until == _NEVER else max(0.0, until - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            self._relay.steer()
            if self._relay.failure is not None:
                closed = isinstance(self._relay.failure, BrokenPipeError)
                text = "its reader closed the output" if closed else f"cannot write output: {self._relay.failure}"
                self._finish(_End(exit_code(-signal.SIGPIPE) if closed else 1, text, brief=True), signal.SIGTERM)
            if time.monotonic() >= self._deadline:
                self._deadline = _NEVER
                self._finish(_End(TIMED_OUT, f"timed out after {self._job.timeout:g} s"), signal.SIGTERM)
            while self._plan and time.monotonic() >= self._plan[0][0]:
                self._carry_out(self._plan.popleft()[1])

    def on_signals(self, numbers: bytes) -> None:
        """Signals have come, one byte each."""
        for number in map(signal.Signals, numbers):
            if number == signal.SIGCHLD:
                self._reap()
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                for fate in self._fates.values():
                    if fate.status is None:
                        os.kill(fate.pid, number)
            elif self._all_gone():
                self._limit = 0.0
            elif self._signalled:
                self._schedule(time.monotonic(), signal.SIGKILL)
            else:
                self._signalled = True
                self._end = self._end or _End(exit_code(-number), f"ended by {number.name}", brief=True)
                self._schedule(time.monotonic(), number)

    # How ranks end, and are ended

    def _all_gone(self) -> bool:
        return not any(fate.here for fate in self._fates.values())

    def _reap(self) -> None:
        for pid, status in self._reaper.collect():
            fate = self._fates[pid]
            fate.status = status
            if status != 0:
                self._failed.append(fate)
            if status != 0 and self._job.keep_going:
                self._relay.say(f"ronde: rank {fate.rank} failed: {fate.describe()}, pid {fate.pid}")
            elif status != 0 and self._end is None:
                self._end = _End(exit_code(status))
                self._schedule(time.monotonic() + REPORT, signal.SIGTERM)
        for fate in self._fates.values():
            if fate.here and fate.status is not None:
                self._reaper.collect_orphans(fate.pid)
                self._take_leave(fate)
        running = [fate.rank for fate in self._fates.values() if fate.status is None]
        if not self._plan and not running:
            self._schedule(time.monotonic() + LINGER, signal.SIGTERM)
        elif not self._plan and self._job.keep_going and self._job.left_out(running):
            self._schedule(time.monotonic() + REPORT, signal.SIGTERM)

    def _take_leave(self, fate: Fate) -> None:
        """Note it if nothing is left of a rank: its number may come to mean another process group."""
        if not signal_group(fate.pid, 0):
            fate.here = False
            self._guardian.forget(fate.pid)

    def _schedule(self, when: float, number: signal.Signals) -> None:
        """Send a signal to all ranks at `when`, and sterner ones after it."""
        last = when if number == signal.SIGKILL else when + self._job.grace
        self._plan = deque([(when, number), (last, signal.SIGKILL), (last + GIVE_UP, None)])

    def _carry_out(self, number: signal.Signals | None) -> None:
        for fate in self._fates.values():
            if number is None:
                fate.here = False
            elif fate.here:
                signal_group(fate.pid, number)
                if fate.status is None:
                    fate.sent = number
                else:
                    self._take_leave(fate)

    def _report(self, end: _End) -> str:
        """What to say at the end. If that began with a failing rank, find out which was the first."""
        fates = [fate for fate in self._fates.values() if not end.brief or fate.status is None]
        if end.reason:
            return summarize(end.reason, None, fates)
        rank = self._job.culprit([fate.rank for fate in self._failed])
        first = next(fate for fate in self._failed if fate.rank == rank)
        if first.status is not None and first.status != -first.sent:
            self._end = _End(exit_code(first.status))
        return summarize("", first, fates)

    def _finish(self, end: _End, number: signal.Signals) -> None:
        """End the job for a reason of our own, unless it is ending already."""
        if self._end is None:
            self._end = end
            self._schedule(time.monotonic(), number)
