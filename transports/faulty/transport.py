"""The wrapper: a transport that applies the rules to each operation first."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from transports.anysource import AnyRequest, AnySource, Arrival
from transports.base import LinkCost, Request, Transport, check_arguments
from transports.compiled import CompiledMessages
from transports.errors import DeadlineExceeded, RondeError
from transports.faulty.rules import Action, Operation, Rule
from transports.onesided import Memory, OneSided, Window
from transports.progress import ProgressRequest

A = TypeVar("A")
T = TypeVar("T")

Faults = dict[Action, Rule]
"""The rules that hit one operation, at most one of each action."""


class FaultyTransport(Transport):
    """`inner`, with faults. Frames of a rank to itself must not use the highest tag, which the wrapper's waits use.

    It keeps the contract of waits: a hanging or late operation still has a deadline and still notices an abort.
    """

    name = "faulty"

    def __init__(self, inner: Transport, rules: Sequence[Rule] = (), seed: int = 0) -> None:
        super().__init__(inner.group)
        self.inner = inner
        self._rules = tuple(rules)
        self._seen = [0] * len(self._rules)
        self._random = random.Random(f"{seed}/{inner.rank}")
        self._lock = threading.Lock()
        self._windows: OneSided | None = None
        self._progress = ProgressRequest(inner)

    @property
    def authenticated(self) -> bool:
        return self.inner.authenticated

    @property
    def failure(self) -> RondeError | None:
        return self.inner.failure

    def open(self, deadline: float) -> None:
        self.inner.open(deadline)
        windows = self.inner.ability(OneSided)
        self._windows = None if windows is None else _FaultyWindows(self, windows)

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        faults = self.apply_rules(Operation("send", self.rank, peer, tag, len(view)))
        if not faults:
            return self.inner.isend(peer, tag, view, check)
        if "hang" in faults or "drop" in faults:
            return _FaultyRequest(self, peer, None, faults)
        if "corrupt" in faults or "truncate" in faults:
            payload = bytearray(view)
            if "corrupt" in faults:
                self.flip(memoryview(payload))
            view = memoryview(payload)[: len(payload) - ("truncate" in faults)]
        if "mislabel" in faults:
            check ^= 1
        return _FaultyRequest(self, peer, self.inner.isend(peer, tag, view, check), faults)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        check_arguments(self, peer, tag, check)
        faults = self.apply_rules(Operation("recv", self.rank, peer, tag, len(view)))
        if not faults:
            return self.inner.irecv(peer, tag, view, check)
        if "hang" in faults:
            return _FaultyRequest(self, peer, None, faults)
        return _FaultyRequest(self, peer, self.inner.irecv(peer, tag, view, check), faults, view)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        if any(isinstance(request, _FaultyRequest) for request in requests):
            return super().wait_any(requests, deadline)
        return self.inner.wait_any(requests, deadline)

    def abort(self, cause: RondeError) -> None:
        self.inner.abort(cause)

    @property
    def entered(self) -> bool:
        return self.inner.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        return self.inner.unlocked(function)

    def interrupted(self) -> None:
        self.inner.interrupted()

    def close(self, deadline: float) -> None:
        self.inner.close(deadline)

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        return self.inner.link_costs()

    def ability(self, kind: type[A]) -> A | None:
        if isinstance(self._windows, kind):
            return self._windows
        if issubclass(kind, AnySource):
            sources = self.inner.ability(AnySource)
            found = None if sources is None else _Sources(sources)
            return found if isinstance(found, kind) else None
        return None if issubclass(kind, (OneSided, CompiledMessages)) else self.inner.ability(kind)

    def apply_rules(self, operation: Operation) -> Faults:
        """The rules that hit `operation`. Rules of the actions raise and kill are carried out before it returns."""
        faults: Faults = {}
        if (
            self.inner.failure is not None
        ):  # the operation fails anyway; and in a forked child the lock may never be released
            return faults
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.matches(operation):
                    self._seen[index] += 1
                    if rule.nth in (None, self._seen[index]) and self._random.random() < rule.chance:
                        faults.setdefault(rule.action, rule)
        if "kill" in faults:
            self._kill(faults["kill"])
        if "raise" in faults:
            text = f"a fault was injected into the {operation.kind} of rank {self.rank}, peer {operation.peer}"
            self.inner.abort(faults["raise"].error(text, rank=self.rank, peer=operation.peer))
        return faults

    def flip(self, view: memoryview) -> None:
        """Flip all bits of one byte, if there is one."""
        if len(view):
            with self._lock:
                view[self._random.randrange(len(view))] ^= 0xFF

    def wait_until(self, until: float, deadline: float, peer: int) -> None:
        """Wait until `until`, driving the transport. Raises its first failure, or DeadlineExceeded, which names `peer`
        as late."""
        if time.monotonic() < until:
            self._progress.wait_until(min(until, deadline))
            if deadline < until:
                late = f"rank {self.rank} waited too long for {self.group.describe(peer)}, by an injected fault"
                raise DeadlineExceeded(late, rank=self.rank, peer=peer)

    def make_progress(self) -> None:
        """Make all possible progress. Raises the first failure."""
        self._progress.poll()

    def _kill(self, rule: Rule) -> None:
        if callable(rule.by):
            rule.by(self)
        elif rule.by == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            with suppress(DeadlineExceeded):  # the rank must not flush
                self.inner.close(time.monotonic())


class _FaultyRequest(Request):
    """An inner request (None: nothing was sent) that completes late or never, or whose bytes are changed."""

    def __init__(
        self,
        transport: FaultyTransport,
        peer: int,
        inner: Request | None,
        faults: Faults,
        received: memoryview | None = None,
    ) -> None:
        self._transport = transport
        self._peer = peer
        self._inner = inner
        self._delay = faults["delay"].seconds if "delay" in faults else 0.0
        if "hang" in faults:
            self._delay = math.inf
        self._due: float | None = None
        self._to_corrupt = received if "corrupt" in faults else None

    def test(self) -> bool:
        if self._inner is not None and not self._inner.test():
            return False
        due = self._arrived()
        if time.monotonic() < due:
            self._transport.make_progress()
            return False
        return True

    def wait(self, deadline: float) -> None:
        if self._inner is not None:
            self._inner.wait(deadline)
        self._transport.wait_until(self._arrived(), deadline, self._peer)

    def _arrived(self) -> float:
        """Monotonic time at which the request completes, after its inner request has completed."""
        if self._due is None:
            self._due = time.monotonic() + self._delay
            if self._to_corrupt is not None:
                self._transport.flip(self._to_corrupt)
        return self._due


class _Sources(AnySource):
    """The ability, to which no rule applies; frames that are taken at once are left to receives, so that rules do."""

    def __init__(self, inner: AnySource) -> None:
        self._inner = inner

    def irecv_any(
        self, sources: frozenset[int], tags: range, view: memoryview | None, check: int | None = None
    ) -> AnyRequest:
        return self._inner.irecv_any(sources, tags, view, check)

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        return self._inner.probe(sources, tags, deadline)

    def issend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return self._inner.issend(peer, tag, view, check)

    def reachable(self, sources: frozenset[int]) -> bool:
        return self._inner.reachable(sources)


class _FaultyWindows(OneSided):
    def __init__(self, transport: FaultyTransport, inner: OneSided) -> None:
        self._transport = transport
        self._inner = inner

    def reaches(self, ranks: tuple[int, ...]) -> bool:
        return self._inner.reaches(ranks)

    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        return _FaultyWindow(self._transport, self._inner.expose(key, ranks, nbytes, deadline))


class _FaultyWindow(Window):
    """A window that applies the rules to publish and wait."""

    def __init__(self, transport: FaultyTransport, inner: Window) -> None:
        self._transport = transport
        self._inner = inner
        self.ranks = inner.ranks
        self.index = inner.index
        self.nbytes = inner.nbytes

    def view(self, index: int) -> memoryview:
        return self._inner.view(index)

    def publish(self, epoch: int, check: int | None = None) -> None:
        faults = self._apply_rules("publish", self.index, epoch)
        if "drop" in faults:
            return
        if "delay" in faults:
            self._transport.wait_until(time.monotonic() + faults["delay"].seconds, math.inf, self._transport.rank)
        self._inner.publish(epoch, check if check is None or "corrupt" not in faults else check ^ 1)

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        faults = self._apply_rules("wait", index, epoch)
        if "hang" in faults:
            self._transport.wait_until(math.inf, deadline, self.ranks[index])
        self._inner.wait(index, epoch, deadline, check)
        if "delay" in faults:
            self._transport.wait_until(time.monotonic() + faults["delay"].seconds, deadline, self.ranks[index])

    def expose_arrays(self, *pieces: Memory) -> bool:
        return self._inner.expose_arrays(*pieces)

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        self._inner.read(index, piece, offset, target)

    def can_read_peers(self, deadline: float, check: int = 0) -> bool:
        return self._inner.can_read_peers(deadline, check)  # rules count operations from the first call on

    def close(self) -> None:
        self._inner.close()

    def _apply_rules(self, kind: Any, index: int, epoch: int) -> Faults:
        operation = Operation(kind, self._transport.rank, self.ranks[index], epoch, self.nbytes)
        faults = self._transport.apply_rules(operation)
        if "raise" in faults or "kill" in faults:
            self._transport.make_progress()
        return faults
