"""Which rank failed first: what tells the cause from its consequences.

Ranks that fail in consequence often end sooner than the one that failed on its own account; even a killed process may
still be ending when others have noticed and are gone. So every rank that ends with an error says in the job's store
which of the two it is, the culprit before it aborts, and so before any other can have heard of it. A rank that is
killed can say nothing, but then the others say that it was not them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from transports.errors import AbortedError, ClosedError, DeadlineExceeded, PeerLost, RondeError
from transports.rendezvous.store import Store

_HASTE_SECONDS: Final = 1.0
"""What the store gets to answer a rank that ends."""
_COUNT: Final = "launcher/failures"
_FIRST: Final = "launcher/first-failure"
_CONSEQUENCE: Final = "launcher/consequence/{}"


def is_consequence(error: BaseException) -> bool:
    """True for an error that may only tell of a failure somewhere else, or that was raised while handling one."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, AbortedError | ClosedError | DeadlineExceeded | PeerLost):
            return True
        link = link.__cause__ or link.__context__
    return False


def say_why(store: Store, rank: int, error: BaseException) -> None:
    """To be called by a rank that ends with `error`, before it aborts. `store` is the job's, not a part of it. Never
    raises, and hardly waits: if the store cannot be reached, the launcher is gone too, or on the other side of what
    went wrong."""
    store = store.hasty(_HASTE_SECONDS)
    with contextlib.suppress(RondeError):
        if is_consequence(error):
            store.set(_CONSEQUENCE.format(rank), b"")
        elif store.add(_COUNT, 1) == 1:
            store.set(_FIRST, b"%d" % rank)


def culprit(store: Store, failed: Sequence[int]) -> int:
    """Which of the `failed` ranks, in the order in which they ended, did so first: the one that said so first, else
    the first that did not say that it was another, else the first."""
    with contextlib.suppress(RondeError):
        said = _said(store, _FIRST)
        for rank in failed:
            if said == b"%d" % rank:
                return rank
        for rank in failed:
            if _said(store, _CONSEQUENCE.format(rank)) is None:
                return rank
    return failed[0]


def _said(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key, time.monotonic())
    except DeadlineExceeded:
        return None
