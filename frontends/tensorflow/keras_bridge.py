"""The only connection from frontends.tensorflow to frontends.keras, which is itself built on frontends.tensorflow.

Both are imported at the first use: Keras loads its backend when it is imported, and many TensorFlow programs have no
Keras model.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def keras_frontend() -> Any:
    """Import and return frontends.keras."""
    return import_module("frontends.keras")


def distributed_optimizer(kind: str, optimizer: Any, **options: Any) -> Any:
    """Call a class or function of frontends.keras with a Keras optimizer. Raises TypeError for another object.

    kind   DistributedOptimizer or PartialDistributedOptimizer
    """
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(f"optimizer: must be of tf.compat.v1.train or of Keras, not {type(optimizer).__name__}")
    return getattr(keras_frontend(), kind)(optimizer, **options)
