"""Horovod's API for Keras 3, on any Keras backend: `import ronde.keras as hvd`, and `model.fit` trains on all
ranks.

Names, signatures, defaults and semantics are those of `horovod.keras` and `horovod.tensorflow.keras` 0.28;
docs/migrating-from-horovod.md lists the differences. This room is built on frontends.jax, frontends.tensorflow_ops and
frontends.torch. Code that depends on the backend belongs in `backends/`, one module each; nothing else here may
import a backend.
"""

from __future__ import annotations

from frontends.needs import needs

with needs(
    keras="ronde.keras needs keras: pip install 'ronde[keras]'",
    tf_keras="TF_USE_LEGACY_KERAS is set, and tf-keras is not installed: pip install 'ronde[tf-keras]'",
    **{
        name: f"Keras is to run on {name}, which is not installed: pip install 'ronde[{name}]'"
        for name in ("tensorflow", "torch", "jax")
    },
):
    import keras as _keras  # noqa: F401

    from frontends.keras import library as _library  # noqa: F401

from collectives import shutdown
from frontends import builds, common
from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, barrier, broadcast_object
from frontends.keras import callbacks, elastic, values
from frontends.keras.backends import init
from frontends.keras.compression import Compression
from frontends.keras.models import load_model
from frontends.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from frontends.keras.values import *  # noqa: F403

__all__ = [
    *values.__all__,
    *builds.__all__,
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "shutdown",
]
