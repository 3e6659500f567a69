"""Horovod's elastic API for Keras: `fit` goes on without lost ranks (`frontends.horovod.elastic`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from frontends.horovod.elastic import ObjectState, VariablesState, recovering
from frontends.keras.backends import chosen
from frontends.keras.values import broadcast_variables

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

run = recovering(*chosen().FAILURES)


class KerasState(VariablesState):
    """ObjectState with a model and an optimizer: `KerasState(model, optimizer, epoch=0, batch=0)`.

    optimizer  None: that with which the model was compiled
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        self.model = model
        self.optimizer = model.optimizer if optimizer is None else optimizer
        if model.built and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(**values)

    def variables(self) -> list[Any]:
        """Those of the model and the optimizer."""
        return [*self.model.variables, *(() if self.optimizer is None else self.optimizer.variables)]

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Copies of their values."""
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values of the first one."""
        broadcast_variables(variables, 0)

    def reset(self) -> None:
        """Compile the model's steps anew: how many ranks there are may stand in them."""
        chosen().forget()
        self.model.train_function = self.model.test_function = self.model.predict_function = None


class _StateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, state: ObjectState) -> None:
        super().__init__()
        self.state = state


class CommitStateCallback(_StateCallback):
    """Commits the state after every `batches_per_commit` batches and at the end of an epoch."""

    def __init__(self, state: ObjectState, batches_per_commit: int = 1) -> None:
        """Raises ValueError if `batches_per_commit` is less than 1."""
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit}: must be 1 or more")
        super().__init__(state)
        self.batches_per_commit = batches_per_commit
        self._remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew."""
        self._remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time."""
        self._remaining -= 1
        if not self._remaining:
            self._commit()
            self._remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self._commit()

    def _commit(self) -> None:
        chosen().settle(self.model)
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Keeps the number of the last batch in `state.batch`, 0 between epochs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One more is over."""
        self.state.batch = batch  # type: ignore[attr-defined]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """All are over."""
        self.state.batch = 0  # type: ignore[attr-defined]


class UpdateEpochStateCallback(_StateCallback):
    """Keeps how many epochs are over in `state.epoch`, those before this `fit` included, which counts from 0."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember how many were over before."""
        self._before = self.state.epoch  # type: ignore[attr-defined]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One more is over."""
        self.state.epoch = self._before + epoch + 1  # type: ignore[attr-defined]
