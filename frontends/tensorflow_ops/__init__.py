"""Collectives as operations of TensorFlow: eager, in tf.function, in graphs of tf.compat.v1.

    ops                    Horovod's functions on tensors
      nodes                one collective as a node of a graph, and its gradient
        calls              the node's description, and how its execution starts in the runtime
          kernel, done     the TensorFlow operations, through TensorFlow's C interface

frontends.tensorflow and the TensorFlow backend of frontends.keras stand on this room, which imports nothing of Keras.
`__all__` has the names for users; frontends.tensorflow exports them.
"""

from __future__ import annotations

from frontends.tensorflow_ops.aggregation import Aggregation as Aggregation
from frontends.tensorflow_ops.compression import Compression
from frontends.tensorflow_ops.nodes import reserve as reserve
from frontends.tensorflow_ops.ops import agreement as agreement
from frontends.tensorflow_ops.ops import (
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
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from frontends.tensorflow_ops.ops import members as members
from frontends.tensorflow_ops.ops import no_autograph as no_autograph
from frontends.tensorflow_ops.ops import reduce_together as reduce_together
from frontends.tensorflow_ops.ops import stays_alone as stays_alone

__all__ = [
    "Compression",
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
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
