"""Adapters between the Keras frontend and the backend that Keras runs on; `Backend` is their interface.

    keras/optimizer, callbacks, elastic  ->  backends.chosen()  ->  backends/jax         ->  frontends.jax
                                                                    backends/tensorflow  ->  frontends.tensorflow_ops
                                                                    backends/torch       ->  frontends.torch

Only the module of the current backend is ever imported. A new backend is one module here with the names of `Backend`,
and a case of `chosen`.
"""

from __future__ import annotations

import keras

from frontends.keras.backends.interface import Backend, ReductionOptions

__all__ = ["Backend", "ReductionOptions", "chosen"]


def chosen() -> Backend:
    """Import and return the module of Keras's current backend. Raises ValueError for an unknown backend."""
    match keras.backend.backend():
        case "tensorflow":
            from frontends.keras.backends import tensorflow

            return tensorflow
        case "jax":
            from frontends.keras.backends import jax

            return jax
        case "torch":
            from frontends.keras.backends import torch

            return torch
        case name:
            raise ValueError(f"KERAS_BACKEND={name!r}: must be one of tensorflow, jax, torch")
