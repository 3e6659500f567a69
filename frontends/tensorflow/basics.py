"""How a process with TensorFlow finds the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.process_sets import ProcessSet
from frontends.horovod.basics import start
from frontends.tensorflow.cluster import from_tf_config


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Find the other ranks: those of `ronde run`, of TF_CONFIG, or none. Does nothing if that has been done.

    comm          None; Horovod's lists of MPI ranks have no meaning here: use process sets
    process_sets  sets to make at once, the same on all ranks. "dynamic" is taken for None: sets can always be added

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument.
    """
    start(comm, process_sets, from_tf_config)
