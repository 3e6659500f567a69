"""Calls that do not fit together. Most are noticed by the frames that they exchange, which carry a digest of the call;
those in which all ranks but wait, by what the ranks that wait tell each other. After a mismatch every rank tells what
it called, and all raise one table of it. All telling is through the store.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from transports.errors import DeadlineExceeded, MismatchError, RendezvousError
from transports.packed import pack, unpack
from transports.rendezvous.store import Store

_PATIENCE: Final = 1.0
"""Seconds to wait for what the other ranks say; those that compute, or are done, say nothing."""
_NOT_THE_CALLER: Final = frozenset({"collectives", "transports", "frontends", "threading"})


def compare(
    store: Store, key: str, ranks: Sequence[int], rank: int, recent: Sequence[tuple[int, int, str]]
) -> MismatchError | None:
    """For a rank that has waited long in a call, now and then: leave what it called lately, and look at what the one
    before left, who may be any that waits. The mismatch, if there is one.

    recent   the calls' numbers, what must be equal on all ranks, and that in words
    Costs two calls of the store. What is compared are facts, so a rank that is only slow is nobody's mismatch; and of
    ranks at odds two will meet, since the note goes round among all. Raises RendezvousError.
    """
    part = store.prefixed("waiting")
    try:
        left = part.get(key, time.monotonic())
    except DeadlineExceeded:
        left = pack((rank, ()))
    part.set(key, pack((rank, recent)))
    own = {number: (check, text) for number, check, text in recent}
    for other, number, check, text in _notes(left, len(ranks)):
        if number in own and own[number][0] != check:
            said = f"call {number} of rank {other} was {text}, that of rank {rank} {own[number][1]}"
            return MismatchError(said, rank=ranks[rank], peer=ranks[other])
    return None


def _notes(left: bytes, size: int) -> Iterator[tuple[int, int, int, str]]:
    """Who left a note, and the numbers, checks and texts of the calls in it; none if it is nonsense."""
    with contextlib.suppress(ValueError):
        match unpack(left):
            case [int(other), [*calls]] if 0 <= other < size:
                for call in calls:
                    match call:
                        case [int(number), int(check), str(text)]:
                            yield other, number, check, text


def mismatch(store: Store, key: str, rank: int, size: int, said: str, detail: str) -> MismatchError:
    """The error to raise on this rank of a communicator, for which `said` tells what it was in.

    store    the group's; `key` keeps communicators apart
    detail   what was noticed
    """
    part = store.prefixed(f"mismatch/{key}")
    deadline = time.monotonic() + _PATIENCE
    rows = [f"rank {rank}: {said}, called from {_caller()}"]
    with contextlib.suppress(RendezvousError):  # without a store the own row has to do
        part.set(str(rank), rows[0].encode(errors="replace"))
        rows = [_row(part, peer, deadline) for peer in range(size)]
    table = "\n  ".join(rows)
    return MismatchError(f"the ranks' calls do not fit together ({detail}):\n  {table}", rank=rank)


def _row(store: Store, peer: int, deadline: float) -> str:
    try:
        return store.get(str(peer), deadline).decode(errors="replace")
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
