"""Horovod's elastic API for TensorFlow; frontends/horovod/elastic.py has the loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from frontends.horovod import HostsUpdatedInterrupt, ObjectState, VariablesState, check_variables, recovering

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "TensorFlowState", "run"]

run = recovering(tf.errors.OpError)


class TensorFlowState(VariablesState):
    """ObjectState with variables: `TensorFlowState(model.trainable_variables, epoch=0)`.

    variables  None for all global variables of the graph
    session    session of the variables' graph of `tf.compat.v1`; None in eager mode
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **values: Any) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self._variables = check_variables(found)
        self._session = session
        super().__init__(**values)

    def variables(self) -> list[Any]:
        """Return the variables."""
        return self._variables

    def values_of(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of the variables' values."""
        return super().values_of(variables) if self._session is None else list(self._session.run(list(variables)))

    def assign(self, variable: Any, value: Any) -> None:
        """Set a variable to a value."""
        if self._session is None:
            super().assign(variable, value)
        else:
            start = variable.initializer
            self._session.run(start, feed_dict={start.inputs[1]: value})


def __getattr__(name: str) -> Any:
    """Import TensorFlowKerasState, which is ronde.keras.elastic.KerasState, at its first use."""
    if name == "TensorFlowKerasState":
        from frontends import keras

        return keras.elastic.KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
