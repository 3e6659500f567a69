"""Ronde for hand-written training loops with NumPy, or scikit-learn's `partial_fit`.

    import ronde.numpy as hvd

    hvd.init()
    X, y = hvd.shard(X, y)                      # this rank's rows
    ...
    gradients = hvd.allreduce(gradients)        # the average over the ranks

docs/numpy.md is its guide. collectives.trees defines the trees of arrays that all functions accept; a function that
reduces in the background belongs in averager.py.
"""

from __future__ import annotations

from collectives import ProcessSet, add_process_set, global_process_set, remove_process_set
from frontends.horovod import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
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
