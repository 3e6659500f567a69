"""Ronde for JAX: collectives on trees of arrays, eager and within jit, grad and scan.

    import frontends.jax as hvd

    hvd.init()
    params = hvd.broadcast_parameters(params)
    optimizer = hvd.distributed(optax.adam(1e-3))     # its update reduces the gradients of all ranks

One process per rank, on the CPU. docs/jax.md tells the rest.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError("frontends.jax needs jax: pip install 'ronde[jax]'", name="jax") from None

from collectives.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from frontends.horovod.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
    start_timeline,
    stop_timeline,
)
from frontends.horovod.errors import HorovodInternalError
from frontends.horovod.names import Adasum, Average, Max, Min, Product, Sum
from frontends.horovod.objects import allgather_object, broadcast_object
from frontends.jax.basics import shutdown
from frontends.jax.compression import Compression
from frontends.jax.handler import path
from frontends.jax.ops import allgather, allreduce, alltoall, barrier, broadcast, grouped_allreduce, reduce_scatter
from frontends.jax.primitive import settle
from frontends.jax.programs import jit
from frontends.jax.training import broadcast_parameters, distributed

__all__ = [
    "Adasum",
    "Average",
    "Compression",
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
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "distributed",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "jit",
    "local_rank",
    "local_size",
    "path",
    "rank",
    "reduce_scatter",
    "remove_process_set",
    "settle",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
