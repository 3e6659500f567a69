"""Start of a job for Keras."""

from __future__ import annotations

from collections.abc import Sequence

from collectives import ProcessSet
from frontends.keras.backends import chosen


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Connect to the other ranks of the launcher (docs/launchers.md); without one, make a world of one rank. Further
    calls do nothing.

    comm          must be None; Horovod's lists of MPI ranks are not supported: use process sets
    process_sets  sets to create at once, the same on all ranks. "dynamic" means None: sets can always be added

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    chosen().init(comm, process_sets)
