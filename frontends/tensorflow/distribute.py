"""tf.distribute.MirroredStrategy over several processes, with Ronde between them.

    strategy = MirroredStrategy()                                                      # global batches
    strategy = tf.distribute.MirroredStrategy(cross_device_ops=RondeCrossDeviceOps())  # batches of each rank

TensorFlow reduces over the devices of a process. The result is reduced over the ranks, all gradients of a step as one
operation. docs/tf-distribute.md has examples, and lists what is not shared between processes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from collectives import OpName, ProcessSet, global_process_set, is_initialized, local_rank, rank, size
from frontends.horovod import AnyCompression, Average, Reduction, Sum, check_process_set, init, is_lossy, names_of
from frontends.tensorflow_ops import (
    Compression,
    allgather,
    allreduce,
    broadcast,
    grouped_allreduce,
    no_autograph,
    reduce_together,
)


class RondeCrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc]
    """Reduction for MirroredStrategy: over the process's own devices first, then over the ranks of a process set.

    op            combination over the ranks of a value that ReduceOp.SUM has summed over the devices. Average, the
                  default, suits code that divides losses by strategy.num_replicas_in_sync or by its own batch size, as
                  Keras does; Sum suits losses divided by the batch size of all ranks. A value that ReduceOp.MEAN has
                  averaged is averaged in either case
    compression   compression of the data between ranks. What one with a memory has not sent of a list of tensors is
                  added to the next list of the same shapes: use one such strategy for one model

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
        check_process_set(process_set)
        is_lossy(compression)  # raises for what is no compression
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
        given = [value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value for value in own]
        forms = repr([(str(value.shape), value.dtype.name) for value in given])
        kept = names_of(f"{zlib.crc32(forms.encode()):08x}", len(given))  # TensorFlow does not tell whose they are
        combined = reduce_together(given, Reduction(op, None, 1.0, 1.0, self._process_set), self._compression, kept)
        pairs = zip(combined, value_destination_pairs, strict=True)
        return [self.broadcast(value, there) for value, (_, there) in pairs]


class MirroredStrategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """tf.distribute's strategy of the same name over the devices of all ranks: in place of it, or of
    MultiWorkerMirroredStrategy.

        strategy = MirroredStrategy()

    Batches are global, as in tf.distribute: `experimental_distribute_dataset`, and `fit` of Keras with it, gives each
    rank a part of each batch, and `num_replicas_in_sync` counts the devices of all ranks. Gradients are added over all
    of them, so are values in `reduce`. Variables that are made in `scope()`, and not in a tf.function, begin with the
    values of rank 0.

    devices       devices of this rank, by default one: a GPU by its rank on the host, or the CPU
    compression   compression of the gradients between ranks, as in RondeCrossDeviceOps

    Calls `init` if that has not been done. Raises RuntimeError if TensorFlow has used several GPUs before and `devices`
    is None. The operations raise the errors of RondeCrossDeviceOps.
    """

    def __init__(self, devices: Sequence[str] | None = None, compression: AnyCompression = Compression.none) -> None:
        if not is_initialized():
            init()
        if devices is None:
            gpus = tf.config.get_visible_devices("GPU")
            if len(gpus) > 1:
                tf.config.set_visible_devices(gpus[local_rank() % len(gpus)], "GPU")
            devices = ["/gpu:0" if gpus else "/cpu:0"]
        super().__init__(devices, cross_device_ops=RondeCrossDeviceOps(op=Sum, compression=compression))

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices of all ranks, if each has as many as this one."""
        return int(super().num_replicas_in_sync) * size()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Context in which the strategy is the current one, and the variables that are made are equal on all ranks."""
        with super().scope(), tf.variable_creator_scope(_from_rank_0):
            yield

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset with this rank's part of each batch, which its devices share. All ranks give the same one.

        A rank reads whole batches and takes every size-th row. A batch needs as many rows as there are devices on all
        ranks: tf.errors.InvalidArgumentError. Raises ValueError for AutoShardPolicy.OFF.
        """
        off = tf.data.experimental.AutoShardPolicy.OFF
        if dataset.options().experimental_distribute.auto_shard_policy == off:
            text = "dataset: has AutoShardPolicy.OFF, but batches are global: use distribute_datasets_from_function"
            raise ValueError(text)
        first, step, least = rank(), size(), self.num_replicas_in_sync
        text = f"a batch must have {least} rows or more, one for each device of all ranks: use drop_remainder=True"

        def part(tensor: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_greater_equal(tf.shape(tensor)[0], least, text)]):
                return tensor[first::step]

        def parts(*elements: Any) -> Any:
            whole = elements if isinstance(dataset.element_spec, tuple) else elements[0]
            return tf.nest.map_structure(part, whole)

        return super().experimental_distribute_dataset(dataset.map(parts), options)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Return the dataset that dataset_fn(context) makes on each rank, which its devices share. The context, a
        tf.distribute.InputContext, has a pipeline for each rank. Batches are those of a device."""
        context = tf.distribute.InputContext(size(), rank(), self.num_replicas_in_sync)
        return super().distribute_datasets_from_function(lambda _: dataset_fn(context), options)

    @no_autograph
    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Return the sum or the mean of a value, or of each in a structure, over the devices of all ranks, and over an
        axis of the value if it is given. Collective."""
        reduce_op = tf.distribute.ReduceOp(str(getattr(reduce_op, "value", reduce_op)).upper())
        mean = reduce_op == tf.distribute.ReduceOp.MEAN

        def over_all(value: Any) -> Any:
            own = [tf.convert_to_tensor(part) for part in self.experimental_local_results(value)]
            count = len(own) if axis is None else tf.add_n([tf.shape(part)[axis] for part in own])
            total = tf.add_n(own if axis is None else [tf.reduce_sum(part, axis) for part in own])
            if not mean:
                return allreduce(total, op=Sum)
            total, count = grouped_allreduce([total, tf.cast(count, tf.int64)], op=Sum)
            count = tf.cast(count, total.dtype)
            return total / count if total.dtype.is_floating else total // count

        return tf.nest.map_structure(over_all, value)

    @no_autograph
    def gather(self, value: Any, axis: int) -> Any:
        """Return the values of the devices of all ranks, in the order of ranks, one after the other along an axis.
        Collective; the other dimensions must be equal."""
        own = tf.concat(self.experimental_local_results(value), axis)
        order = [axis, *(number for number in range(own.shape.rank) if number != axis)]
        return tf.transpose(allgather(tf.transpose(own, order)), np.argsort(order))


def _from_rank_0(create: Callable[..., Any], **options: Any) -> Any:
    """Make a variable that begins with the value of rank 0."""
    given = options.get("initial_value")
    if given is None or not tf.executing_eagerly():  # a function takes its variables' values out of its graph
        return create(**options)

    def value() -> Any:
        own = given() if callable(given) else given
        return broadcast(tf.convert_to_tensor(own, options.get("dtype")), 0)

    return create(**{**options, "initial_value": value})
