"""Horovod's API for MXNet 1.9.1: `import ronde.mxnet as hvd` before `import mxnet`, and a Horovod script runs.

Names, signatures, defaults and semantics are those of `horovod.mxnet` 0.28; docs/migrating-from-horovod.md lists the
differences. Beside Horovod's API there is a KVStore, `mx.kv.create("ronde")`.

    trainer, optimizer -> gradients -> ops -> tensors -> library (MXNet, imported under NumPy 2)
    kvstore, functions ----------------^

tensors.py is the only place that converts between MXNet's arrays and NumPy's.
"""

from __future__ import annotations

from frontends.needs import needs

with needs(
    # MXNet requires NumPy 1, so it can be no part of an extra
    mxnet="ronde.mxnet needs mxnet: pip install 'ronde[mxnet]' and pip install --no-deps mxnet==1.9.1",
    requests="mxnet needs requests: pip install 'ronde[mxnet]'",
    distutils="mxnet needs distutils: pip install 'ronde[mxnet]'",
):
    from frontends.mxnet import library as _library  # noqa: F401

from collectives import shutdown
from frontends import builds, common
from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, barrier, broadcast_object, init, join
from frontends.mxnet import ops
from frontends.mxnet.compression import Compression
from frontends.mxnet.functions import broadcast_parameters
from frontends.mxnet.kvstore import Ronde
from frontends.mxnet.ops import *  # noqa: F403
from frontends.mxnet.optimizer import DistributedOptimizer
from frontends.mxnet.trainer import DistributedTrainer

__all__ = [
    *ops.__all__,
    *builds.__all__,
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Ronde",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "init",
    "join",
    "shutdown",
]
