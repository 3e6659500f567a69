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
from transports.base import FIRST_SLICE, LAST_SLICE, Transport
from transports.child import Child
from transports.errors import DeadlineExceeded, MismatchError, RondeError

_Part = tuple[Child, AnyRequest]
_Share = tuple[Child, frozenset[int]]

"""Number of ranks that an error names."""


class Parent(Protocol):
    """The transport made of several inner ones."""

    def translate(self, child: Child, error: RondeError) -> RondeError:
        """The error to raise for an error of an inner transport: the first failure if that transport has failed."""

    def drive(self, but: Child) -> None:
        """Drive all inner transports except `but`. Raises the first failure."""

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
        pause = FIRST_SLICE
        while True:
            now = time.monotonic()
            shares = [one for one in self.shares(sources, tags) if ability(one[0]).reachable(one[1])]
            for child, places in shares:
                if (found := self._ask(child, places, tags, now)) is not None:
                    return found
            if now >= deadline or not self.reachable(sources):
                return None
            child, places = max(shares, key=lambda one: len(one[1]))
            if (found := self._ask(child, places, tags, min(deadline, now + pause))) is not None:
                return found
            self._parent.drive(child)
            pause = min(2 * pause, LAST_SLICE)

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

    def _ask(self, child: Child, places: frozenset[int], tags: range, deadline: float) -> Arrival | None:
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


class _ChildRequest(AnyRequest):
    """Receives of several inner transports, of which one takes a frame."""

    def __init__(
        self, parent: Parent, joint: ChildSources, parts: list[_Part], sources: frozenset[int], *, alone: bool
    ) -> None:
        self._parent = parent
        self._joint = joint
        self._parts = parts
        self._sources = sources
        self._alone = alone

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
        for child, request in self._parts:
            try:
                if request.test():
                    self._matched()
                    return True
            except RondeError as error:
                raise self._parent.translate(child, error) from None
        self._parent.drive(self._parts[0][0])
        if self._alone and self._matched() is None and not self._joint.reachable(self._sources):
            raise self._parent.all_left(self._sources)
        return False

    def wait(self, deadline: float) -> None:
        pause = FIRST_SLICE
        while not self.test():
            now = time.monotonic()
            child, request = self._parts[0]
            if now >= deadline:
                raise self._joint.overdue(self._sources)
            try:
                request.wait(min(deadline, now + pause))
            except (DeadlineExceeded, MismatchError) as error:  # `test` raises that of the request
                if child.transport.failure is not None:
                    raise self._parent.translate(child, error) from None
            except RondeError as error:
                raise self._parent.translate(child, error) from None
            pause = min(2 * pause, LAST_SLICE)

    def _matched(self) -> _Part | None:
        """The part that has matched a frame; the others are withdrawn."""
        for part in self._parts:
            if part[1].arrival is not None:
                for other in self._parts:
                    if other is not part:
                        other[1].withdraw()
                self._parts = [part]
                return part
        return None
