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

from collectives import shutdown
from frontends import common
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, average_metrics, barrier, broadcast_object, init, join
from frontends.numpy.averager import GradientAverager
from frontends.numpy.ops import allgather, allreduce, broadcast_parameters
from frontends.numpy.shards import shard

__all__ = [
    *common.__all__,
    "GradientAverager",
    "allgather",
    "allgather_object",
    "allreduce",
    "average_metrics",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "init",
    "join",
    "shard",
    "shutdown",
]
