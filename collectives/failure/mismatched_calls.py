"""Mismatched calls. Most are noticed by the frames of the call, which carry its digest. Calls in which every rank waits
exchange no frame; their ranks compare notes in the store. After a mismatch every rank writes its call to the store, and
all raise one table of them.

Store keys
    waiting/KEY     rank that waits in the communicator KEY, and its last calls
    mismatch/KEY    table of the calls of all ranks
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from collectives.flight import frame_of_program
from transports.base import runs
from transports.errors import DeadlineExceeded, MismatchError, RendezvousError
from transports.packed import pack, unpack
from transports.store import Store, read_rows

_TABLE_SECONDS: Final = 1.0
"""Time to wait for the lines of the other ranks. A rank outside a call writes none."""
_MOST_LINES: Final = 64
"""Number of ranks up to which each has a line; beyond it ranks with the same call share one."""
_LONGEST_LINE: Final = 1 << 12


def find_mismatch(
    store: Store, key: str, ranks: Sequence[int], rank: int, recent: Sequence[tuple[int, int, str]]
) -> MismatchError | None:
    """Compare the last calls of this rank with the note of another rank that waits, and leave a note of its own.

    key      names the communicator
    ranks    ranks of the communicator, as ranks of the world
    rank     this rank's number within the communicator
    recent   its last calls: number, digest, description

    To be called from time to time while a call waits; takes two calls of the store. A slow rank is never reported,
    since only digests of calls with equal numbers are compared. Two ranks that disagree meet sooner or later, since
    all ranks of a communicator write and read the same note. Raises RendezvousError.
    """
    part = store.prefixed("waiting")
    note = part.peek(key)
    part.set(key, pack((rank, recent)))
    own = {number: (digest, text) for number, digest, text in recent}
    for other, number, digest, text in _calls_in(note, len(ranks)):
        if number in own and own[number][0] != digest:
            message = f"call {number} of rank {other} was {text}, that of rank {rank} {own[number][1]}"
            return MismatchError(message, rank=ranks[rank], peer=ranks[other])
    return None


def _calls_in(note: bytes | None, size: int) -> Iterator[tuple[int, int, int, str]]:
    """Rank, number, digest and description of the calls in a note; none if it cannot be read."""
    if note is None:
        return
    with contextlib.suppress(ValueError):
        match unpack(note):
            case [int(other), [*calls]] if 0 <= other < size:
                for call in calls:
                    match call:
                        case [int(number), int(digest), str(text)]:
                            yield other, number, digest, text


def mismatch(store: Store, key: str, rank: int, size: int, call: str, way: str, detail: str) -> MismatchError:
    """The error that this rank of a communicator raises: a table of the calls of all ranks.

    store    the group's
    key      names the communicator
    call     description of this rank's call
    way      description of the way in which it runs, which the table has if all ranks made the same call
    detail   the difference that was noticed
    """
    own = "\0".join([call, way, _caller()]).encode(errors="replace")[:_LONGEST_LINE]
    rows: list[bytes | None] = [own if peer == rank else None for peer in range(size)]
    with contextlib.suppress(RendezvousError):  # without the store the table has one row
        rows = _rows(store, f"mismatch/{key}", rank, size, own)
    alike = len({None if row is None else row.partition(b"\0")[0] for row in rows}) == 1
    shared: dict[tuple[str, int], list[int]] = {}
    for peer, row in enumerate(rows):
        text = "in no call of this communicator, or no answer" if row is None else _line(row, shows_way=alike)
        shared.setdefault((text, 0 if size > _MOST_LINES else peer), []).append(peer)
    lines = [f"{'rank' if len(ranks) == 1 else 'ranks'} {runs(ranks)}: {text}" for (text, _), ranks in shared.items()]
    table = "\n  ".join(lines)
    return MismatchError(f"the ranks' calls do not fit together:\n  {table}\n  (noticed: {detail})", rank=rank)


def _line(row: bytes, *, shows_way: bool) -> str:
    call, _, rest = row.decode(errors="replace").partition("\0")
    way, _, caller = rest.partition("\0")
    return f"{call}{f', by {way}' if shows_way else ''}, called from {caller}"


def _rows(store: Store, table: str, rank: int, size: int, own: bytes) -> list[bytes | None]:
    """The lines of all ranks, waited for; None for ranks that wrote none. Three requests at most. Raises
    RendezvousError."""
    with contextlib.suppress(ValueError):  # this rank has written its line before
        store.put_row(table, rank, size, own)
    with contextlib.suppress(DeadlineExceeded, ValueError):
        return read_rows(store.get(table, time.monotonic() + _TABLE_SECONDS))
    return store.rows(table)


def _caller() -> str:
    """File and line of the user's call."""
    frame = frame_of_program()
    return "an asynchronous call" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
