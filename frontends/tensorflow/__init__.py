"""Horovod's API for TensorFlow: `import ronde.tensorflow as hvd`, and a Horovod script runs unchanged.

Names, signatures, defaults and semantics are those of `horovod.tensorflow` 0.28; docs/migrating-from-horovod.md lists
the differences. The collectives on tensors are those of frontends.tensorflow_ops; optimizers and callbacks for Keras's
models are those of frontends.keras, which is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frontends.needs import needs

with needs(tensorflow="ronde.tensorflow needs tensorflow: pip install 'ronde[tensorflow]'"):
    import tensorflow as _tensorflow  # noqa: F401

from collectives import shutdown
from frontends import builds, common, tensorflow_ops
from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.horovod import init
from frontends.tensorflow import elastic
from frontends.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from frontends.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from frontends.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from frontends.tensorflow_ops import *  # noqa: F403

if TYPE_CHECKING:
    from frontends.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    *builds.__all__,
    *common.__all__,
    *tensorflow_ops.__all__,
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "init",
    "shutdown",
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
