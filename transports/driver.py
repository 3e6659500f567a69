"""The rule of locking of a transport without a thread of its own: one of the threads that wait moves all bytes.

    One lock guards all state of a transport. It is held by every call, except while the driver sleeps (or yields its
    core); nothing else that may block is done with the lock held.
    At most one thread is the driver: the first that waits. It serves every connection, not only the awaited one. The
    other waiting threads are followers, on a condition of that lock. They are notified before the driver sleeps and
    when it leaves the role; then one of them takes the role over.
    So if a thread finds the lock free while there is a driver, the driver sleeps. If that thread changes the set of
    watched connections, or completes a request that another thread may wait for, it must `interrupt`.

            thread A    wait ---- driver: mover.drive ......... done --> returns
            thread B         wait -- follower: sleeps ........... notified --> driver ...
            thread C                    isend, irecv, abort: take the lock while A sleeps, then `interrupt`

The lock is reentrant so that a signal handler may abort the transport whose lock its own thread holds. A handler
cannot wait there: its own thread would have to drive twice.

An interrupt may come between any two instructions. Whatever a waiting thread has, it gives back by `_leave`, at the end
of a wait or after an error at any point of it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import get_ident
from typing import Protocol, TypeVar

from transports.cores import Cores
from transports.errors import REENTRY, ReentryError
from transports.locks import hold, is_mine, let_go, unlocked


class Awaited(ABC):
    """The condition that a wait ends on. Every member is used with the lock held."""

    __slots__ = ()

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once there is nothing more to wait for."""

    @abstractmethod
    def check_possible(self) -> None:
        """Raise if `done` can never become true."""

    def request_wakeup(self) -> None:  # noqa: B027 - most are woken anyway
        """Have the rank that makes it done wake this one, unless that rank does so anyway."""

    def poke(self) -> bool:
        """Serve the most likely connection directly, without a selector; True if that made progress."""
        return False


T = TypeVar("T")


class Mover(Protocol):
    """The loop that moves the bytes of a transport. Every method is called with the lock held."""

    def drive(self, awaited: Awaited, deadline: float) -> bool:
        """Move all bytes until `awaited` is done (True) or the deadline has passed (False). Sleeps only in
        `Driver.sleep`. Raises the error of `awaited.check_possible`."""

    def announce(self, awaited: Awaited) -> None:
        """Called before a thread follows: make sure that the driver wakes when `awaited` is done."""

    def wake(self) -> None:
        """End the driver's sleep if it sleeps, or is about to."""

    def awake(self) -> None:
        """The driver does not sleep any more, whatever it had prepared for that."""


class Driver:
    """The lock of a transport, and the role of the thread that drives it.

    thread    the number of the driving thread, None if no thread waits
    asleep    True while the driver sleeps, with the lock released
    longest   maximum seconds between two checks of a follower without a notification
    """

    def __init__(self, mover: Mover, cores: Cores, longest: float) -> None:
        self.lock = threading.RLock()
        self.thread: int | None = None
        self.asleep = False
        self.followers = 0
        self._mover = mover
        self._drive = mover.drive
        self._cores = cores
        self._longest = longest
        self._turn = threading.Condition(self.lock)

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Drive or follow until `awaited` is done (True) or the deadline has passed (False). Call it without the lock.
        Raises the error of `awaited.check_possible`; ReentryError if `awaited` is not done, in the middle of another
        call of this thread."""
        if self.entered:
            if awaited.done:
                return True
            raise ReentryError(REENTRY)
        try:
            self.lock.acquire()
            done = self._drive_or_follow(awaited, deadline)
            self._leave()
        except BaseException:
            self._leave()
            raise
        return done

    def _drive_or_follow(self, awaited: Awaited, deadline: float) -> bool:
        while not awaited.done:
            if self.thread is None:
                self.thread = get_ident()
                return self._drive(awaited, deadline)
            awaited.check_possible()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._mover.announce(awaited)
            if not awaited.done:
                self._follow(min(left, self._longest))
        return True

    def sleep(self, doze: Callable[[], T]) -> T:
        """Call `doze` as the driver, with the lock released and on this rank's own cores."""
        self.notify()
        self.asleep = True
        try:
            with self._cores.kept():
                return unlocked(self.lock, doze)
        finally:
            self.asleep = False

    @property
    def entered(self) -> bool:
        """True if the calling thread is in the middle of a call of the transport."""
        return self.thread == get_ident() or is_mine(self.lock)

    def interrupted(self) -> None:
        """The calling thread has left a call of the transport because of an interrupt: give back what it still holds.
        Not for a call in the middle of another one."""
        self._leave()
        let_go(self.lock)

    def notify(self) -> None:
        """Wake the followers, which check their conditions. The lock is held."""
        if self.followers:
            self._turn.notify_all()

    def interrupt(self) -> None:
        """Wake the driver and the followers, which check their conditions. The lock is held."""
        if self.followers:
            self._turn.notify_all()
        self._mover.wake()

    def close(self) -> None:
        """Wait until no other thread drives. The lock is held, once; every `check_possible` must raise by now. A signal
        handler may close the transport that its own thread drives."""
        self.interrupt()
        while self.thread not in (None, get_ident()):
            self._follow(None)

    def _leave(self) -> None:
        """Give back the role and the lock. Idempotent."""
        mine = self.thread == get_ident()
        if mine:
            hold(self.lock)
            self.asleep = False
            self._mover.awake()
            self.thread = None
            self.notify()
        if mine or is_mine(self.lock):
            self.lock.release()

    def _follow(self, seconds: float | None) -> None:
        self.followers += 1
        try:
            self._turn.wait(seconds)
        finally:
            hold(self.lock)
            self.followers -= 1
