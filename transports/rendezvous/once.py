"""What is decided once: many may propose, the first proposal holds, and all see the same.

The proposal is in the store before it can be chosen, and one call of the store chooses it. So a rank may die at any
point of it: there is a decision that all can read, or none yet, and then the next to propose makes it.
"""

from __future__ import annotations

import contextlib
from typing import Final

from transports.errors import RendezvousError
from transports.rendezvous.store import Store

_CHOSEN: Final = 1 << 62
"""Counters keep to 64 bits, so that after one number beyond this no other can be added."""


def decide(store: Store, key: str, proposal: bytes, deadline: float) -> bytes:
    """Propose; what is decided. Raises RendezvousError, DeadlineExceeded."""
    number = store.add(f"{key}/proposals", 1)
    store.set(f"{key}/{number}", proposal)
    with contextlib.suppress(ValueError):  # another one is chosen
        store.add(f"{key}/chosen", _CHOSEN + number)
    return decided(store, key, deadline)


def decided(store: Store, key: str, deadline: float) -> bytes:
    """What is decided, waited for until `deadline`. Raises DeadlineExceeded, RendezvousError."""
    try:
        number = int(store.get(f"{key}/chosen", deadline)) - _CHOSEN
    except ValueError as error:
        raise RendezvousError(
            f"the store holds something else where the number of a decision should be: {error}"
        ) from error
    return store.get(f"{key}/{number}", deadline)
