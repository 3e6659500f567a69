"""Reports of ranks to the launcher, through the job's store: which rank failed first, and which ranks were left behind.

Ranks that fail as a consequence often end sooner than the rank that caused it; even a killed process may end after
others have noticed. So every rank that ends with an error reports whether the error is a cause or a consequence. The
culprit reports before it aborts, and so before another rank can know. A killed rank reports nothing, but the other
ranks report consequences.

Store keys, in the part `launcher` of the job's store
    failures            counts the ranks that reported a cause
    first-failure       the first of them
    consequence/RANK    the rank reported a consequence
    left-out/RANK       the others have gone on without the rank
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from transports.errors import AbortedError, ClosedError, DeadlineExceeded, PeerLost, RendezvousError, RondeError
from transports.store import Store

_STORE_SECONDS: Final = 1.0
"""Time for the store to answer a rank that ends."""
_PART: Final = "launcher"


def is_consequence(error: BaseException) -> bool:
    """True for an error that may be the consequence of a failure elsewhere, or was raised while handling such one."""
    link: BaseException | None = error
    seen: set[int] = set()  # the causes of an error may come back to it
    while link is not None and id(link) not in seen:
        if isinstance(link, AbortedError | ClosedError | DeadlineExceeded | PeerLost):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False


def report_exit(store: Store, rank: int, error: BaseException) -> None:
    """Report that `rank` ends with `error`. To be called before it aborts, with the job's whole store.

    Never raises, and waits for a second at most: if the store cannot be reached, nor can the launcher.
    """
    part = store.prefixed(_PART).with_timeout(_STORE_SECONDS)
    with contextlib.suppress(RondeError):
        if is_consequence(error):
            part.set(f"consequence/{rank}", b"")
        elif part.add("failures", 1) == 1:
            part.set("first-failure", b"%d" % rank)


def culprit(store: Store, failed: Sequence[int]) -> int:
    """The rank that failed first, of the ranks `failed` in the order in which they ended.

    It is the first that reported a cause; else the first that did not report a consequence; else the first that ended.
    """
    part = store.prefixed(_PART)
    with contextlib.suppress(RondeError):
        first = part.peek("first-failure")
        for rank in failed:
            if first == b"%d" % rank:
                return rank
        for rank in failed:
            if part.peek(f"consequence/{rank}") is None:
                return rank
    return failed[0]


def report_left_out(store: Store, ranks: Iterable[int]) -> None:
    """Report that the other ranks have gone on without `ranks`, which the launcher may have to end. Never raises."""
    part = store.prefixed(_PART)
    with contextlib.suppress(RendezvousError):
        for rank in ranks:
            part.set(f"left-out/{rank}", b"")


def withdraw_left_out(store: Store, rank: int) -> None:
    """Report that a rank takes part again. Raises RendezvousError."""
    store.prefixed(_PART).delete(f"left-out/{rank}")


def are_left_out(store: Store, ranks: Iterable[int]) -> bool:
    """True if the others have gone on without all these ranks. Never raises."""
    part = store.prefixed(_PART)
    try:
        return all(part.peek(f"left-out/{rank}") is not None for rank in ranks)
    except RendezvousError:
        return False
