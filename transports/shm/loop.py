"""The progress loop of the shared-memory transport: spins, then yields the core, then sleeps at the own doorbell.

`transports.driver` has the rule of locking. The driver moves all rings along (`Rings.sweep`), so that a peer that is
blocked on a full ring to this rank goes on, regardless of the request that this rank waits for. Followers are notified
after a sleep too: it may have ended because the epoch that a follower waits for was published.

The rule of waiting
    Spin for `spin` seconds of no progress, then yield the core for a while, then sleep at the own doorbell, within the
    limits of `transports.pollable`: a lost wakeup delays a wait by little more than its duration so far.
The driver holds the lock and the interpreter's lock while it spins. So spinning is short, and off where ranks share a
process.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Final, Protocol

from transports import driver
from transports.cores import Cores
from transports.driver import Driver
from transports.locks import unlocked
from transports.pollable import FIRST_SLEEP, LONGEST_SLEEP
from transports.shm.doorbell import Doorbell
from transports.shm.fence import barrier

YIELD_SECONDS: Final = 100e-6
LOOK_EVERY: Final = 10e-3


class Awaited(driver.Awaited, Protocol):
    """The condition that a wait ends on, with a way to request a wakeup."""

    def request_wakeup(self) -> None:
        """Ask the completing rank to ring this rank's doorbell, unless it does so anyway."""


class Rings(Protocol):
    """The rings and peers that the loop serves. Every method is called with the lock held."""

    def sweep(self) -> bool:
        """Move all bytes that can be moved without waiting; True if any were."""

    def look(self) -> None:
        """Check that the peers are alive, and abort if one is not; never raises."""

    def check_sound(self) -> None:
        """Raises the transport's first failure, or ClosedError."""

    def crashed(self, error: BaseException) -> None:
        """Report that an exception has escaped from `sweep` while it moved bytes."""


class Loop:
    """The engine of the transport's `driver`."""

    def __init__(self, rings: Rings, spin: float, cores: Cores) -> None:
        self.driver: Driver[Awaited] = Driver(self, cores, LONGEST_SLEEP)
        self._cores = cores
        self._rings = rings
        self._spin = spin
        self._bell: Doorbell | None = None
        self._look_at = 0.0
        self._polled = False

    def open(self, bell: Doorbell) -> None:
        """Use this rank's doorbell."""
        self._bell = bell

    def close(self) -> None:
        """Wait until no other thread drives, and forget the doorbell."""
        self.driver.close()
        self._bell = None

    def abandon(self) -> None:
        """In a forked child: ring no doorbell any more."""
        self._bell = None

    def glance(self, awaited: Awaited) -> bool:
        """Make all progress that is possible without waiting; True if `awaited` is done. Called without the lock.
        Raises the error of its `check_possible`."""
        with self.driver.lock:
            self._sweep()
            if awaited.done:
                return True
            if (now := time.monotonic()) >= self._look_at:
                self._look(now)
            awaited.check_possible()
            return False

    # For a thread that sleeps on the doorbell's descriptor; see `transports.pollable`.

    def fileno(self) -> int:
        """The descriptor of this rank's doorbell."""
        assert self._bell is not None
        return self._bell.fileno()

    def prepare(self) -> float:
        """See Pollable."""
        if self._bell is not None:
            self._bell.arm_descriptor()
            barrier()
        moved = self._sweep()
        self._polled = True
        if (now := time.monotonic()) >= self._look_at:
            self._look(now)
        self._rings.check_sound()
        return 0.0 if moved else math.inf

    def finish(self) -> None:
        """See Pollable."""
        self._polled = False
        if self._bell is not None:
            self._bell.disarm()

    # The engine of the driver.

    def wake(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def announce(self, awaited: Awaited) -> None:
        awaited.request_wakeup()
        barrier()

    def drive(self, awaited: Awaited, deadline: float) -> bool:
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
            awaited.check_possible()
            if now >= deadline:
                return False
            if idle < self._spin + YIELD_SECONDS:
                unlocked(self.driver.lock, self._cores.leave)
            else:
                self._sleep(awaited, min(sleep, deadline - now))
                sleep = min(2 * sleep, LONGEST_SLEEP)

    def awake(self) -> None:
        if self._bell is not None:
            self._bell.disarm()
        self._wake_polling_thread()  # it must arm the doorbell again

    def _sleep(self, awaited: Awaited, seconds: float) -> None:
        bell = self._bell
        assert bell is not None
        bell.arm()
        self.announce(awaited)
        if not self._sweep() and not awaited.done:
            awaited.check_possible()
            self.driver.sleep(partial(bell.sleep, seconds))
            self.driver.notify()
        self.awake()

    def _wake_polling_thread(self) -> None:
        """Wake the thread that sleeps on the doorbell's descriptor: what it waits for may have happened."""
        if self._polled and self._bell is not None:
            self._bell.wake_descriptor()

    def _sweep(self) -> bool:
        try:
            moved = self._rings.sweep()
        except BaseException as error:
            self._rings.crashed(error)
            raise
        if moved:
            self.driver.notify()
            self._wake_polling_thread()
        return moved

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_EVERY
        self._rings.look()
