"""Ronde for loops that are written by hand, with NumPy or scikit-learn's `partial_fit`.

    import frontends.numpy as hvd

    hvd.init()
    X, y = hvd.shard(X, y)                      # this rank's rows
    ...
    gradients = hvd.allreduce(gradients)        # the average over the ranks

docs/numpy.md tells the rest.
"""

from __future__ import annotations

from collectives.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from frontends.horovod.basics import (
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from frontends.horovod.errors import HorovodInternalError
from frontends.horovod.names import Adasum, Average, Max, Min, Product, Sum
from frontends.horovod.objects import allgather_object, broadcast_object
from frontends.numpy.averager import GradientAverager
from frontends.numpy.ops import allgather, allreduce, average_metrics, broadcast_parameters
from frontends.numpy.shards import shard

__all__ = [
    "Adasum",
    "Average",
    "GradientAverager",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "average_metrics",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
