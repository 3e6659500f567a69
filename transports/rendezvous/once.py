"""Decisions in a store: several ranks may propose, the first proposal is chosen, and all ranks read the same one.

A proposal is stored before it can be chosen, and one call of the store chooses it. A rank may therefore die at any
point: either all ranks can read a decision, or none was made, and the next proposal makes it.
"""

from __future__ import annotations

import contextlib
from typing import Final

from transports.errors import RendezvousError
from transports.store import Store

_CHOSEN: Final = 1 << 62
"""The first rank adds this to a counter. A second addition would exceed 64 bits, and the store refuses it."""


def decide(store: Store, key: str, proposal: bytes, deadline: float) -> bytes:
    """Propose, and return the decision. Raises RendezvousError, DeadlineExceeded."""
    number = store.add(f"{key}/proposals", 1)
    store.set(f"{key}/{number}", proposal)
    with contextlib.suppress(ValueError):  # another one is chosen
        store.add(f"{key}/chosen", _CHOSEN + number)
    return decided(store, key, deadline)


def decided(store: Store, key: str, deadline: float) -> bytes:
    """The decision, waited for until `deadline`. Raises DeadlineExceeded, RendezvousError."""
    try:
        number = int(store.get(f"{key}/chosen", deadline)) - _CHOSEN
    except ValueError as error:
        raise RendezvousError(
            f"the store holds something else where the number of a decision should be: {error}"
        ) from error
    return store.get(f"{key}/{number}", deadline)
