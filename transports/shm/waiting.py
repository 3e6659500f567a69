"""How a rank waits: whoever waits drives, there is no thread of its own.

The rule of locking
    One lock guards all state of a transport: mailbox, own ends of the rings, failure. It is held by every call, but not
    while the driver yields or sleeps; what is done under it is bounded by the bytes that the rings hold.
    At most one thread is the driver: the first that waits. It moves all rings along (`sweep`), so that a peer that is
    blocked on a full ring to this rank goes on, whatever this rank waits for. The others that wait are followers, on a
    condition of that lock; they are notified when the driver has moved something, before and after each of its sleeps,
    and when it leaves the role, and then one of them takes it.
    A thread that completes what another one may wait for, without a sweep, must `interrupt`.
    Nothing may wait with the lock held.
The lock is reentrant so that a signal handler may abort the transport whose lock its thread holds.

The rule of waiting
    Spin for `spin` seconds of no progress, then yield the core for a while, then sleep at the own doorbell. A sleep
    lasts at most FIRST_SLEEP, then twice that and so on up to LONGEST_SLEEP. The bound serves two ends: peers that died
    cannot ring; and a ring that memory ordering has swallowed (see `doorbell`) costs little more time than was waited
    before.
The lock is held while it spins, the interpreter's too: hence spinning is short, and off where ranks share a process.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from transports.cores import Cores
from transports.shm.doorbell import Doorbell
from transports.shm.fence import barrier

YIELD_SECONDS: Final = 100e-6
FIRST_SLEEP: Final = 1e-3
LONGEST_SLEEP: Final = 32e-3
LOOK_EVERY: Final = 10e-3


class Awaited(Protocol):
    """What a thread waits for. All is called with the lock held."""

    @property
    def done(self) -> bool:
        """True once there is nothing more to wait for."""

    def check(self) -> None:
        """Raise if `done` will never be."""

    def ask(self) -> None:
        """Ask whoever completes it to ring this rank's doorbell then, where that is not done anyway."""


class Engine(Protocol):
    """What the driver drives. All is called with the lock held."""

    def sweep(self) -> bool:
        """Move all that can be moved now; True if anything was."""

    def look(self) -> None:
        """Look whether the peers are still alive; never raises."""

    def crashed(self, error: BaseException) -> None:
        """An exception has escaped from `sweep`, in the middle of moving bytes."""


class Waiter:
    """The lock of a transport, and the role of its driver. Threads call `wait` and `glance` without the lock."""

    def __init__(self, engine: Engine, spin: float, cores: Cores) -> None:
        self.lock = threading.RLock()
        self._cores = cores
        self._engine = engine
        self._spin = spin
        self._bell: Doorbell | None = None
        self._turn = threading.Condition(self.lock)
        self._driver: int | None = None
        self._followers = 0
        self._look_at = 0.0

    def open(self, bell: Doorbell) -> None:
        """Use this rank's doorbell."""
        self._bell = bell

    def close(self) -> None:
        """Wait until no other thread drives. The lock is held, once; the `check` of every waiter must raise by now.

        A signal handler may close the transport that its own thread drives.
        """
        self.interrupt()
        while self._driver not in (None, threading.get_ident()):
            self._followers += 1
            try:
                self._turn.wait()
            finally:
                self._followers -= 1
        self._bell = None

    def interrupt(self) -> None:
        """Let all that wait look again. The lock is held."""
        if self._followers:
            self._turn.notify_all()
        if self._bell is not None:
            self._bell.ring()

    def glance(self, awaited: Awaited) -> bool:
        """Make what progress is possible without waiting; whether it is done. Raises what its `check` raises."""
        with self.lock:
            self._sweep()
            if awaited.done:
                return True
            if (now := time.monotonic()) >= self._look_at:
                self._look(now)
            awaited.check()
            return False

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Move everything along until it is done (True) or the deadline (False). Raises what its `check` raises."""
        with self.lock:
            while not awaited.done:
                if self._driver is None:
                    self._driver = threading.get_ident()
                    try:
                        return self._drive(awaited, deadline)
                    finally:
                        self._driver = None
                        if self._followers:
                            self._turn.notify_all()
                awaited.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._follow(awaited, min(left, LONGEST_SLEEP))
            return True

    def _follow(self, awaited: Awaited, seconds: float) -> None:
        awaited.ask()
        barrier()
        if awaited.done:
            return
        self._followers += 1
        try:
            self._turn.wait(seconds)
        finally:
            self._followers -= 1

    def _drive(self, awaited: Awaited, deadline: float) -> bool:
        since = time.monotonic()
        sleep = FIRST_SLEEP
        while True:
            moved = self._sweep()
            if awaited.done:
                return True
            now = time.monotonic()
            if moved:
                since, sleep = now, FIRST_SLEEP
            idle = now - since
            if idle < self._spin and now < deadline:
                continue
            if now >= self._look_at:
                self._look(now)
            awaited.check()
            if now >= deadline:
                return False
            if idle < self._spin + YIELD_SECONDS:
                self._yield()
            else:
                self._sleep(awaited, min(sleep, deadline - now))
                sleep = min(2 * sleep, LONGEST_SLEEP)

    def _yield(self) -> None:
        self.lock.release()
        try:
            self._cores.leave()
        finally:
            self.lock.acquire()

    def _sleep(self, awaited: Awaited, seconds: float) -> None:
        bell = self._bell
        assert bell is not None
        bell.arm()
        try:
            awaited.ask()
            barrier()
            if self._sweep() or awaited.done:
                return
            awaited.check()
            if self._followers:  # what they wait for may have come while this thread was awake
                self._turn.notify_all()
            self.lock.release()
            try:
                with self._cores.kept():
                    bell.sleep(seconds)
            finally:
                self.lock.acquire()
        finally:
            bell.disarm()
        if self._followers:
            self._turn.notify_all()

    def _sweep(self) -> bool:
        try:
            moved = self._engine.sweep()
        except BaseException as error:
            self._engine.crashed(error)
            raise
        if moved and self._followers:
            self._turn.notify_all()
        return moved

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_EVERY
        self._engine.look()
