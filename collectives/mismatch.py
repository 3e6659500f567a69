"""After a mismatch: every rank tells through the store what it called, and all raise one table of it."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Final

from transports.errors import DeadlineExceeded, MismatchError, RendezvousError
from transports.rendezvous.store import Store

_PATIENCE: Final = 1.0
"""Seconds to wait for what the other ranks say; those that compute, or are done, say nothing."""
_NOT_THE_CALLER: Final = frozenset({"collectives", "transports", "frontends", "threading"})


def mismatch(store: Store, context: int, rank: int, size: int, said: str, detail: str) -> MismatchError:
    """The error to raise on this rank of a communicator, for which `said` tells what it was in.

    store    the group's; `context` keeps communicators apart
    detail   what was noticed
    """
    part = store.prefixed(f"mismatch/{context}")
    deadline = time.monotonic() + _PATIENCE
    rows = [f"rank {rank}: {said}, called from {_caller()}"]
    with contextlib.suppress(RendezvousError):  # without a store the own row has to do
        part.set(str(rank), rows[0].encode())
        rows = [_row(part, peer, deadline) for peer in range(size)]
    table = "\n  ".join(rows)
    return MismatchError(f"the ranks' calls do not fit together ({detail}):\n  {table}", rank=rank)


def _row(store: Store, peer: int, deadline: float) -> str:
    try:
        return store.get(str(peer), deadline).decode()
    except DeadlineExceeded:
        return f"rank {peer}: in no call of this communicator, or it did not say"


def _caller() -> str:
    """Where the user's code called: the innermost frame that is not Ronde's, nor of the thread that runs its jobs."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_CALLER:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return "an asynchronous call"
