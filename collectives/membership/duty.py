"""A duty that one of several ranks has, so that the others need not do the same work. It passes on when its holder
gives no sign for some time.

Store keys, in the part of the duty
    holder/TERM   the rank that holds the duty in that term
    signs         counts the signs of the holder
"""

from __future__ import annotations

from typing import Final

from transports.liveness import Steady
from transports.store import Store

SIGN_SECONDS: Final = 0.5
"""Time between two signs of the holder, and the shortest between two looks of another rank."""
LAPSE_SECONDS: Final = 2.0
"""Time without a sign after which the duty passes on."""
_LONGEST_GAP: Final = 3.0
"""Time between two looks after which this rank did not run itself."""


class Duty:
    """One rank's view of a duty.

    Two ranks may hold it for a moment, when a holder was stopped and goes on: what holders do must allow that.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = b"%d" % rank
        self._term = 0
        self._signs = Steady(_LONGEST_GAP)
        self._held = False
        self._look_at = 0.0

    def held(self, now: float) -> bool:
        """True if this rank has the duty at `now` (monotonic seconds). Raises RendezvousError.

        To be called from time to time, by the holder at least once in LAPSE_SECONDS. Costs at most a request in
        SIGN_SECONDS, but two at first.
        """
        if now < self._look_at:
            return self._held
        first, self._look_at = self._look_at == 0.0, now + SIGN_SECONDS
        if first:
            self._take()
        elif not self._held and self._signs.seen(self._store.peek("signs"), now) >= LAPSE_SECONDS:
            self._term += 1
            self._take()
        if self._held:
            self._store.add("signs", 1)
        return self._held

    def _take(self) -> None:
        """Take the duty for this term, if nobody has."""
        self._held = self._store.set_default(f"holder/{self._term}", self._rank) == self._rank
        self._signs.forget()
