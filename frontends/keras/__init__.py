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

from collectives import shutdown
from frontends import builds, common
from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, barrier, broadcast_object
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
    *builds.__all__,
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "reducescatter",
    "shutdown",
]
