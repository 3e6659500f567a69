"""The progress loop of an engine: polls what is most likely to have bytes, then all, then sleeps.

`transports.driver` has the rule of locking: the thread that drives this loop is one of those that wait. It moves the
bytes of all links, whatever it waits for, so that peers that are blocked on this rank go on.

The rule of waiting
    Poll for `spin` seconds of no progress, then yield the core for `yields_for` seconds, then sleep: at the own
    doorbell if no link has sockets, else in a selector, where the doorbell has a descriptor. A doorbell's ring may be
    lost to memory ordering, and peers that died ring nobody: unless it is sure, a sleep lasts at most FIRST_SLEEP, and
    the limit doubles with each sleep of a wait up to LONGEST_SLEEP. So a lost ring delays a wait by little more than
    its duration so far. Where a host has more than MANY_RANKS ranks, these sleep longer: each looks at the rings of all
    others when it wakes, and 200 that wait would keep two cores busy. With several doorbells that cannot be slept at
    together every sleep is as short as the first.
The driver holds the lock and the interpreter's lock while it polls. So polling is short, and off where ranks share a
process.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from transports.cores import Cores
from transports.driver import Awaited, Driver
from transports.locks import unlocked

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

FIRST_SLEEP: Final = 1e-3
LONGEST_SLEEP: Final = 32e-3
MANY_RANKS: Final = 16
_LONGEST_FOLLOW: Final = 3600.0
_SWEEP_EVERY: Final = 0.001
_GLANCES: Final = 16


class Watched(Protocol):
    """Something with a descriptor that the loop watches."""

    closed: bool

    def fileno(self) -> int:
        """The descriptor."""

    def ready(self, events: int) -> None:
        """Make progress; `events` are the possible ones of READ and WRITE. Never raises for errors of the other end."""


class Bell(Protocol):
    """The doorbell of this rank, which peers ring when they have made it something to do.

    sure  True if no ring is ever lost, and peers that end ring too
    """

    sure: bool

    def arm(self, *, by_descriptor: bool) -> bool:
        """Announce that the owner is about to sleep. False if there is no descriptor to sleep on."""

    def disarm(self) -> None:
        """Announce that the owner is awake."""

    def ring(self) -> None:
        """Wake the owner if it sleeps."""

    def sleep(self, seconds: float) -> None:
        """Sleep until rung, for at most `seconds`. Return immediately if rung since `arm`. May return early."""


class Progress(Protocol):
    """The engine, as its loop uses it. Every method is called with the lock held."""

    def sweep(self, but: Collection[object] = ()) -> bool:
        """Move all bytes of the links that have no sockets, but for those from the lanes `but`, without waiting; True
        if any were."""

    def tick(self, now: float) -> float:
        """Do what is due by now; the time of the next call. Never raises for errors of a peer."""

    def crashed(self, error: BaseException) -> None:
        """Report that an exception has escaped while bytes were moved, so that streams may be corrupt."""


class Loop:
    """The mover of its `driver`, whose lock is held in every call.

    alarm    set, for good, once a wait may be impossible to complete; from then on compiled code does not wait
    polls    True if a wait may poll one connection alone for a moment, since there is a core for each rank
    spin     seconds of polling without progress before a wait sleeps, or yields
    yields   True if a wait may yield the core instead, since ranks that are processes share cores
    glances  polls of one connection while no other is served; some 25 us, if waits poll at all
    due      time at which all peers must be served, also by a thread that serves one of them alone
    """

    def __init__(self, progress: Progress, cores: Cores) -> None:
        self.driver = Driver(self, cores, _LONGEST_FOLLOW)
        self.alarm = False
        self.polls = False
        self.yields = False
        self.glances = range(1)
        self._progress = progress
        self._cores = cores
        self._longest_sleep = LONGEST_SLEEP * max(1.0, cores.ranks / MANY_RANKS)
        self.spin = 0.0
        self._yields_for = 0.0
        self._tick_at = 0.0
        self.due = 0.0
        self._writing = 0
        self._bells: list[Bell] = []
        self._selector: selectors.BaseSelector | None = None
        self._interest: dict[Watched, int] = {}
        self._unread: set[Watched] = set()
        self._waker: Waker | None = None

    def wait_like(self, spin: float, yields_for: float) -> None:
        """Poll and yield for at least so many seconds before a sleep."""
        self.spin = max(self.spin, spin)
        self._yields_for = max(self._yields_for, yields_for)
        self.polls = self.spin > 0.0 and self._cores.suffice
        waits = self.spin + self._yields_for > 0.0
        self.yields = waits and not self.polls and not self._cores.shares_process
        self.glances = range(_GLANCES if self.polls else 1)

    def open(self) -> None:
        """Open the selector, for links with sockets."""
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self.watch(self._waker, READ)

    def use(self, bell: Bell) -> None:
        """Sleep at this doorbell."""
        self._bells.append(bell)

    def close(self) -> None:
        """Wait until no other thread drives, and release the descriptors. Idempotent.

        `alarm` must be set before, and every `check_possible` must raise.
        """
        self.driver.close()
        self._bells.clear()
        if self._waker is not None:
            self.watch(self._waker, 0)
        self._close_descriptors()

    def abandon(self) -> None:
        """In a forked child: ring nobody, and close the descriptors. Descriptors that are closed later are not
        unregistered, since the parent uses the same selector."""
        self.alarm = True
        self._bells.clear()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        selector, self._selector = self._selector, None
        waker, self._waker = self._waker, None
        self._interest.clear()
        self._unread.clear()
        if selector is not None:
            selector.close()
        if waker is not None:
            waker.close()

    @property
    def selects(self) -> bool:
        """True if it sleeps in a selector."""
        return self._selector is not None

    # For links with sockets.

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
            with suppress(KeyError):  # an interrupt has left the call that unregistered it
                self._selector.unregister(watched)
        if events:
            self._interest[watched] = events
        else:
            del self._interest[watched]
        self._writing += bool(events & WRITE) - bool(before & WRITE)
        self.wake()

    def revisit(self, watched: Watched) -> None:
        """Call `ready(READ)` of `watched` once more regardless of its descriptor: it holds bytes already read."""
        self._unread.add(watched)
        self.wake()

    def hurry(self, when: float) -> None:
        """Call `tick` by `when` at the latest."""
        if when < self._tick_at:
            self._tick_at = when
            self.wake()

    @property
    def quiet(self) -> bool:
        """True if no other thread drives, no data waits to be written, and none of those read waits to be handled."""
        return not (self.driver.thread or self._writing or self._unread or self.alarm)

    def serve(self, now: float, but: Collection[object] = ()) -> bool:
        """Serve all peers, since `due` has come, but for the lanes `but`: those that a holder of the lock, which has
        found the loop quiet, is about to serve alone for a moment. Their bytes would take a way that is three times as
        long. True if the loop is still quiet."""
        self.due = now + _SWEEP_EVERY
        if self.polls:
            self._cores.leave()  # calls that end soon, or in compiled code, would never find their core shared
        self._sweep(but)
        if self._selector is not None:
            self._select(0, but)
        else:
            self._tick_if_due(now)
        return self.quiet

    # For waits.

    def glance(self, awaited: Awaited) -> None:
        """Make all progress that is possible without waiting."""
        self._sweep()
        if awaited.done:
            return
        if self._selector is not None:
            if self._poke(awaited):
                self.driver.interrupt()
            if not awaited.done and self.driver.thread is None:
                self._select(0)
        else:
            self._tick_if_due(time.monotonic())

    # The mover of the driver.

    def wake(self) -> None:
        if self._waker is not None:
            if self.driver.asleep:
                self._waker.wake()
        else:
            for bell in self._bells:
                bell.ring()

    def announce(self, awaited: Awaited) -> None:
        awaited.request_wakeup()

    def awake(self) -> None:
        for bell in self._bells:
            bell.disarm()

    def drive(self, awaited: Awaited, deadline: float) -> bool:
        if self.alarm:
            awaited.check_possible()
        since = now = time.monotonic()
        longest = FIRST_SLEEP
        while True:
            moved = self._sweep()
            if self._selector is not None and not awaited.done:
                # While data wait to be written, polling one connection would delay the peers.
                due = self._writing or now >= self.due
                moved = (self._select(0) if due else self._poke(awaited)) or moved
            if awaited.done:
                return True
            now = time.monotonic()
            if moved:  # more bytes may follow immediately
                since, longest = now, FIRST_SLEEP
            idle = now - since
            if idle < self.spin and now < deadline:
                if not moved and self._selector is not None:
                    self._cores.leave()
                continue
            self._tick_if_due(now)
            if now >= deadline:
                awaited.check_possible()
                return False
            if idle < self.spin + self._yields_for:
                awaited.check_possible()
                unlocked(self.driver.lock, self._cores.leave)
            else:
                sure = all(bell.sure for bell in self._bells)
                self._sleep(awaited, now, deadline - now if sure else min(longest, deadline - now))
                longest = min(2 * longest, self._longest_sleep)

    def _sleep(self, awaited: Awaited, now: float, seconds: float) -> None:
        bells, by_descriptor = self._bells, self._selector is not None
        if not all(bell.arm(by_descriptor=by_descriptor) for bell in bells) or len(bells) > 1:
            seconds = min(seconds, FIRST_SLEEP)
        awaited.request_wakeup()
        if not bells or (not self._sweep() and not awaited.done):
            awaited.check_possible()
            if by_descriptor:
                self._select(max(0.0, min(seconds, self._tick_at - now)))
            else:
                self.driver.sleep(partial(bells[0].sleep, seconds))
            self.driver.notify()  # the sleep may have ended because a follower's wait has
        self.awake()

    def _sweep(self, but: Collection[object] = ()) -> bool:
        try:
            moved = self._progress.sweep(but)
        except BaseException as error:
            self._progress.crashed(error)
            raise
        if moved:
            self.driver.notify()
        return moved

    def _poke(self, awaited: Awaited) -> bool:
        try:
            return awaited.poke()
        except BaseException as error:
            self._progress.crashed(error)
            raise

    def _tick_if_due(self, now: float) -> None:
        if now >= self._tick_at:
            self._tick_at = self._progress.tick(now)

    def _select(self, timeout: float, but: Collection[object] = ()) -> bool:
        """Wait for events for at most `timeout` seconds and handle them all, except those of `but`; True if there were
        any but wakeups."""
        selector = self._selector
        if selector is None:
            return False
        if timeout > 0 and not self._unread:
            try:
                events = self.driver.sleep(partial(selector.select, timeout))
            except (OSError, ValueError):
                if self._selector is not None:
                    raise
                return False  # a signal handler has closed the transport that its own thread drives
        else:
            events = selector.select(0)
        try:
            for key, mask in events:
                if not key.data.closed and key.data not in but:
                    key.data.ready(mask)
            if self._unread:
                unread, self._unread = self._unread, set()
                for watched in unread:
                    if not watched.closed:
                        watched.ready(READ)
            now = time.monotonic()
            self._tick_if_due(now)
        except BaseException as error:
            self._progress.crashed(error)
            raise
        self.due = now + _SWEEP_EVERY
        return any(key.data is not self._waker for key, _ in events)


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
            self._far.send(b"\0")
            self._pending = True  # after it: an interrupt in between costs a wakeup too many, and loses none

    def ready(self, events: int) -> None:
        self._pending = False
        self._near.recv(16)

    def close(self) -> None:
        self.closed = True
        self._near.close()
        self._far.close()
