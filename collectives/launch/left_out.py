"""Ranks that the others have gone on without: told to the launcher through the job's store, since it may have to end
them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from transports.errors import DeadlineExceeded, RendezvousError
from transports.rendezvous.store import Store

_KEY: Final = "launcher/left-out/{}"


def leave_out(store: Store, ranks: Iterable[int]) -> None:
    """Tell that others have gone on without these ranks. Never raises: nobody but the launcher needs to know."""
    with contextlib.suppress(RendezvousError):
        for rank in ranks:
            store.set(_KEY.format(rank), b"")


def take_back(store: Store, rank: int) -> None:
    """Tell that a rank takes part again. Raises RendezvousError."""
    store.delete(_KEY.format(rank))


def are_left_out(store: Store, ranks: Iterable[int]) -> bool:
    """True if the others have gone on without all these ranks. Never raises."""
    try:
        for rank in ranks:
            store.get(_KEY.format(rank), 0.0)
    except (DeadlineExceeded, RendezvousError):
        return False
    return True
