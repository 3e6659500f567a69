"""The state machine of a transport: opened once, closed once, failed for good by the first cause.

      new --begin_open--> opening --opened--> open --begin_close--> closing --closed--> closed
                 a failure (`fail`) may be set in every state but the last, and stays

Every transport owns one `Lifecycle` and checks it before each call. It holds no connection, no queue and no window: the
transport itself carries out a failure or a close.
"""

from __future__ import annotations

import copy
import enum
import threading
from collections.abc import Callable, Iterable

from transports.base import Group
from transports.errors import AbortedError, ClosedError, ForkedError, PeerLost, RondeError, described
from transports.forking import register


class State(enum.IntEnum):
    """The states of a transport, in the order in which it passes through them."""

    NEW = enum.auto()
    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


def _nothing() -> None:
    """The default of `abandon`."""


class Lifecycle:
    """State, failure and obstacle of one transport. Call every method but `after_fork` with the transport's lock held.
    `after_fork` is called by itself in every forked child (see `transports.forking`).

    state     see the module
    failure   the first cause of an abort; None while there is none
    obstacle  the error of every new call: None while the transport is open and has not failed. Raise `error()`
    lock      guards the transport; `after_fork` makes it usable again in the child
    abandon   called by `after_fork` with the lock held: close inherited descriptors and mappings without a protocol;
              send, unlink, join and wake nothing
    """

    __slots__ = ("__weakref__", "_abandon", "_group", "_subject", "failure", "lock", "obstacle", "rank", "state")

    def __init__(self, group: Group, kind: str, lock: threading.RLock, abandon: Callable[[], None] = _nothing) -> None:
        """`kind` names the transport in messages: 'TCP transport'."""
        self.rank = group.rank
        self.lock = lock
        self.state = State.NEW
        self.failure: RondeError | None = None
        self._subject = f"the {kind} of rank {group.rank}"
        self._group = group
        self._abandon = abandon
        self.obstacle: RondeError | None = ClosedError(f"{self._subject} is not open", rank=self.rank)
        register(self)

    def __str__(self) -> str:
        return self._subject

    @property
    def closing(self) -> bool:
        """True from `begin_close` on."""
        return self.state >= State.CLOSING

    @property
    def closed(self) -> bool:
        """True once everything was released."""
        return self.state is State.CLOSED

    def begin_open(self) -> None:
        """new -> opening. Raises the failure, or ClosedError if the transport was opened or closed before."""
        if self.state is not State.NEW:
            raise ClosedError(f"{self._subject} was opened before; a transport is opened once", rank=self.rank)
        self.raise_failure()
        self.state = State.OPENING

    def opened(self) -> None:
        """opening -> open: from now on calls are accepted. Raises as `raise_failure`."""
        self.raise_failure()
        if self.state is State.OPENING:
            self.state = State.OPEN
            self.obstacle = None

    def fail(self, cause: RondeError) -> bool:
        """Make `cause` the failure. False, with nothing changed, if there is one already or the transport is closed."""
        if self.failure is not None or self.state is State.CLOSED:
            return False
        self.failure = self.obstacle = cause
        return True

    def begin_close(self) -> bool:
        """-> closing: new calls raise. False if the transport is closing or closed already."""
        if self.state >= State.CLOSING:
            return False
        self._end(State.CLOSING)
        return True

    def close(self) -> bool:
        """-> closed, from every state. False if the transport is closed already."""
        if self.state is State.CLOSED:
            return False
        self._end(State.CLOSED)
        return True

    def raise_failure(self) -> None:
        """Raise the failure, or ClosedError once the transport is closed. (While it is closing, waits go on.)"""
        if self.failure is not None:
            raise copy.copy(self.failure)  # each raise has a traceback of its own
        if self.state is State.CLOSED:
            raise self.error()

    def error(self) -> RondeError:
        """The error to raise where `obstacle` is not None."""
        return copy.copy(self.obstacle) or ClosedError(f"{self._subject} is not open", rank=self.rank)

    def cause(self, error: BaseException, did: str) -> RondeError:
        """The cause with which this rank aborts because of `error`: the error itself if it is one of Ronde's, else an
        AbortedError with the text `did` ('gave up opening the transport')."""
        if isinstance(error, RondeError):
            return error
        return AbortedError(f"{self._group.describe(self.rank)} {did}: {described(error)}", rank=self.rank)

    def left(self, peer: int) -> PeerLost:
        """The error of a wait for a peer that has closed, by a call or at the end of its program."""
        text = f"{self._group.describe(peer)} closed its transport while rank {self.rank} was waiting for it"
        return PeerLost(f"{text}: its program ended, or called shutdown or close", rank=self.rank, peer=peer)

    def all_left(self, sources: Iterable[int]) -> PeerLost:
        """The error of a receive from any of `sources` after all of them but this rank have closed."""
        peers = sorted(set(sources) - {self.rank})
        names = self._group.describe_all(peers)
        text = f"{names} closed, and no other rank can send the frame that rank {self.rank} was waiting for"
        text += ": its program" if len(peers) == 1 else ": their programs"
        text += " ended, or called shutdown or close"
        return PeerLost(text, rank=self.rank, peer=peers[0] if len(peers) == 1 else None)

    def after_fork(self) -> None:
        """Make the transport inert in a forked child, in any state and with any owner of its lock.

        Afterwards every call raises ForkedError, and abort and close do nothing.
        """
        if isinstance(self.failure, ForkedError):  # a child of a child
            return
        if not self.lock.acquire(blocking=False):  # its owner is a thread that exists in the parent only
            self.lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does
            self.lock.acquire()
        try:
            self.failure = self.obstacle = self._group.forked_error()
            self.state = State.CLOSED
            self._abandon()
        finally:
            self.lock.release()

    def _end(self, state: State) -> None:
        self.state = state
        self.obstacle = self.failure or ClosedError(f"{self._subject} was closed", rank=self.rank)
