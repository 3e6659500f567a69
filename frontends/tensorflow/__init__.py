"""Horovod's API for TensorFlow: `import ronde.tensorflow as hvd`, and a Horovod script runs unchanged.

Names, signatures, defaults and semantics are those of `horovod.tensorflow` 0.28; docs/migrating-from-horovod.md lists
the differences. The collectives on tensors are those of frontends.tensorflow_ops; optimizers and callbacks for Keras's
models are those of frontends.keras, which is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "ronde.tensorflow needs tensorflow: pip install 'ronde[tensorflow]'", name="tensorflow"
    ) from None

from collectives import ProcessSet, add_process_set, global_process_set, remove_process_set
from frontends.horovod import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from frontends.tensorflow import elastic
from frontends.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from frontends.tensorflow.hooks import BroadcastGlobalVariablesHook
from frontends.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from frontends.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from frontends.tensorflow_ops import (
    Compression,
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

if TYPE_CHECKING:
    from frontends.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    """Import SyncBatchNormalization and `callbacks` at their first use: Keras loads its backend with them."""
    if name == "callbacks":
        from frontends import keras

        return keras.callbacks
    if name == "SyncBatchNormalization":
        from frontends.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
