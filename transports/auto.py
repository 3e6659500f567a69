"""Shared memory inside a host, TCP across hosts, chosen per peer.

The ranks of every host open an inner transport among themselves, and all ranks open one across hosts, each only if it
is needed: a single host needs no TCP, one rank per host needs no shared memory. If the ranks of a host cannot use
shared memory they use TCP, and log this once.

A rank with both must serve two transports: while it waits on one, the other must make progress too, or its peers would
stall, and an abort of either must reach both. `joint_waits` has the rule. A rank with a single transport waits on it
directly.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transports import registry
from transports.anysource import AnySource
from transports.base import Group, LinkCost, Member, Request, Transport, check_arguments
from transports.child import Child
from transports.child_sources import ChildSources
from transports.direct import DirectMessages
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError, RondeError
from transports.host_windows import HostWindows
from transports.joint_waits import PAST, Event, JointWaits
from transports.lifecycle import Lifecycle
from transports.locks import is_mine, let_go, unlocked
from transports.native import NativeCollectives
from transports.onesided import OneSided
from transports.settings import pairs

A = TypeVar("A")
T = TypeVar("T")

log = logging.getLogger("ronde.auto")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `auto`. Raises ConfigError for a bad value.

    intra          name of the transport between ranks of one host
    inter          name of the transport between hosts
    intra_options  settings of the transport `intra`, each "setting=value"
    inter_options  settings of the transport `inter`, each "setting=value"
    device         name of the transport whose collectives serve arrays on devices, if all ranks can use it; empty for
                   none
    """

    intra: str = "shm"
    inter: str = "tcp"
    intra_options: tuple[str, ...] = ()
    inter_options: tuple[str, ...] = ()
    device: str = "nccl"

    def __post_init__(self) -> None:
        for setting, name in (("intra", self.intra), ("inter", self.inter)):
            if name == AutoTransport.name:
                raise ConfigError(f"{setting}={name!r}: must be another transport")


def create(group: Group, options: Options) -> Transport:
    """The transport, not yet open. No I/O. Raises ConfigError for a bad inner setting."""
    return AutoTransport(group, options)


def usable() -> str | None:
    """None if one of the two default transports can be used."""
    defaults = Options()
    reasons = [registry.backend(name).usable() for name in (defaults.intra, defaults.inter)]
    return None if None in reasons else "; ".join(map(str, reasons))


class AutoTransport(Transport):
    """See the module."""

    name = "auto"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        super().__init__(group)
        self._options = options or Options()
        self._intra_options = _settings(self._options.intra, self._options.intra_options, "intra_options")
        self._inter_options = _settings(self._options.inter, self._options.inter_options, "inter_options")
        self._accompany = None if not self._options.device else _accompaniment(self._options.device)
        self._lock = threading.RLock()
        self._children: list[Child] = []
        self._sole: Transport | None = None
        self._alone_inside = False
        self._route: list[Child] = []
        self._onesided: OneSided | None = None
        self._sources: AnySource | None = None
        self._native: NativeCollectives | None = None
        self._waits: JointWaits | None = None
        self._life = Lifecycle(group, "automatic transport", self._lock, self._abandon)

    @property
    def authenticated(self) -> bool:
        """True if every inner transport is authenticated; known from `open` on."""
        return bool(self._children) and all(child.transport.authenticated for child in self._children)

    @property
    def failure(self) -> RondeError | None:
        if self._sole is not None:
            return self._sole.failure
        self._adopt_failures()
        return self._life.failure

    def open(self, deadline: float) -> None:
        with self._lock:
            self._life.begin_open()
        members = self.group.members
        here = tuple(rank for rank, member in enumerate(members) if member.host == members[self.rank].host)
        everyone = tuple(range(self.size))
        try:
            inside = False
            if len(here) > 1 or self.size == 1:
                child = self._child(self._options.intra, self._intra_options, here, "intra")
                inside = self._agree(child, deadline)
                if inside:
                    self._open(child, deadline)
            if not inside or here != everyone:
                self._open(self._child(self._options.inter, self._inter_options, everyone, "inter"), deadline)
            if len(self._children) == 2:
                self._waits = JointWaits(self, self.group, self._children)
            if self._accompany is not None:
                self._native = self._accompany(self)
        except BaseException as error:
            self.abort(self._life.cause(error, "gave up opening the transport"))
            self.close(deadline)
            raise
        with self._lock:
            self._life.opened()
        if len(self._children) == 1:
            self._sole = self._children[0].transport
            self._sources = self._sole.ability(AnySource)
            self._alone_inside = inside
            return
        nearest = {rank: child for child in reversed(self._children) for rank in child.ranks}
        self._route = [nearest[rank] for rank in everyone]
        if all(child.transport.ability(AnySource) is not None for child in self._children):
            self._sources = ChildSources(self, self, self._route)
        if inside:
            windows = self._children[0].transport.ability(OneSided)
            self._onesided = None if windows is None else HostWindows(self, self._children[0], windows)

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        if self._sole is not None:
            return self._sole.isend(peer, tag, view, check)
        child = self._child_to(peer, tag, check)
        try:
            return _AutoRequest(self, child, child.transport.isend(child.place[peer], tag, view, check))
        except RondeError as error:
            raise self.translate(child, error) from None

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        if self._sole is not None:
            return self._sole.irecv(peer, tag, view, check)
        child = self._child_to(peer, tag, check)
        try:
            return _AutoRequest(self, child, child.transport.irecv(child.place[peer], tag, view, check))
        except RondeError as error:
            raise self.translate(child, error) from None

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int = 0) -> None:
        if self._sole is not None:
            return self._sole.recv(peer, tag, view, deadline, check)
        return super().recv(peer, tag, view, deadline, check)

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int = 0
    ) -> Request:
        if self._sole is not None:
            return self._sole.sendrecv(dest, source, tag, data, view, deadline, check)
        return super().sendrecv(dest, source, tag, data, view, deadline, check)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        if self._sole is not None or not requests:
            return (self._sole or self._children[0].transport).wait_any(requests, deadline)
        own = [request for request in requests if isinstance(request, _AutoRequest)]
        if len(own) < len(requests):
            return super().wait_any(requests, deadline)
        event = _AnyEnded(self, own)
        if not event.attempt(PAST):
            self.wait(event, deadline)
        return event.ended

    def abort(self, cause: RondeError) -> None:
        with self._lock:
            if self.failure is None and self._life.fail(cause):  # also while closing, which waits for peers
                for child in self._children:
                    child.transport.abort(child.inward(cause))

    @property
    def entered(self) -> bool:
        waiting = self._waits is not None and self._waits.entered
        return waiting or is_mine(self._lock) or any(child.transport.entered for child in self._children)

    def unlocked(self, function: Callable[[], T]) -> T:
        for child in self._children:
            function = partial(child.transport.unlocked, function)
        if self._waits is not None:
            function = partial(self._waits.unlocked, function)
        return unlocked(self._lock, function)

    def interrupted(self) -> None:
        for child in self._children:
            child.transport.interrupted()
        if self._waits is not None:
            self._waits.interrupted()
        let_go(self._lock)

    def close(self, deadline: float) -> None:
        with self._lock:
            if not self._life.begin_close():
                return
        late: list[RondeError] = []
        native, self._native = self._native, None
        if native is not None:
            try:
                native.close(deadline)
            except RondeError as error:
                late.append(error)

        def shut(child: Child) -> None:
            try:
                child.transport.close(deadline)
            except DeadlineExceeded as error:
                late.append(child.outward(error))

        # In parallel: a peer may close one transport only after it has received frames that another has yet to flush.
        others = [threading.Thread(target=shut, args=(child,), name="ronde auto close") for child in self._children[1:]]
        for thread in others:
            thread.start()
        for child in self._children[:1]:
            shut(child)
        for thread in others:
            thread.join()
        if self._waits is not None:
            self._waits.close()
        with self._lock:
            self._adopt_failures()
            self._life.close()
        if late:
            raise late[0]

    def ability(self, kind: type[A]) -> A | None:
        if isinstance(self._native, kind):
            return self._native
        if isinstance(self._sources, kind):  # how a rank receives concerns no other rank
            return self._sources
        if self._sole is not None and issubclass(kind, DirectMessages):  # nor how it sends
            return self._sole.ability(kind)
        if self._sole is not None:  # across hosts some ranks may have two transports, so the abilities are not common
            return self._sole.ability(kind) if self._alone_inside else None
        return self._onesided if isinstance(self._onesided, kind) else None

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        """The costs of the configured transports, not of those in use, so that all hosts agree."""
        intra = registry.backend(self._options.intra).create(self.group, self._intra_options)
        inter = registry.backend(self._options.inter).create(self.group, self._inter_options)
        return intra.link_costs()[0], inter.link_costs()[1]

    def wait(self, event: Event, deadline: float) -> bool:
        """Wait until `event` has happened (True) or the deadline has passed (False)."""
        waits = self._waits
        if waits is None:
            raise self._life.refused()
        return waits.wait(event, deadline)

    def poll(self, but: Child) -> None:
        """Make progress on all inner transports except `but`. Raises the first failure."""
        if self._waits is not None:
            self._waits.poll(but)

    def check_open(self) -> None:
        """Raises the first failure, or ClosedError."""
        if self._life.refusal is not None:
            raise self._life.refused()

    def all_left(self, sources: frozenset[int]) -> RondeError:
        """Fail, since all other ranks of `sources` have closed. Returns the first failure."""
        lost = self._life.all_left(sources)
        self.abort(lost)
        return copy.copy(self._life.failure or lost)

    def adopt(self, child: Child, failure: RondeError) -> RondeError:
        """Record the failure of an inner transport unless there was one before. Returns the first failure."""
        with self._lock:
            mine = child.outward(failure)
            if self._life.fail(mine):
                for other in self._children:
                    other.transport.abort(other.inward(mine))
            return copy.copy(self._life.failure or mine)

    def translate(self, child: Child, error: RondeError) -> RondeError:
        """The error to raise for an error of an inner transport: the first failure if that transport has failed."""
        failure = child.transport.failure
        return child.outward(error) if failure is None else self.adopt(child, failure)

    def _child_to(self, peer: int, tag: int, check: int) -> Child:
        check_arguments(self, peer, tag, check)
        if self._life.refusal is not None or not self._route:
            raise self._life.refused()
        return self._route[peer]

    def _abandon(self) -> None:
        """In a forked child: close the selector."""
        if self._waits is not None:
            self._waits.abandon()

    def _adopt_failures(self) -> None:
        for child in self._children:
            if child.transport.failure is not None:
                self.adopt(child, child.transport.failure)

    def _agree(self, child: Child, deadline: float) -> bool:
        """True if all ranks of this host can use the transport `intra`. The same result on each of them."""
        store, name, here = self.group.store.prefixed("auto"), self._options.intra, child.ranks
        own = (registry.backend(name).usable() or child.transport.shortage() or "").encode()
        table = f"usable/{here[0]}"
        try:
            reasons = store.gather(table, here.index(self.rank), len(here), own, deadline)
        except DeadlineExceeded:
            rank = next((here[place] for place, row in enumerate(store.rows(table)) if row is None), here[0])
            text = f"{self.group.describe(rank)} did not open the transport in time"
            raise DeadlineExceeded(text, rank=self.rank, peer=rank) from None
        except ValueError as error:
            raise RendezvousError(f"the store holds invalid data of transport {name!r}: {error}") from error
        for rank, reason in zip(here, reasons, strict=True):
            if reason:
                if self.rank == here[0]:
                    log.warning(
                        "transport %r cannot be used by %s: %s; the ranks of its host use %r instead",
                        name,
                        self.group.describe(rank),
                        reason.decode(errors="replace"),
                        self._options.inter,
                    )
                return False
        return True

    def _child(self, name: str, options: Any, ranks: tuple[int, ...], role: str) -> Child:
        """An inner transport among `ranks`, not yet open."""
        group = dataclasses.replace(
            self.group,
            rank=ranks.index(self.rank),
            members=tuple(self._member(rank, place) for place, rank in enumerate(ranks)),
            store=self.group.store.prefixed(f"auto/{role}-{ranks[0]}"),
        )
        return Child(registry.backend(name).create(group, options), ranks)

    def _open(self, child: Child, deadline: float) -> None:
        """Open an inner transport."""
        self._children.append(child)
        try:
            child.transport.open(deadline)
        except RondeError as error:
            raise child.outward(error) from error

    def _member(self, rank: int, place: int) -> Member:
        """The member at `place` of an inner group. Its name includes its number in this group if they differ."""
        member = self.group.members[rank]
        if rank == place:
            return member
        return dataclasses.replace(member, hostname=f"{member.hostname}, which is rank {rank} of all {self.size}")


def _settings(name: str, texts: tuple[str, ...], source: str) -> Any:
    return registry.make_options(name, pairs(texts, f"setting {source} of transport 'auto'"))


def _accompaniment(name: str) -> Callable[[Transport], NativeCollectives | None]:
    """The function that makes native collectives beside an open transport. Raises ConfigError if `name` has none."""
    found: Callable[[Transport], NativeCollectives | None] | None = getattr(registry.backend(name), "accompany", None)
    if found is None:
        raise ConfigError(f"device={name!r}: must be a transport that can accompany another, or empty")
    return found


class _AutoRequest(Request, Event):
    """A request of one inner transport, whose waits make progress on the others."""

    def __init__(self, auto: AutoTransport, child: Child, inner: Request) -> None:
        self._auto = auto
        self.child = child
        self.inner = inner

    def test(self) -> bool:
        try:
            if self.inner.test():
                return True
        except RondeError as error:
            raise self._auto.translate(self.child, error) from None
        self._auto.poll(self.child)
        return False

    def wait(self, deadline: float) -> None:
        if not self._auto.wait(self, deadline):
            try:
                self.inner.wait(PAST)  # raises the error of the deadline
            except RondeError as error:
                raise self._auto.translate(self.child, error) from None

    def attempt(self, until: float) -> bool:
        try:
            if until > PAST:
                self.inner.wait(until)
                self.done = True
            else:
                self.done = self.inner.test()
        except DeadlineExceeded as error:
            if self.child.transport.failure is not None:
                raise self._auto.translate(self.child, error) from None
        except RondeError as error:
            raise self._auto.translate(self.child, error) from None
        return self.done


class _AnyEnded(Event):
    """One of several requests has ended. `ended`: the positions of all that have."""

    def __init__(self, auto: AutoTransport, requests: Sequence[_AutoRequest]) -> None:
        self.ended: list[int] = []
        self._auto = auto
        by_child: dict[Child, list[int]] = {}
        for position, request in enumerate(requests):
            by_child.setdefault(request.child, []).append(position)
        self._shares = [
            (child, positions, [requests[position].inner for position in positions])
            for child, positions in sorted(by_child.items(), key=lambda one: len(one[1]))
        ]
        self.child = self._shares[-1][0]  # with the most requests

    def attempt(self, until: float) -> bool:
        ended = list[int]()
        for child, positions, inner in self._shares:
            try:
                found = child.transport.wait_any(inner, PAST if ended or child is not self.child else until)
            except RondeError as error:
                raise self._auto.translate(child, error) from None
            ended += [positions[place] for place in found]
        self.ended = sorted(ended)
        self.done = bool(ended)
        return self.done
