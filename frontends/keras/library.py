"""The Keras that the user's models are of: Keras 3, or tf-keras 2 if TF_USE_LEGACY_KERAS is set, as TensorFlow has it.

tf-keras works on TensorFlow only; Keras 3 is there all the same, and its functions on tensors are used for both. What
differs is here and in tf_keras_optimizer.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import keras

LEGACY: Final = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
"""True with tf-keras 2; TensorFlow has the same rule."""


def _find() -> ModuleType:
    if not LEGACY:
        return keras  # type: ignore[no-any-return]
    if keras.backend.backend() != "tensorflow":
        raise ImportError(f"TF_USE_LEGACY_KERAS: needs KERAS_BACKEND=tensorflow, and it is {keras.backend.backend()}")
    import tf_keras

    return tf_keras  # type: ignore[no-any-return]


library: Final = _find()
Callback: Final[Any] = library.callbacks.Callback
ModelCheckpoint: Final[Any] = library.callbacks.ModelCheckpoint
Optimizer: Final[Any] = library.optimizers.Optimizer
OPTIMIZERS: Final[tuple[type, ...]] = (Optimizer, library.optimizers.legacy.Optimizer) if LEGACY else (Optimizer,)
"""The classes of optimizers; tf-keras has two."""


def refuse_loss_scaling(name: str) -> None:
    """Raise ValueError: a LossScaleOptimizer around an optimizer that combines gradients would skip steps by those of
    its rank alone. `name` is the attribute by which it announces itself."""
    raise ValueError(
        f"{name}: set by a LossScaleOptimizer around a DistributedOptimizer; each rank would skip other steps. Write "
        "DistributedOptimizer(LossScaleOptimizer(optimizer)), which checks the combined gradients"
    )


def optimizer_variables(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the variables of an optimizer for these variables of a model; they are created if they do not exist."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
        found = optimizer.variables
    else:  # tf-keras's older class
        optimizer._create_all_weights(variables)
        found = optimizer.variables
    return list(found() if callable(found) else found)
