"""Giving up: how the reason of one rank reaches all ranks, whatever they are doing.

The transport is told first: it is quick, but reaches only ranks that it is connected to and that wait. The store keeps
the first cause. Every rank has a bell there, by which its watchman (watch.py) is woken to look.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable
from typing import Final

from transports.base import Transport
from transports.errors import ConnectError, DeadlineExceeded, PeerLost, RendezvousError, RondeError
from transports.rendezvous.causes import Causes

_CONSEQUENCES: Final = (ConnectError, DeadlineExceeded, PeerLost)
"""Errors that another rank's failure may look like from here."""
_PATIENCE: Final = 0.3
"""Seconds that a rank waits to hear whether one of these has a cause that is known."""


_HASTE_SECONDS: Final = 1.0
"""What the store gets to answer, so that one which hangs holds nobody up."""


class Alarm:
    """The alarm of one rank, for all communicators on its transport. Its methods may be called from any thread, and
    raise nothing, but for `ring` and `rest`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        store = transport.group.store
        self._causes = Causes(store)
        self._bells = store.prefixed("bell").hasty(_HASTE_SECONDS)
        self.explain: Callable[[DeadlineExceeded], DeadlineExceeded] = lambda error: error
        """Finds out who is behind it that a call's time is over; the watchman knows how."""

    @property
    def failure(self) -> RondeError | None:
        """Why this rank gave up, None while all is well."""
        return self._transport.failure

    def sound(self, cause: RondeError) -> None:
        """Give up, and tell all ranks why. The first cause wins; after it nothing happens."""
        self._transport.abort(cause)
        earlier = self._transport.failure
        if earlier is not None and not isinstance(earlier, _CONSEQUENCES):
            cause = earlier  # the transport has told peers of it already, by its own ways
        if self._causes.tell(cause):
            self._ring_others()

    def settle(self, error: RondeError, patience: float = _PATIENCE) -> RondeError:
        """Give up because of `error`, or of what it is the consequence of; returns that cause, the same on every rank.

        A lost or late peer may be the consequence of what another rank tells at this moment: hence the patience,
        seconds that it gets for it. Where several ranks miss a peer at once, the first of them to tell is believed.
        """
        if not isinstance(error, _CONSEQUENCES):
            self.sound(error)
            return error
        known = self._causes.ask(patience)
        first = known is None and self._causes.tell(error)
        if known is None and not first:
            known = self._causes.ask(_PATIENCE)
        cause = error if known is None else known
        self._transport.abort(cause)
        if first:
            self._ring_others()
        return cause

    def give_up(self, error: RondeError, text: str) -> RondeError:
        """`settle` for an error of this rank's own, in what `text` tells; what to raise for it."""
        own = error.within(text)
        if isinstance(own, DeadlineExceeded):
            own = self.explain(own)
        cause = self.settle(own)
        return copy.copy(own) if cause is own else cause.within(text)

    def heed(self) -> None:
        """Give up if another rank has."""
        cause = self._causes.ask(0.0)
        if cause is not None:
            self._transport.abort(cause)

    def ring(self, ranks: Iterable[int]) -> None:
        """Wake the watchmen of ranks, so that they look for news. Raises RendezvousError."""
        for rank in ranks:
            self._bells.set(str(rank), b"")

    def rest(self, seconds: float) -> bool:
        """Wait so long at most; True if this rank was rung for, since the last time. Raises RendezvousError."""
        bell = str(self._transport.rank)
        try:
            self._bells.get(bell, time.monotonic() + seconds)
        except DeadlineExceeded:
            return False
        self._bells.delete(bell)  # before the news is looked at: what comes later rings again
        return True

    def _ring_others(self) -> None:
        with contextlib.suppress(RendezvousError):  # whom the transport does not tell either finds out in a call
            self.ring(rank for rank in range(self._transport.size) if rank != self._transport.rank)
