"""Horovod's elastic API for TensorFlow: training goes on without lost ranks (`frontends.horovod.elastic`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from frontends.horovod.elastic import ObjectState, VariablesState, recovering
from frontends.tensorflow.functions import broadcast_variables

__all__ = ["ObjectState", "TensorFlowState", "run"]

run = recovering(tf.errors.OpError)


class TensorFlowState(VariablesState):
    """ObjectState with variables: `TensorFlowState(model.trainable_variables, epoch=0)`.

    variables  which; None: all global ones of the graph
    session    of the graph of `tf.compat.v1` in which they are; None in eager mode. It is made before the graph is
               finalised, for it adds operations
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **values: Any) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self._variables = list(found)
        self._session = session
        self._broadcast = broadcast_variables(self._variables, 0) if session is not None else None
        super().__init__(**values)

    def variables(self) -> list[Any]:
        """Those that were given."""
        return self._variables

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Copies of their values."""
        return super().read(variables) if self._session is None else list(self._session.run(list(variables)))

    def assign(self, variable: Any, value: Any) -> None:
        """Give it the value."""
        if self._session is None:
            super().assign(variable, value)
        else:
            start = variable.initializer
            self._session.run(start, feed_dict={start.inputs[1]: value})

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values of the first one."""
        if self._session is None:
            broadcast_variables(variables, 0)
        else:
            self._session.run(self._broadcast)


def __getattr__(name: str) -> Any:
    """TensorFlowKerasState is frontends.keras's, and Keras loads its backend: not before somebody wants it."""
    if name == "TensorFlowKerasState":
        from frontends.keras.elastic import KerasState

        return KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
