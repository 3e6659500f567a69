"""The progress loop of the TCP transport: polls the most likely connection, then all, then sleeps in a selector.

`transports.driver` has the rule of locking: the thread that drives this loop is one of those that wait.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from transports import driver
from transports.cores import Cores
from transports.driver import Driver

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

CAN_BE_POLLED: Final = selectors.DefaultSelector is getattr(selectors, "EpollSelector", None)
"""True if the selector has a descriptor that another selector can watch."""

_SWEEP_EVERY = 0.001
_LONGEST_WAIT = 3600.0
_GLANCES = 16


class Watched(Protocol):
    """Something with a descriptor that the loop watches."""

    closed: bool

    def fileno(self) -> int:
        """The descriptor."""

    def ready(self, events: int) -> None:
        """Make progress; `events` are the possible ones of READ and WRITE. Never raises for errors of the other end."""


class Awaited(driver.Awaited, Protocol):
    """The condition that a wait ends on, with a way to make progress towards it directly."""

    def poke(self) -> bool:
        """Serve the most likely connection directly, without a selector; True if that made progress."""


class Loop:
    """A selector and the engine of its `driver`. The driver's lock is held in every call.

    alarm    set, for good, once a wait may be impossible to complete; from then on the driver calls
             `Awaited.check_possible`
    spin     seconds that a wait polls before it sleeps
    cores    the cores on which it polls
    polls    True if a wait may poll one connection alone for a moment, since there is a core for each rank
    yields   True if a wait may yield the core instead, since ranks that are processes share cores
    tick     called with the time; returns the time of its next call
    crashed  called when an exception escapes while bytes are moved, so that streams may be corrupt
    """

    def __init__(
        self,
        spin: float,
        cores: Cores,
        tick: Callable[[float], float],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.driver: Driver[Awaited] = Driver(self, cores, _LONGEST_WAIT)
        self.alarm = False
        self.polls = spin > 0.0 and cores.suffice
        self.yields = spin > 0.0 and not self.polls and not cores.shares_process
        self.glances = range(_GLANCES if self.polls else 1)
        """Number of polls of one connection while no other is served; some 25 us, if waits poll at all."""
        self._spin = spin
        self._cores = cores
        self._tick = tick
        self._crashed = crashed
        self._tick_at = 0.0
        self._sweep_at = 0.0
        self._writing = 0
        self._selector: selectors.BaseSelector | None = None
        self._interest: dict[Watched, int] = {}
        self._unread: set[Watched] = set()
        self._waker: Waker | None = None
        self._polled = False

    def open(self) -> None:
        """Open the descriptors that the loop needs."""
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self.watch(self._waker, READ)

    def close(self) -> None:
        """Wait until no other thread drives, and release the descriptors. Idempotent.

        `alarm` must be set before, and every `check_possible` must raise.
        """
        self.driver.close()
        if self._waker is not None:
            self.watch(self._waker, 0)
            self._waker.close()
            self._waker = None
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    def abandon(self) -> None:
        """In a forked child: close the descriptors. Descriptors that are closed later are not unregistered, since the
        parent uses the same selector."""
        self.alarm = True
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self._waker is not None:
            self._waker.close()
            self._waker = None

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

    def idle(self, now: float) -> bool:
        """True if the holder of the lock may serve one connection alone for a moment: no other thread drives, no data
        waits to be written, and serving all connections is not due."""
        return now < self._sweep_at and self.quiet

    @property
    def quiet(self) -> bool:
        """True if no other thread drives, no data waits to be written, and none of those read waits to be handled."""
        return not (self.driver.thread or self._writing or self._unread or self.alarm)

    def serve(self, now: float) -> bool:
        """Serve all connections if that is due, for a holder of the lock that has found the loop quiet. True if it is
        still quiet."""
        if now < self._sweep_at:
            return True
        self._sweep(0)
        return self.quiet

    def glance(self, awaited: Awaited) -> None:
        """Make all progress that is possible without waiting."""
        if self._poke(awaited):
            self.driver.interrupt()
        if not awaited.done and self.driver.thread is None and self._sweep(0) and self._polled:
            self.wake()

    # For a thread that sleeps on the selector's descriptor; see `transports.pollable`.

    def fileno(self) -> int:
        """The selector's descriptor. It is readable when one of the watched descriptors is ready."""
        assert isinstance(self._selector, selectors.EpollSelector)
        return self._selector.fileno()

    def prepare(self) -> float:
        """See Pollable. While another thread drives, that one handles the events: it may have received them already."""
        moved = self.driver.thread is None and self._sweep(0)
        self._polled = True
        return 0.0 if moved or self._unread else self._tick_at

    def finish(self) -> None:
        """See Pollable."""
        self._polled = False

    # The engine of the driver.

    def wake(self) -> None:
        if (self.driver.asleep or self._polled) and self._waker is not None:
            self._waker.wake()

    def announce(self, awaited: Awaited) -> None:
        """The selector wakes the driver for everything."""

    def awake(self) -> None:
        """Nothing to do: a wakeup that came stays in the waker's socket, and ends the next sleep."""

    def drive(self, awaited: Awaited, deadline: float) -> bool:
        if self.alarm:
            awaited.check_possible()
        now = time.monotonic()
        spin_until = now + self._spin
        while True:
            if self._writing or now >= self._sweep_at or now >= spin_until:
                # While data wait to be written, polling one connection would delay the peers.
                asleep = now >= spin_until
                moved = self._sweep(max(0.0, min(deadline, self._tick_at) - now) if asleep else 0)
            else:
                moved = self._poke(awaited)
            if moved and self._polled:  # its frame may have arrived, too
                self.wake()
            if awaited.done:
                return True
            now = time.monotonic()
            if moved:  # more bytes may follow immediately
                spin_until = now + self._spin
            elif now >= spin_until or now >= deadline:
                if self.alarm:
                    awaited.check_possible()
                if now >= deadline:
                    return False
            else:
                self._cores.leave()

    def _poke(self, awaited: Awaited) -> bool:
        try:
            return awaited.poke()
        except BaseException as error:
            self._crashed(error)
            raise

    def _sweep(self, timeout: float) -> bool:
        """Wait for events for at most `timeout` seconds and handle them all; True if there were any but wakeups."""
        selector = self._selector
        assert selector is not None
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
            self._pending = True
            self._far.send(b"\0")

    def ready(self, events: int) -> None:
        self._near.recv(16)
        self._pending = False

    def close(self) -> None:
        self.closed = True
        self._near.close()
        self._far.close()
