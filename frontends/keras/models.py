"""Loading of saved models to continue their training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from frontends.keras.compression import AnyCompression, Compression
from frontends.keras.library import LEGACY, library
from frontends.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompression = Compression.none,
    **options: Any,
) -> Any:
    """Load a model and compile it with a DistributedOptimizer that has the options and the state of the saved
    optimizer.

    filepath           as for keras.models.load_model
    custom_optimizers  optimizer classes that are not part of Keras
    custom_objects     other classes and functions that the model needs, by name
    compression        passed to DistributedOptimizer, like `options`

    A model that was saved without an optimizer is returned unchanged. Raises the errors of keras.models.load_model.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = library.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is None:
        return model
    if LEGACY:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
        model.train_function = None
    else:
        distributed = DistributedOptimizer(model.optimizer, compression=compression, **options)
        with keras.saving.custom_object_scope(known):
            config = keras.saving.deserialize_keras_object(model.get_compile_config())
        model.compile(**config | {"optimizer": distributed})
    return model
