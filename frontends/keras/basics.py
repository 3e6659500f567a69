"""How a process with Keras finds the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.process_sets import ProcessSet
from frontends.keras.backends import chosen


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Find the other ranks: those of `ronde run`; on the torch backend those of torchrun, on the tensorflow backend
    those of TF_CONFIG; or none. Does nothing if that has been done.

    comm          None; Horovod's lists of MPI ranks have no meaning here: use process sets
    process_sets  sets to make at once, the same on all ranks. "dynamic" is taken for None: sets can always be added

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument.
    """
    chosen().init(comm, process_sets)
