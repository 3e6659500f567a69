"""Start of a job for TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from collectives import ProcessSet
from frontends.horovod import start
from frontends.tensorflow.cluster import from_tf_config


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Connect to the other ranks of `ronde run` or TF_CONFIG; without either, make a world of one rank. Further calls
    do nothing.

    comm          must be None; Horovod's lists of MPI ranks are not supported: use process sets
    process_sets  sets to create at once, the same on all ranks. "dynamic" means None: sets can always be added

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    start(comm, process_sets, from_tf_config)
