"""Ronde for JAX: collectives on trees of arrays, eager and within jit, grad and scan.

    import ronde.jax as hvd

    hvd.init()
    params = hvd.broadcast_parameters(params)
    optimizer = hvd.distributed(optax.adam(1e-3))     # its update reduces the gradients of all ranks

One process per rank, on the CPU; docs/jax.md describes it. JAX and XLA interfaces that are not public are used in
primitive.py, programs.py and call_frames.py only:

    ops, training -> primitive (tracing, order, gradients) -> handler (XLA's call) -> requests (the collectives)
    programs (jit, eager calls) -^
"""

from __future__ import annotations

from frontends.needs import needs

with needs(jax="ronde.jax needs jax: pip install 'ronde[jax]'"):
    import jax as _jax  # noqa: F401

from frontends import common
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, broadcast_object, init
from frontends.jax import elastic, ops
from frontends.jax.compression import Compression
from frontends.jax.handler import path
from frontends.jax.ops import *  # noqa: F403
from frontends.jax.ops import allreduce_gradients as allreduce_gradients
from frontends.jax.primitive import begin_anew as begin_anew
from frontends.jax.primitive import settle
from frontends.jax.programs import jit
from frontends.jax.training import broadcast_parameters, distributed

__all__ = [
    *ops.__all__,
    *common.__all__,
    "Compression",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "distributed",
    "elastic",
    "init",
    "jit",
    "path",
    "settle",
]
