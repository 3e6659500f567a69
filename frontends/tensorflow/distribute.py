"""tf.distribute.MirroredStrategy over several processes, with Ronde between them.

    strategy = tf.distribute.MirroredStrategy(cross_device_ops=RondeCrossDeviceOps())

TensorFlow reduces over the devices of a process. The result is reduced over the ranks, all gradients of a step as one
operation. docs/tf-distribute.md has an example, and lists what is not shared between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import Average, Sum
from frontends.tensorflow.compression import AnyCompression, Compression
from frontends.tensorflow.ops import grouped_allreduce


class RondeCrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc]
    """Reduction for MirroredStrategy: over the process's own devices first, then over the ranks of a process set.

    op            combination over the ranks of a value that ReduceOp.SUM has summed over the devices. Average, the
                  default, suits code that divides losses by strategy.num_replicas_in_sync or by its own batch size, as
                  Keras does; Sum suits losses divided by the batch size of all ranks. A value that ReduceOp.MEAN has
                  averaged is averaged in either case
    compression   compression of the data between ranks

    `reduce` and `batch_reduce` raise HorovodInternalError in eager mode, and in a function
    tf.errors.FailedPreconditionError if the ranks disagree, UnknownError if one is lost. `broadcast` copies a tensor of
    the process to its devices.
    """

    def __init__(
        self,
        op: OpName = Average,
        compression: AnyCompression = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if op not in (Average, Sum):
            raise ValueError(f"op={op!r}: must be Average or Sum")
        super().__init__()
        self._op = op
        self._compression = compression
        self._process_set = process_set
        self._inside = tf.distribute.ReductionToOneDevice()

    @property
    def _num_between_graph_workers(self) -> int:
        """The number of ranks. The base class uses its result directly only if this is 1."""
        return self._process_set.size() or 1

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """Return the value reduced over all devices of all ranks, on the devices of `destinations`."""
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """`reduce_implementation` of several values as one operation."""
        own = [self._inside.reduce(reduce_op, value, there, options) for value, there in value_destination_pairs]
        op = Average if reduce_op == tf.distribute.ReduceOp.MEAN else self._op
        combined = grouped_allreduce(
            [value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value for value in own],
            op=op,
            compression=self._compression,
            process_set=self._process_set,
        )
        pairs = zip(combined, value_destination_pairs, strict=True)
        return [self.broadcast(value, there) for value, (_, there) in pairs]
