"""Collectives as operations of TensorFlow: eager, in tf.function, in graphs of tf.compat.v1.

    ops                    Horovod's functions on tensors
      nodes                one collective as a node of a graph, and its gradient
        calls              the node's description, and how its execution starts in the runtime
          kernel, done     the TensorFlow operations, through TensorFlow's C interface

frontends.tensorflow and the TensorFlow backend of frontends.keras stand on this room. It imports nothing of Keras.
"""

from __future__ import annotations

from frontends.tensorflow_ops.aggregation import Aggregation
from frontends.tensorflow_ops.compression import Compression
from frontends.tensorflow_ops.ops import (
    agreement,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    no_autograph,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)

__all__ = [
    "Aggregation",
    "Compression",
    "agreement",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "no_autograph",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
