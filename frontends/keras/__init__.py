"""Horovod's API for Keras 3, on any Keras backend: `import ronde.keras as hvd`, and `model.fit` trains on all
ranks.

Names, signatures, defaults and semantics are those of `horovod.keras` and `horovod.tensorflow.keras` 0.28;
docs/migrating-from-horovod.md lists the differences. This room is built on frontends.jax, frontends.tensorflow_ops and
frontends.torch. Code that depends on the backend belongs in `backends/`, one module each; nothing else here may
import a backend.
"""

from __future__ import annotations

try:
    import keras as _keras  # noqa: F401

    from frontends.keras import library as _library  # noqa: F401
except ModuleNotFoundError as error:
    _absent = (error.name or "").partition(".")[0]
    if _absent == "keras":
        text = "ronde.keras needs keras: pip install 'ronde[keras]'"
    elif _absent == "tf_keras":
        text = "TF_USE_LEGACY_KERAS is set, and tf-keras is not installed: pip install 'ronde[tf-keras]'"
    elif _absent in ("tensorflow", "torch", "jax"):
        text = f"Keras is to run on {_absent}, which is not installed: pip install 'ronde[{_absent}]'"
    else:
        raise
    raise ModuleNotFoundError(text, name=_absent) from None

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
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
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
from frontends.keras import callbacks, elastic
from frontends.keras.basics import init
from frontends.keras.compression import Compression
from frontends.keras.models import load_model
from frontends.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from frontends.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
