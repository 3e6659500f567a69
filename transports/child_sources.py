"""Receives from any source, for a transport that reaches its peers by several inner ones.

A receive is posted with every inner transport that reaches one of its sources; all share a claim, so one of them takes
a frame. A frame of one peer always comes by the same inner transport, so frames of a pair of ranks keep their order.
The frame that has waited longest tells which inner transport is asked first, so that none is starved by another.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from transports.anysource import AnyRequest, AnySource, Arrival, Claim, check_any
from transports.base import Transport
from transports.child import Child
from transports.errors import DeadlineExceeded, MismatchError, RondeError
from transports.joint_waits import PAST, Event

_Part = tuple[Child, AnyRequest]
_Share = tuple[Child, frozenset[int]]

"""Number of ranks that an error names."""


class Parent(Protocol):
    """The transport made of several inner ones."""

    def translate(self, child: Child, error: RondeError) -> RondeError:
        """The error to raise for an error of an inner transport: the first failure if that transport has failed."""

    def wait(self, event: Event, deadline: float) -> bool:
        """Wait until `event` has happened (True) or the deadline has passed (False)."""

    def poll(self, but: Child) -> None:
        """Make progress on all inner transports except `but`. Raises the first failure."""

    def check_open(self) -> None:
        """Raises the first failure, or ClosedError."""

    def all_left(self, sources: frozenset[int]) -> RondeError:
        """Fail, since all other ranks of `sources` have closed. Returns the first failure."""


class ChildSources(AnySource):
    """The ability of the whole transport. `route` has the inner transport of each peer."""

    def __init__(self, parent: Parent, whole: Transport, route: Sequence[Child]) -> None:
        self._parent = parent
        self._whole = whole
        self._route = route
        self._known: dict[frozenset[int], tuple[list[_Share], bool]] = {}
        """The answers of `_shares`: there are few different sets of sources."""

    def irecv_any(
        self,
        sources: frozenset[int],
        tags: range,
        view: memoryview | None,
        check: int | None = None,
        claim: Claim | None = None,
    ) -> AnyRequest:
        check_any(self._whole, sources, tags, view, check)
        self._parent.check_open()
        shared = Claim() if claim is None else claim
        parts: list[_Part] = []
        for child, places in self.shares(sources, tags):
            try:
                parts.append((child, ability(child).irecv_any(places, tags, view, check, shared)))
            except RondeError as error:
                raise self._parent.translate(child, error) from None
            if parts[-1][1].arrival is not None:
                for _, request in parts[:-1]:
                    request.withdraw()
                return _ChildRequest(self._parent, self, parts[-1:], sources, alone=False)
        return _ChildRequest(self._parent, self, parts, sources, alone=claim is None)

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        check_any(self._whole, sources, tags, None, None)
        self._parent.check_open()
        probe = _Probe(self, sources, tags)
        if not probe.attempt(PAST) and deadline > time.monotonic():
            self._parent.wait(probe, deadline)
        return probe.arrival

    def reachable(self, sources: frozenset[int]) -> bool:
        shares, with_others = self._shares(sources)
        own = self._whole.rank
        return not with_others or any(
            ability(child).reachable(places) for child, places in shares if places != {child.place.get(own)}
        )

    def since(self, sources: frozenset[int], tags: range) -> float:
        return min(ability(child).since(places, tags) for child, places in self._shares(sources)[0])

    def shares(self, sources: frozenset[int], tags: range) -> list[_Share]:
        """The inner transports that reach some of `sources`, the one first whose frame has waited longest."""
        shares = self._shares(sources)[0]
        return sorted(shares, key=lambda one: ability(one[0]).since(one[1], tags)) if len(shares) > 1 else shares

    def _shares(self, sources: frozenset[int]) -> tuple[list[_Share], bool]:
        """The inner transports that reach some of `sources`, with the numbers that these have there; and whether other
        ranks than this one are among them."""
        if sources in self._known:
            return self._known[sources]
        places: dict[int, set[int]] = {}
        children: dict[int, Child] = {}
        for source in sources:
            child = self._route[source]
            children[id(child)] = child
            places.setdefault(id(child), set()).add(child.place[source])
        shares = [(child, frozenset(places[key])) for key, child in children.items()]
        found = self._known[sources] = shares, sources != {self._whole.rank}
        return found

    def overdue(self, sources: frozenset[int]) -> DeadlineExceeded:
        """The error of a receive that has waited too long."""
        group = self._whole.group
        text = f"rank {group.rank} waited too long for a frame from any of {group.describe_all(sources)}"
        return DeadlineExceeded(text, rank=group.rank)

    def ask(self, child: Child, places: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        """The envelope of a frame that has arrived by an inner transport, or does so before the deadline."""
        try:
            found = ability(child).probe(places, tags, deadline)
        except RondeError as error:
            raise self._parent.translate(child, error) from None
        return None if found is None else found._replace(source=child.ranks[found.source])


def ability(child: Child) -> AnySource:
    """The ability of an inner transport that has it."""
    found = child.transport.ability(AnySource)
    assert found is not None
    return found


class _Probe(Event):
    """A frame has arrived from any of `sources`, or none can come any more. `arrival`: its envelope."""

    def __init__(self, joint: ChildSources, sources: frozenset[int], tags: range) -> None:
        self.arrival: Arrival | None = None
        self._joint = joint
        self._sources = sources
        self._tags = tags
        self.child = self._largest(joint.shares(sources, tags))[0]

    def attempt(self, until: float) -> bool:
        joint, tags = self._joint, self._tags
        shares = [one for one in joint.shares(self._sources, tags) if ability(one[0]).reachable(one[1])]
        for child, places in shares:
            if self.arrival is None:
                self.arrival = joint.ask(child, places, tags, PAST)
        self.done = self.arrival is not None or not joint.reachable(self._sources)
        if not self.done and until > PAST:
            self.arrival = joint.ask(*self._largest(shares), tags, until)
            self.done = self.arrival is not None
        return self.done

    def _largest(self, shares: list[_Share]) -> _Share:
        return max(shares, key=lambda one: len(one[1]))


class _ChildRequest(AnyRequest, Event):
    """Receives of several inner transports, of which one takes a frame."""

    def __init__(
        self, parent: Parent, joint: ChildSources, parts: list[_Part], sources: frozenset[int], *, alone: bool
    ) -> None:
        self._parent = parent
        self._joint = joint
        self._parts = parts
        self._sources = sources
        self._alone = alone
        self.child = parts[0][0]

    @property
    def arrival(self) -> Arrival | None:
        part = self._matched()
        if part is None:
            return None
        child, request = part
        arrival = request.arrival
        assert arrival is not None
        return arrival._replace(source=child.ranks[arrival.source])

    @property
    def view(self) -> memoryview:
        return (self._matched() or self._parts[0])[1].view

    def withdraw(self) -> bool:
        withdrawn = [request.withdraw() for _, request in self._parts]
        return all(withdrawn)

    def test(self) -> bool:
        if self._test_parts():
            return True
        self._parent.poll(self._parts[0][0])
        self._check_alone()
        return False

    def wait(self, deadline: float) -> None:
        if not self._test_parts() and not self._parent.wait(self, deadline):
            raise self._joint.overdue(self._sources)

    def attempt(self, until: float) -> bool:
        self.done = self._test_parts()
        if self.done or until <= PAST:
            return self.done
        self._check_alone()
        child, request = self._parts[0]
        try:
            request.wait(until)
        except (DeadlineExceeded, MismatchError) as error:  # `_test_parts` raises that of the request
            if child.transport.failure is not None:
                raise self._parent.translate(child, error) from None
        except RondeError as error:
            raise self._parent.translate(child, error) from None
        self.done = self._test_parts()
        return self.done

    def _test_parts(self) -> bool:
        for child, request in self._parts:
            try:
                if request.test():
                    self._matched()
                    return True
            except RondeError as error:
                raise self._parent.translate(child, error) from None
        return False

    def _check_alone(self) -> None:
        if self._alone and self._matched() is None and not self._joint.reachable(self._sources):
            raise self._parent.all_left(self._sources)

    def _matched(self) -> _Part | None:
        """The part that has matched a frame; the others are withdrawn."""
        for part in self._parts:
            if part[1].arrival is not None:
                for other in self._parts:
                    if other is not part:
                        other[1].withdraw()
                self._parts = [part]
                self.child = part[0]
                return part
        return None
