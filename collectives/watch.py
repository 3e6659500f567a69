"""The watchman of a rank: notices during and between calls what the calls themselves would not, or not in time.

He has up to two threads. The guard looks at the next process of the host, ten times a second, and asks nobody but the
kernel: a store that hangs does not blind him. The listener sleeps at this rank's bell in the store, wakes for news (an
abort, a question), and at least once a second looks whether this rank is stuck in a call. Where there are several
hosts he gives this one's signs of life, and looks for those of the next.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from collectives.alarm import Alarm
from collectives.mismatch import compare
from collectives.neighbours import NextHost, NextProcess
from collectives.stall import Stall
from collectives.whereabouts import Place, places
from transports.base import Group
from transports.errors import RendezvousError, RondeError
from transports.liveness import Steady

GUARD_SECONDS: Final = 0.1
LISTEN_SECONDS: Final = 1.0
"""The longest sleep of each thread."""
STUCK_SECONDS: Final = 0.9
"""How long a rank is in one call before it tells the others which. So the second look at it does."""
_LONGEST_GAP: Final = 3 * LISTEN_SECONDS
HASTE_SECONDS: Final = 1.0
"""What the store gets to answer: one that does not makes nobody wait, and says nothing about peers."""
_END_SECONDS: Final = LISTEN_SECONDS + HASTE_SECONDS
"""What a thread gets to end that is in the middle of a call of the store."""


class _Wait:
    """How long this rank is in a call, and at one step of it, and how many stall reports were due."""

    def __init__(self) -> None:
        self.call = Steady(_LONGEST_GAP)
        self.step = Steady(_LONGEST_GAP)
        self.reports = 0


class Watchman:
    """Watches over one rank's part of a group, from `start` to `close`. A group of one needs no watching.

    heartbeat, stall   the settings
    """

    def __init__(self, group: Group, alarm: Alarm, *, heartbeat: float, stall: float) -> None:
        self._group = group
        self._alarm = alarm
        self._desk = group.store.prefixed("watch").hasty(HASTE_SECONDS)
        self._process = NextProcess(group, self._desk)
        self._host = NextHost(group, self._desk, heartbeat)
        self._stall = Stall(group, self._desk, alarm, stall)
        alarm.explain = self._stall.explain
        self._waits: dict[tuple[object, int, int], _Wait] = {}
        self._look_at = 0.0
        self._left = False
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch. To be called by the thread that the rank computes in: its stack is shown when the rank is
        late. Raises RendezvousError."""
        if self._group.size == 1:
            return
        self._stall.begin(threading.get_ident())
        try:
            if self._host.exists:
                self._host.beat()
            if self._process.exists:
                self._run("guard", self._guard)
            self._run("listener", self._listen)
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Say that this rank closes, so that its end is no loss to anybody. Idempotent; never raises."""
        if self._threads and not self._left:
            self._left = True
            with contextlib.suppress(RendezvousError):  # whoever cannot ask either takes it for no loss
                self._desk.set(f"left/{self._group.rank}", b"")

    def close(self) -> None:
        """End the threads. Idempotent; never raises."""
        self._ended.set()
        if any(thread.is_alive() for thread in self._threads):
            with contextlib.suppress(RendezvousError):  # then the listener hears it too
                self._alarm.ring([self._group.rank])
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()

    def _run(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"ronde {name} of rank {self._group.rank}", daemon=True)
        thread.start()
        self._threads.append(thread)

    # The guard

    def _guard(self) -> None:
        with contextlib.closing(self._process):
            while self._process.exists and not self._ended.wait(GUARD_SECONDS) and self._alarm.failure is None:
                try:
                    lost = self._process.look()
                except RendezvousError:  # if it ended well cannot be known; those who need it will notice
                    continue
                if lost is not None:
                    self._alarm.settle(lost, 0.0)  # if it gave up it said why before it ended

    # The listener

    def _listen(self) -> None:
        while not self._ended.is_set() and self._alarm.failure is None:
            try:
                if self._alarm.rest(self._nap()):
                    self._alarm.heed()
                    self._stall.answer()
                self._turn(time.monotonic())
            except RendezvousError:  # a store that cannot be reached is not a lost peer
                self._host.forget()
                self._ended.wait(LISTEN_SECONDS)
        failure = self._alarm.failure
        if failure is not None:  # perhaps nobody waits in this rank who would tell
            self._alarm.settle(failure)
        while self._host.exists and not self._ended.wait(self._host.pause):  # this rank may yet come to shrink
            with contextlib.suppress(RendezvousError):
                self._host.beat()

    def _nap(self) -> float:
        due = min(self._look_at, self._stall.due, self._host.due if self._host.exists else float("inf"))
        return min(max(0.0, due - time.monotonic()), LISTEN_SECONDS)

    def _turn(self, now: float) -> None:
        if self._host.exists:
            self._give_up(self._host.turn(now))
        if now >= self._look_at:
            self._look_at = now + LISTEN_SECONDS
            self._examine(now)
        self._stall.report(now)

    def _examine(self, now: float) -> None:
        """Look at the calls that this rank is in."""
        here = {_key(place): place for place in places(self._alarm)}
        self._waits = {key: self._waits.get(key) or _Wait() for key in here}
        for key, wait in self._waits.items():
            place, executor = here[key], here[key].executor
            if wait.call.seen(key, now) >= STUCK_SECONDS and place.number:
                store = self._group.store
                self._give_up(compare(store, executor.key, executor.ranks, executor.rank, executor.recent()))
            if self._stall.consider(place, wait.step.seen(place.step, now), wait.reports, now):
                wait.reports += 1

    def _give_up(self, cause: RondeError | None) -> None:
        if cause is not None:
            self._alarm.settle(cause, 0.0)


def _key(place: Place) -> tuple[object, int, int]:
    """Equal for the same call."""
    return place.executor, place.number, 0 if place.number else place.step
