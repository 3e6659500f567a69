"""Horovod's elastic API for Keras; frontends/horovod/elastic.py has the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from collectives.arrays import type_name
from collectives.numeric import is_integer
from frontends.horovod import HostsUpdatedInterrupt, ObjectState, VariablesState, recovering
from frontends.keras.backends import chosen
from frontends.keras.library import OPTIMIZERS, Callback, library, optimizer_variables

__all__ = [
    "CommitStateCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

run = recovering(*chosen().FAILURES)


class KerasState(VariablesState):
    """ObjectState with a model and an optimizer: `KerasState(model, optimizer, epoch=0, batch=0)`.

    Other values may refer to the model, its layers and variables, and the optimizer: they keep their identity.

    optimizer  None for the optimizer that the model was compiled with, if it was
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        if not isinstance(model, library.Model):
            raise TypeError(f"model={model!r:.60}: must be a Keras model, not {type_name(model)}")
        if optimizer is not None and not isinstance(optimizer, OPTIMIZERS):
            raise TypeError(f"optimizer={optimizer!r:.60}: must be a Keras optimizer, not {type_name(optimizer)}")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(**values)

    def variables(self) -> list[Any]:
        """Return the variables of the model and of the optimizer."""
        if self.optimizer is None or not self.model.built:
            return list(self.model.variables)
        return [*self.model.variables, *optimizer_variables(self.optimizer, self.model.trainable_variables)]

    def values_of(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of the variables' values."""
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]

    def fixed(self) -> Mapping[str, Any]:
        """The model, its layers, the optimizer, and the variables."""
        optimizer = {} if self.optimizer is None else {"optimizer": self.optimizer}
        return {"model": self.model, **_layers("model", self.model), **optimizer, **super().fixed()}

    def reset(self) -> None:
        """Discard the model's compiled steps, because the number of ranks may be a constant in them."""
        chosen().forget()
        self.model.train_function = self.model.test_function = self.model.predict_function = None


def _layers(name: str, model: Any) -> dict[str, Any]:
    """The layers of a model, and those of models in it."""
    found: dict[str, Any] = {}
    for index, layer in enumerate(getattr(model, "layers", ())):
        own = f"{name}.layers[{index}]"
        found |= {own: layer, **_layers(own, layer)}
    return found


class _StateCallback(Callback):  # type: ignore[misc]
    VALUE: str | None = None
    """The name of the value that the callback keeps in the state."""

    def __init__(self, state: ObjectState) -> None:
        """Raises TypeError for what is no state, ValueError for one without the value."""
        super().__init__()
        if not isinstance(state, ObjectState):
            raise TypeError(f"state={state!r:.60}: must be an ObjectState or a KerasState, not {type_name(state)}")
        if self.VALUE is not None and not hasattr(state, self.VALUE):
            raise ValueError(f"state: has no value {self.VALUE!r}; make it with {self.VALUE}=0")
        self.state = state


class CommitStateCallback(_StateCallback):
    """Commits the state after every `batches_per_commit` batches and at the end of each epoch."""

    def __init__(self, state: ObjectState, batches_per_commit: int = 1) -> None:
        """Raises ValueError unless `batches_per_commit` is an int, 1 or more; TypeError for what is no state."""
        if not is_integer(batches_per_commit) or batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit!r}: must be an int, 1 or more")
        super().__init__(state)
        self.batches_per_commit = batches_per_commit
        self._remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Restart the count of batches."""
        self._remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit after every `batches_per_commit` batches."""
        self._remaining -= 1
        if not self._remaining:
            self._commit()
            self._remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self._commit()

    def _commit(self) -> None:
        chosen().sync_variables(self.model)
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Keeps the number of the last batch in `state.batch`; 0 between epochs."""

    VALUE = "batch"

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number of the batch."""
        self.state.batch = batch  # type: ignore[attr-defined]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set `state.batch` to 0."""
        self.state.batch = 0  # type: ignore[attr-defined]


class UpdateEpochStateCallback(_StateCallback):
    """Keeps the number of finished epochs in `state.epoch`, including those of earlier calls of `fit`."""

    VALUE = "epoch"

    def on_train_begin(self, logs: Any = None) -> None:
        """Store the number of epochs finished before this `fit`."""
        self._before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of finished epochs."""
        self.state.epoch = self._before + epoch + 1  # type: ignore[attr-defined]
