"""The abort signal: it takes the cause of a failure to every rank.

a call fails ----> transport.abort      quick, but reaches only connected ranks that wait
             ----> store: first cause   the cause that all ranks raise; it wakes the watchdog of each rank

The watchdog of a rank waits for two keys at once: the cause, and wakeup/RANK, by which another rank wakes this one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Final

from collectives.flight import FlightRecord
from transports.base import Transport
from transports.errors import (
    ClosedError,
    ConnectError,
    DeadlineExceeded,
    ForkedError,
    MismatchError,
    PeerLost,
    RondeError,
)
from transports.rendezvous import Causes
from transports.store import Awaited, Store

_CONSEQUENCES: Final = (ConnectError, DeadlineExceeded, PeerLost)
"""Errors that may be the consequence of another rank's failure."""
_CAUSE_SECONDS: Final = 0.3
"""Time that a rank waits for the cause of such an error to become known."""
_STORE_SECONDS: Final = 1.0
"""Maximum seconds to wait for the store's answer, since it may hang."""

ExplainTimeout = Callable[[DeadlineExceeded], DeadlineExceeded]
"""Returns the error with the rank that holds the call up as its peer, and the way to that rank in its text."""


class AbortSignal:
    """The abort signal of one rank, for all communicators on its transport.

    Any thread may call its methods, except `wait`. They raise nothing, except `notify` and `wait`. In a forked child
    they send nothing.

    departure     the error of a named operation that failed since another rank had closed, which aborts nothing; None
                  if there is none
    disagreement  the table of the ranks' calls that do not fit together, once a call of this rank has made it
    """

    def __init__(self, transport: Transport, flight: FlightRecord) -> None:
        """`flight` notes the cause."""
        self._transport = transport
        self._flight = flight
        self._store = transport.group.store.with_timeout(_STORE_SECONDS)
        self._causes = Causes(transport.group.store)
        self._awaited: Awaited | None = None
        self._awaits_cause = False
        self._came: bytes | None = None
        self._explain: ExplainTimeout | None = None
        self.departure: RondeError | None = None
        self.disagreement: MismatchError | None = None

    @property
    def failure(self) -> RondeError | None:
        """The cause for which this rank has aborted; None while the transport works."""
        return self._transport.failure

    def note_departure(self, error: BaseException) -> None:
        """Keep the error of a named operation as `departure`, if it tells that another rank had closed."""
        if isinstance(error, ClosedError) and error.peer is not None:
            self.departure = error

    def explain_timeouts(self, explain: ExplainTimeout) -> None:
        """Let `explain` find the culprit of every DeadlineExceeded that `fail` is given."""
        self._explain = explain

    def told(self, failure: RondeError) -> RondeError:
        """The error by which later calls of this rank tell of a failure of the transport: the table of the ranks' calls
        if these do not fit together and it is known."""
        return self.disagreement if self.disagreement and isinstance(failure, MismatchError) else failure

    def raise_abort(self, cause: RondeError) -> None:
        """Abort, and tell all ranks the cause. A later abort has no effect: the first cause wins."""
        if isinstance(self._transport.failure, ForkedError):
            return
        self._abort(cause)
        earlier = self._transport.failure
        if earlier is not None and not isinstance(earlier, _CONSEQUENCES):
            cause = earlier  # the transport has sent it to its peers already
        self._causes.publish(cause)

    def resolve(self, error: RondeError, patience: float = _CAUSE_SECONDS) -> RondeError:
        """Find the root cause of `error`, and abort with it; returns the cause, the same on every rank.

        patience  seconds to wait for another rank to tell the cause of a lost or late peer

        If several ranks miss a peer at once, the first report becomes the cause.
        """
        failure = self._transport.failure
        if isinstance(failure, ForkedError):
            return failure
        if not isinstance(error, _CONSEQUENCES):
            self.raise_abort(error)
            return error
        if isinstance(error, ConnectError):  # the other rank has given up for a cause that it may be looking for still
            patience += 2 * _CAUSE_SECONDS
        known = self._causes.fetch(patience)
        first = known is None and self._causes.publish(error)
        if known is None and not first:
            known = self._causes.fetch(_CAUSE_SECONDS)
        cause = error if known is None else known
        self._abort(cause)
        return cause

    def resolve_again(self, error: RondeError) -> None:
        """`resolve` for an error of a call of this rank: the store may not have answered the call in time, but answer
        now. So the other ranks learn it."""
        self._causes = Causes(self._transport.group.store)
        self.resolve(error)

    def fail(self, error: RondeError, context: str) -> RondeError:
        """Resolve and abort for a call that failed with `error`; returns the error for the call to raise.

        context  call and step, for the text of the error
        """
        own = error.within(context)
        if self._explain is not None and isinstance(own, DeadlineExceeded):
            own = self._explain(own)
        cause = self.told(self.resolve(own))
        return copy.copy(own) if cause is own else cause.within(context)

    def poll(self) -> None:
        """Abort if `wait` has found that another rank has."""
        cause = None if self._came is None else Causes.read(self._came)
        if cause is not None:
            self._abort(cause)

    def _abort(self, cause: RondeError) -> None:
        self._transport.abort(cause)
        self._flight.fail(
            {"error": type(cause).__name__, "text": cause.message, "rank": cause.rank, "peer": cause.peer}
        )

    def notify(self, ranks: Iterable[int]) -> None:
        """Wake the watchdogs of `ranks`. Raises RendezvousError."""
        wake(self._store, ranks)

    def wait(self, seconds: float) -> bool:
        """Wait for a wakeup, and for an abort of any rank until this rank has aborted, `seconds` at most; False if
        there was none. For one thread, which calls `stop_waiting` at the end. Raises RendezvousError."""
        own = f"wakeup/{self._transport.rank}"
        awaits_cause = self.failure is None and self._came is None
        if self._awaited is None or self._awaits_cause != awaits_cause:
            self.stop_waiting()
            self._awaits_cause = awaits_cause
            self._awaited = self._store.awaited(own, Causes.KEY) if awaits_cause else self._store.awaited(own)
        found = self._awaited.wait(time.monotonic() + seconds)
        if found is None:
            return False
        if found[0] == 0:
            self._store.delete(own)  # before the caller looks for news, so that later news wakes it again
        else:
            self._came = found[1]
        return True

    def stop_waiting(self) -> None:
        """Release what `wait` needs. Idempotent."""
        if self._awaited is not None:
            self._awaited.close()
            self._awaited = None


def wake(store: Store, ranks: Iterable[int]) -> None:
    """Wake the watchdogs of `ranks` of the group with this store. Raises RendezvousError."""
    for rank in ranks:
        store.set(f"wakeup/{rank}", b"")
