"""Adapters between the Keras frontend and the backend that Keras runs on; `Backend` is their base.

    keras/optimizer, callbacks, elastic  ->  backends.chosen()  ->  backends/jax         ->  frontends.jax
                                                                    backends/tensorflow  ->  frontends.tensorflow_ops
                                                                    backends/torch       ->  frontends.torch

Only the module of the current backend is ever imported. A new backend is one module here, and a case of `chosen`.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from collectives import ProcessSet
from frontends.keras.backends.interface import Backend, ReductionOptions

__all__ = ["Backend", "ReductionOptions", "chosen", "init"]


def chosen() -> Backend:
    """Return Keras's current backend, which cannot change in a process. Raises ValueError for an unknown one."""
    name = keras.backend.backend()
    if name == "tensorflow":  # not `match`, of which AutoGraph warns
        from frontends.keras.backends.tensorflow import TensorFlowBackend

        return TensorFlowBackend()
    if name == "jax":
        from frontends.keras.backends.jax import JaxBackend

        return JaxBackend()
    if name == "torch":
        from frontends.keras.backends.torch import TorchBackend

        return TorchBackend()
    raise ValueError(f"KERAS_BACKEND={name!r}: must be one of tensorflow, jax, torch")


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Connect to the other ranks of the launcher (docs/launching.md); without one, make a world of one rank. Further
    calls do nothing.

    comm          must be None; Horovod's lists of MPI ranks are not supported: use process sets
    process_sets  sets to create at once, the same on all ranks. "dynamic" means None: sets can always be added

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    chosen().init(comm, process_sets)
