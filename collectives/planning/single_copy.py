"""Single copy: from which size on each collective uses a single-copy algorithm instead of a staged one.

A staged algorithm copies every byte twice, through memory that all ranks map; a single-copy algorithm copies it once,
by a system call. No cost model knows which one is faster: that depends on the pages of the arrays, and on the cores'
caches, of which two ranks may share one at one moment and none at the next. These sizes cost least in the worst case;
decisions/0054 has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NEVER: Final = 0
"""In place of a number of bytes: single copy is not used."""
SINGLE_COPY_FROM: Final[Mapping[str, int]] = {
    "allreduce": NEVER,
    "reduce_scatter": 16 << 20,
    "broadcast": 4 << 20,
    "allgather": 4 << 20,
    "alltoall": 4 << 20,
}
"""Bytes of a call, by collective."""
SHARED_BYTES: Final = 1 << 16
"""Bytes of the array that peers read from which all of these collectives use single copy where arrays are born shared:
no system call reads them then."""


def single_copy_from(collective: str, size: int, *, shared: bool) -> int:
    """The bytes from which a collective of `size` ranks uses single copy, or NEVER. `shared`: their arrays are born
    shared."""
    if collective not in SINGLE_COPY_FROM:
        return NEVER
    if shared:
        return SHARED_BYTES * (size if collective == "allgather" else 1)
    if collective == "allgather" and size > 2:
        return NEVER  # staged, all readers find a segment in the cache
    return SINGLE_COPY_FROM[collective]
