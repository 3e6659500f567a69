"""Loosely coupled training for Keras: local SGD and DiLoCo, on any backend.

Parameters are a built model, of which the trainable variables are taken, or a tree of variables. They are assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from collectives import local_sgd
from collectives.local_sgd import Nesterov
from collectives.trees import Array, leaves
from frontends.keras.backends import chosen
from frontends.keras.library import Callback

__all__ = ["DiLoCo", "DiLoCoCallback", "LocalSGD", "Nesterov"]


class _Variables(local_sgd.Library):
    def leaves(self, params: Any) -> list[tuple[str, Any]]:
        if not isinstance(params, keras.Model):
            return list(leaves(params, kinds=(keras.Variable,)))
        # by their places among all weights, which are alike on all ranks, and stay when layers are frozen or unfrozen
        places = {id(variable): place for place, variable in enumerate(params.weights)}
        return [(str(places[id(variable)]), variable) for variable in params.trainable_variables]

    def read(self, leaf: Any) -> Array:
        return np.asarray(keras.ops.convert_to_numpy(leaf))

    def write(self, params: Any, values: Mapping[int, Array]) -> Any:
        found = self.leaves(params)
        for place, value in values.items():
            found[place][1].assign(value)
        return params

    def check(self, name: str, leaf: Any) -> None:
        """Nothing: every variable can be assigned."""


class DiLoCo(local_sgd.DiLoCo):
    """ronde.local_sgd.DiLoCo for a model, or a tree of variables: `outer.step(model)`."""

    library = _Variables()


class LocalSGD(local_sgd.LocalSGD):
    """ronde.local_sgd.LocalSGD for a model, or a tree of variables."""

    library = _Variables()


class DiLoCoCallback(Callback):  # type: ignore[misc]
    """Calls `outer.start`, `step` and `sync` during `model.fit`. All workers need the same number of batches.

    outer   DiLoCo or LocalSGD of the model's variables
    """

    def __init__(self, outer: local_sgd.DiLoCo) -> None:
        super().__init__()
        self._outer = outer

    def on_train_begin(self, logs: Any = None) -> None:
        """Give all workers the same parameters. Collective."""
        self._outer.start(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step, and do what is due."""
        chosen().sync_variables(self.model)
        self._outer.step(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Give all workers the global parameters. Collective."""
        chosen().sync_variables(self.model)
        self._outer.sync(self.model)
