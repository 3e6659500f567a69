"""Waits on several inner transports: the waiting thread makes progress on all of them, and sleeps once for all.

By the rule of `transports.driver` one waiting thread drives. It waits in the awaited transport, by that transport's own
rule, in slices which double from FIRST_SLICE to LAST_SLICE, and drives the others between them. Most waits end in this
time. Then it sleeps on the descriptors of all transports together (see `transports.pollable`) until one of them has
work, drives it, and waits in the awaited transport for LAST_SLICE again. So every transport makes progress within
LAST_SLICE, and a rank that has nothing to do sleeps.

A transport without a descriptor is driven every LAST_SLICE, and a wait for one goes on in slices.
"""

from __future__ import annotations

import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from transports.base import FIRST_SLICE, LAST_SLICE, Group
from transports.child import Child
from transports.cores import Cores
from transports.driver import Driver
from transports.errors import RondeError
from transports.locks import unlocked
from transports.pollable import FIRST_SLEEP, LONGEST_SLEEP, Pollable

T = TypeVar("T")

PAST: Final = 0.0
"""A deadline in the past: a wait until then polls."""


class Parent(Protocol):
    """The transport made of the inner ones."""

    def translate(self, child: Child, error: RondeError) -> RondeError:
        """The error to raise for an error of an inner transport: the first failure if that transport has failed."""


class Event(ABC):
    """The end of a wait.

    child  the inner transport in which it is awaited
    done   set by `attempt`
    """

    child: Child
    done = False

    @abstractmethod
    def attempt(self, until: float) -> bool:
        """Wait until `until` in the inner transport. Sets and returns `done`; raises errors of the whole transport."""

    def check_possible(self) -> None:
        """Look for the event, in a thread that does not drive. Raises as `attempt`."""
        self.attempt(PAST)

    def announce(self) -> bool:
        """Let the event end a sleep on the descriptor of the inner transport from now on; returns True if it has
        happened. The default is for events that do so anyway."""
        return self.attempt(PAST)


class JointWaits:
    """The waits of one transport, and the engine of their `driver`. The inner transports must be open."""

    def __init__(self, parent: Parent, group: Group, children: Sequence[Child]) -> None:
        self._parent = parent
        self._abilities: list[tuple[Child, Pollable | None]] = [
            (child, child.transport.ability(Pollable)) for child in children
        ]
        self._selector: selectors.BaseSelector | None = selectors.DefaultSelector()
        for child, pollable in self._abilities:
            if pollable is not None:
                self._selector.register(pollable.descriptor, selectors.EVENT_READ, child)
        cores = next((pollable.cores for _, pollable in self._abilities if pollable is not None), Cores(group, False))
        self._driver: Driver[Event] = Driver(self, cores, LONGEST_SLEEP)

    def wait(self, event: Event, deadline: float) -> bool:
        """Wait until `event` has happened (True) or the deadline has passed (False). Raises as `Event.attempt`."""
        if event.attempt(min(deadline, time.monotonic() + FIRST_SLICE)):  # needs no driver
            return True
        return self._driver.wait(event, deadline)

    def poll(self, but: Child) -> None:
        """Make progress on all inner transports except `but`. Raises the first failure."""
        for child, _ in self._abilities:
            if child is not but:
                self._poll(child)

    @property
    def entered(self) -> bool:
        """See Driver.entered."""
        return self._driver.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        """See Transport.unlocked."""
        return unlocked(self._driver.lock, function)

    def interrupted(self) -> None:
        """See Driver.interrupted."""
        self._driver.interrupted()

    def close(self) -> None:
        """Wait until no other thread drives, and release the selector. The inner transports must be closed before."""
        with self._driver.lock:
            self._driver.close()
            self.abandon()

    def abandon(self) -> None:
        """Release the selector, of which a forked child has a copy."""
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    # The engine of the driver.

    def announce(self, event: Event) -> None:
        event.announce()

    def wake(self) -> None:
        """Nothing to do: an inner transport that fails or closes ends the sleep."""

    def awake(self) -> None:
        """Nothing to do: `_sleep` ends all that it has prepared."""

    def drive(self, event: Event, deadline: float) -> bool:
        pollable = next(pollable for child, pollable in self._abilities if child is event.child)
        moment, limit = FIRST_SLICE, FIRST_SLEEP
        while True:
            now = time.monotonic()
            if self._unlocked_attempt(event, min(deadline, now + moment)):
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            if pollable is None or 0.0 < moment < LAST_SLICE:
                self.poll(event.child)
                moment = min(2 * moment, LAST_SLICE)
            else:
                active = self._sleep(event, min(deadline, now + limit))
                limit = FIRST_SLEEP if active else min(2 * limit, LONGEST_SLEEP)
                moment = LAST_SLICE if active else 0.0

    def _unlocked_attempt(self, event: Event, until: float) -> bool:
        self._driver.notify()
        return unlocked(self._driver.lock, partial(event.attempt, until))

    def _sleep(self, event: Event, until: float) -> list[Child]:
        """Sleep until an inner transport can make progress, `until` at the latest. Returns those that can, or did."""
        prepared, active = list[Pollable](), list[Child]()
        try:
            for child, pollable in self._abilities:
                if pollable is None:
                    self._poll(child)
                    until = min(until, time.monotonic() + LAST_SLICE)
                    continue
                prepared.append(pollable)
                try:
                    until = min(until, due := pollable.prepare())
                except RondeError as error:
                    raise self._parent.translate(child, error) from None
                if not due:
                    active.append(child)
            if not active and not event.announce() and (left := until - time.monotonic()) > 0:
                active += self._driver.sleep(partial(self._select, left))
            return active
        finally:
            for pollable in prepared:
                pollable.finish()

    def _select(self, seconds: float) -> list[Child]:
        selector = self._selector
        assert selector is not None
        try:
            return [key.data for key, _ in selector.select(seconds)]
        except (OSError, ValueError):
            if self._selector is not None:
                raise
            return []  # a signal handler has closed the transport on which its own thread waits

    def _poll(self, child: Child) -> None:
        try:
            child.progress.poll()
        except RondeError as error:
            raise self._parent.translate(child, error) from None
