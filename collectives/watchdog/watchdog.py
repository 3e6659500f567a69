"""The watchdog of a rank: detects failures that calls do not notice, or not in time, during and between calls.

It has up to two threads:

    process guard    ten times a second checks the next process of the host, and the launcher's. It asks the kernel
                     alone, so a store that hangs does not blind it. It notes messages that wait in the flight record.
    listener         waits for wakeups in the store (an abort, a question of a rank or a viewer), by one request for all
                     the time. At least once a second it looks for calls of this rank that do not advance. In a group
                     of several hosts that of the first rank of a host sends heartbeats for this host, and watches the
                     next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from collectives.execution import CallPosition, CallPositions
from collectives.failure import AbortSignal, find_mismatch
from collectives.watchdog.liveness import LauncherProcess, NextHost, NextProcess
from collectives.watchdog.message_waits import MessageWaits
from collectives.watchdog.stall_report import StallReporter
from collectives.watchdog.viewers import ViewerAnswers
from transports.base import Group
from transports.errors import RendezvousError, RondeError
from transports.liveness import Steady

GUARD_SECONDS: Final = 0.1
"""Time between two checks of the process guard."""
LISTEN_SECONDS: Final = 1.0
"""The longest sleep of the listener, and the time between two looks at the calls of this rank."""
STUCK_SECONDS: Final = 0.9
"""Time in one call after which it is compared with the calls of other ranks: the second look at it."""
STORE_SECONDS: Final = 1.0
"""Time for the store to answer. A store that does not answer says nothing about peers."""
_LONGEST_GAP: Final = 3 * LISTEN_SECONDS
"""Time between two looks after which the watchdog did not run itself, so that nothing is known of the time between."""
_SLICE_SECONDS: Final = 0.1
"""Time after which a listener whose rank has failed looks whether it is to end. The store may be out of reach then."""
_END_SECONDS: Final = LISTEN_SECONDS + STORE_SECONDS
"""Time for the threads to end; one of them may be in a call of the store."""


class _Progress:
    """Time in one call and at one step of it.

    compare_after  time in the call after which it is compared with calls of other ranks
    reports        number of stall reports that were due
    """

    def __init__(self) -> None:
        self.call = Steady(_LONGEST_GAP)
        self.step = Steady(_LONGEST_GAP)
        self.compare_after = STUCK_SECONDS
        self.reports = 0


class Watchdog:
    """The watchdog of one rank of a group, from `start` to `close`. A group of one rank has none.

    heartbeat, stall   the settings
    records            the folder of the flight records of the world, for viewers; None if there is none
    """

    def __init__(
        self,
        group: Group,
        abort_signal: AbortSignal,
        positions: CallPositions,
        *,
        heartbeat: float,
        stall: float,
        records: Path | None = None,
    ) -> None:
        self._group = group
        self._abort_signal = abort_signal
        self._positions = positions
        self._messages = MessageWaits(positions, abort_signal)
        self._group_store = group.store.with_timeout(STORE_SECONDS)
        self._store = self._group_store.prefixed("watch")
        self._next_process = NextProcess(group, self._store)
        self._launcher = LauncherProcess(group)
        self._next_host = NextHost(group, self._store, heartbeat, abort_signal.notify)
        self._stalls = StallReporter(group, self._store, abort_signal, positions, stall, self._keep_beating)
        self._viewers = ViewerAnswers(group.rank, self._store, records)
        abort_signal.explain_timeouts(self._stalls.explain_timeout)
        self._progress: dict[tuple[object, int, int], _Progress] = {}
        self._look_at = 0.0
        self._closed = False
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. The calling thread is the one whose stack other ranks are shown if this rank is late.
        Raises RendezvousError."""
        if self._group.size == 1:
            return
        self._stalls.main_thread = threading.get_ident()
        try:
            if self._next_host.beats:
                self._next_host.send()
            if self._next_process.exists or self._launcher.exists:
                self._run("process guard", self._guard)
            self._run("listener", self._listen_and_stop)
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Tell the other ranks that this rank closes, so that its end is no failure. Idempotent; never raises."""
        if self._threads and not self._closed:
            self._closed = True
            with contextlib.suppress(RendezvousError):  # a watchdog that cannot ask the store reports nothing either
                self._store.set(f"left/{self._group.rank}", b"")

    def close(self) -> None:
        """End the threads. Idempotent; never raises."""
        self._ended.set()
        if any(thread.is_alive() for thread in self._threads):
            with contextlib.suppress(RendezvousError):  # the listener then ends after its sleep
                self._abort_signal.notify([self._group.rank])
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()

    def after_fork(self) -> None:
        """In a forked child, which has no threads: stop watching, and do not publish a close."""
        self._threads.clear()
        self._next_process.close()
        self._launcher.close()

    def _run(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"ronde {name} of rank {self._group.rank}", daemon=True)
        thread.start()
        self._threads.append(thread)

    # ---- the process guard

    def _guard(self) -> None:
        with contextlib.closing(self._next_process), contextlib.closing(self._launcher):
            while (
                (self._next_process.exists or self._launcher.exists)
                and not self._ended.wait(GUARD_SECONDS)
                and self._abort_signal.failure is None
            ):
                self._messages.look()
                orphaned = self._launcher.check()
                if orphaned is not None:
                    self._abort_signal.raise_abort(orphaned)
                    break
                try:
                    lost = self._next_process.check() if self._next_process.exists else None
                except RendezvousError:  # the process has ended, but perhaps it closed before: calls will tell
                    continue
                if lost is not None:
                    self._abort_signal.resolve(lost, 0.0)  # a rank that aborts tells the cause before its process ends

    # ---- the listener

    def _listen_and_stop(self) -> None:
        try:
            self._listen()
        finally:
            self._abort_signal.stop_waiting()

    def _listen(self) -> None:
        while not self._ended.is_set() and self._abort_signal.failure is None:
            try:
                if self._abort_signal.wait(self._sleep_seconds()):
                    self._abort_signal.poll()
                    self._stalls.answer()
                    self._viewers.answer(time.monotonic())
                    self._beat()
                self._tick(time.monotonic())
            except RendezvousError:  # a store that cannot be reached is not a lost peer
                self._next_host.restart()
                self._ended.wait(min(LISTEN_SECONDS, self._next_host.interval))
        failure = self._abort_signal.failure
        if failure is not None:  # the other ranks may not know it yet, if no call of this rank has raised it
            self._abort_signal.resolve_again(failure)
        beat_at = 0.0
        while self._next_host.exists and not self._ended.is_set():  # this rank may yet shrink
            try:
                woken = self._abort_signal.wait(min(self._next_host.interval, _SLICE_SECONDS))
                if woken or (self._next_host.beats and time.monotonic() >= beat_at):
                    beat_at = time.monotonic() + self._next_host.interval
                    self._beat()
            except RendezvousError:
                self._ended.wait(self._next_host.interval)

    def _beat(self) -> None:
        """Send a heartbeat: another rank may have asked for it, or it is time. Raises RendezvousError."""
        if self._next_host.exists and not self._ended.is_set():
            self._next_host.send()

    def _keep_beating(self) -> None:
        """Send a heartbeat if it is time: this thread has much to ask. Raises RendezvousError."""
        if self._next_host.exists:
            self._next_host.keep_beating(time.monotonic())

    def _sleep_seconds(self) -> float:
        """Time until there is something to do."""
        due = min(self._look_at, self._stalls.due, self._viewers.due, self._next_host.due)
        return min(max(0.0, due - time.monotonic()), LISTEN_SECONDS)

    def _tick(self, now: float) -> None:
        """Run the tasks that are due."""
        self._messages.look()
        if self._next_host.exists:
            self._abort_with(self._next_host.tick(now))
        if now >= self._look_at:
            self._look_at = now + LISTEN_SECONDS
            self._check_calls(now)
        self._stalls.report(now)
        if now >= self._viewers.due:
            self._viewers.answer(now)

    def _check_calls(self, now: float) -> None:
        """Look for calls of this rank that are mismatched or do not advance."""
        here = {_call_of(position): position for position in self._positions.now()}
        self._progress = {call: self._progress.get(call) or _Progress() for call in here}
        for call, progress in self._progress.items():
            position, caller = here[call], here[call].caller
            stuck = progress.call.seen(call, now)
            if stuck >= progress.compare_after and position.number:
                progress.compare_after = 2 * stuck  # a rank that comes later compares its own call then
                recent = caller.recent()
                self._abort_with(find_mismatch(self._group_store, caller.key, caller.ranks, caller.rank, recent))
            if self._stalls.consider(position, progress.step.seen(position.step, now), progress.reports, now):
                progress.reports += 1

    def _abort_with(self, cause: RondeError | None) -> None:
        if cause is not None:
            self._abort_signal.resolve(cause, 0.0)


def _call_of(position: CallPosition) -> tuple[object, int, int]:
    """Equal for positions in the same call."""
    return position.caller, position.number, 0 if position.number else position.step
