"""The progress loop: whoever waits drives it, there is no thread of its own.

The rule of locking
    One lock guards all state of a transport. It is held by every call, except while the driver sleeps in the
    selector; nothing else that may block is done under it.
    At most one thread is the driver: the first that waits. The others that wait are followers, on a condition of
    that lock; they are notified before the driver sleeps and when it leaves the role, and then one of them takes it.
    A thread that finds the lock free while there is a driver knows therefore that the driver sleeps. If it changes
    what the driver watches, or completes what somebody else may wait for, it must wake the driver (`watch` and
    `interrupt` do).
The lock is reentrant so that a signal handler may abort the transport whose lock its thread holds.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from transports.cores import Cores

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

_SWEEP_EVERY = 0.001
_LONGEST_WAIT = 3600.0
_GLANCES = 16


class Watched(Protocol):
    """Something with a descriptor that the loop watches."""

    closed: bool

    def fileno(self) -> int:
        """The descriptor."""

    def ready(self, events: int) -> None:
        """Move on; READ and WRITE tell what is possible. Never raises for what the other end does."""


class Waiter(Protocol):
    """What a thread waits for."""

    @property
    def done(self) -> bool:
        """True once there is nothing more to wait for."""

    def poke(self) -> bool:
        """Try the likeliest progress directly, without a selector; True if there was any."""

    def assess(self) -> None:
        """Raise if `done` will never be. Called when `Loop.alarm` is set."""


class Loop:
    """A selector, its lock and the role of its driver. `lock` is held in every call of a method except `wait`.

    alarm    set, for good, once a wait may be in vain; only then waiters are asked to `assess`
    spin     seconds that a wait polls before it sleeps
    cores    where it does so
    tick     called with the time at most as often as it asks: it returns when it wants to be called next
    crashed  called when an exception escapes in the middle of moving bytes, so that streams may be out of step
    """

    def __init__(
        self,
        spin: float,
        cores: Cores,
        tick: Callable[[float], float],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.lock = threading.RLock()
        self.alarm = False
        self.glances = range(_GLANCES if spin and cores.suffice else 1)
        """Times to look for what is about to come while nothing else is seen to; some 25 us, if waits poll at all."""
        self._turn = threading.Condition(self.lock)
        self._spin = spin
        self._cores = cores
        self._tick = tick
        self._crashed = crashed
        self._tick_at = 0.0
        self._sweep_at = 0.0
        self._driving = False
        self._asleep = False
        self._followers = 0
        self._writing = 0
        self._selector: selectors.BaseSelector | None = None
        self._interest: dict[Watched, int] = {}
        self._unread: set[Watched] = set()
        self._waker: Waker | None = None

    def open(self) -> None:
        """Take the descriptors that the loop needs."""
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self.watch(self._waker, READ)

    def close(self) -> None:
        """Send the driver home and release the descriptors. Idempotent.

        `alarm` must be set by now, and the `assess` of every waiter raise.
        """
        self.interrupt()
        while self._driving:
            self._followers += 1
            try:
                self._turn.wait()
            finally:
                self._followers -= 1
        if self._waker is not None:
            self.watch(self._waker, 0)
            self._waker.close()
            self._waker = None
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    def watch(self, watched: Watched, events: int) -> None:
        """Watch a descriptor for `events`; for 0, stop. Call it with 0 before closing the descriptor."""
        before = self._interest.get(watched, 0)
        if events == before or self._selector is None:
            return
        if not before:
            self._selector.register(watched, events, watched)
        elif events:
            self._selector.modify(watched, events, watched)
        else:
            self._selector.unregister(watched)
        if events:
            self._interest[watched] = events
        else:
            del self._interest[watched]
        self._writing += bool(events & WRITE) - bool(before & WRITE)
        if self._asleep and self._waker is not None:
            self._waker.wake()

    def revisit(self, watched: Watched) -> None:
        """Tell it once that it is ready to READ, whatever its descriptor says: it holds bytes that have been read."""
        self._unread.add(watched)
        if self._asleep and self._waker is not None:
            self._waker.wake()

    def interrupt(self) -> None:
        """Let all that wait look again."""
        if self._followers:
            self._turn.notify_all()
        if self._asleep and self._waker is not None:
            self._waker.wake()

    def hurry(self, when: float) -> None:
        """Call `tick` by `when` at the latest."""
        if when < self._tick_at:
            self._tick_at = when
            self.interrupt()

    def idle(self, now: float) -> bool:
        """True if who holds the lock may read one connection by itself for a moment: nobody else is at it, nothing
        waits to be written, and no look at all connections is due."""
        return not (self._driving or self._writing or self._unread or self.alarm or now >= self._sweep_at)

    def glance(self, waiter: Waiter) -> None:
        """Make what progress is possible without waiting."""
        if self._poke(waiter):
            self.interrupt()
        if not waiter.done and not self._driving:
            self._sweep(0)

    def wait(self, waiter: Waiter, deadline: float) -> bool:
        """Move everything along until `waiter.done` (True) or the deadline (False). Raises what its `assess` raises."""
        with self.lock:
            while not waiter.done:
                if self.alarm:
                    waiter.assess()
                if not self._driving:
                    self._driving = True
                    try:
                        return self._drive(waiter, deadline)
                    finally:
                        self._driving = False
                        if self._followers:
                            self._turn.notify_all()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._followers += 1
                try:
                    self._turn.wait(min(left, _LONGEST_WAIT))
                finally:
                    self._followers -= 1
            return True

    def _drive(self, waiter: Waiter, deadline: float) -> bool:
        now = time.monotonic()
        spin_until = now + self._spin
        while True:
            if self._writing or now >= self._sweep_at or now >= spin_until:
                # While something waits to be written, polling one connection would keep the peers waiting.
                asleep = now >= spin_until
                moved = self._sweep(max(0.0, min(deadline, self._tick_at) - now) if asleep else 0)
            else:
                moved = self._poke(waiter)
            if waiter.done:
                return True
            now = time.monotonic()
            if moved:  # more may follow at once
                spin_until = now + self._spin
            elif now >= spin_until or now >= deadline:
                if self.alarm:
                    waiter.assess()
                if now >= deadline:
                    return False
            else:
                self._cores.leave()

    def _poke(self, waiter: Waiter) -> bool:
        try:
            return waiter.poke()
        except BaseException as error:
            self._crashed(error)
            raise

    def _sweep(self, timeout: float) -> bool:
        """Wait for events for at most `timeout` seconds and deal with them all; True if there were any."""
        selector = self._selector
        assert selector is not None
        if timeout > 0 and not self._unread:
            if self._followers:
                self._turn.notify_all()
            self._asleep = True
            self.lock.release()
            try:
                with self._cores.kept():
                    events = selector.select(timeout)
            finally:
                self.lock.acquire()
                self._asleep = False
        else:
            events = selector.select(0)
        try:
            for key, mask in events:
                if not key.data.closed:
                    key.data.ready(mask)
            if self._unread:
                unread, self._unread = self._unread, set()
                for watched in unread:
                    if not watched.closed:
                        watched.ready(READ)
            now = time.monotonic()
            if now >= self._tick_at:
                self._tick_at = self._tick(now)
        except BaseException as error:
            self._crashed(error)
            raise
        self._sweep_at = now + _SWEEP_EVERY
        return bool(events)


class Waker:
    """Ends the driver's sleep."""

    def __init__(self) -> None:
        self.closed = False
        self._pending = False
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def fileno(self) -> int:
        return self._near.fileno()

    def wake(self) -> None:
        if not self._pending:
            self._pending = True
            self._far.send(b"\0")

    def ready(self, events: int) -> None:
        self._near.recv(16)
        self._pending = False

    def close(self) -> None:
        self.closed = True
        self._near.close()
        self._far.close()
