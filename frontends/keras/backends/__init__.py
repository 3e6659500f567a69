"""Adapters between the Keras frontend and the backend that Keras runs on; `Backend` is their base.

    keras/optimizer, callbacks, elastic  ->  backends.chosen()  ->  backends/jax         ->  frontends.jax
                                                                    backends/tensorflow  ->  frontends.tensorflow_ops
                                                                    backends/torch       ->  frontends.torch

Only the module of the current backend is ever imported. A new backend is one module here, and a case of `chosen`.
"""

from __future__ import annotations

import keras

from frontends.keras.backends.interface import Backend, ReductionOptions

__all__ = ["Backend", "ReductionOptions", "chosen"]


def chosen() -> Backend:
    """Return Keras's current backend, which cannot change in a process. Raises ValueError for an unknown one."""
    match keras.backend.backend():
        case "tensorflow":
            from frontends.keras.backends.tensorflow import TensorFlowBackend

            return TensorFlowBackend()
        case "jax":
            from frontends.keras.backends.jax import JaxBackend

            return JaxBackend()
        case "torch":
            from frontends.keras.backends.torch import TorchBackend

            return TorchBackend()
        case name:
            raise ValueError(f"KERAS_BACKEND={name!r}: must be one of tensorflow, jax, torch")
