"""Elastic training: state that is committed and restored, and a loop that continues without lost ranks.

The set of processes is fixed: ranks can be lost, but not added. Start the job with `ronde run --keep-going`, or the
launcher ends it with the first rank that fails.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

import collectives
from frontends.horovod.errors import HorovodInternalError
from frontends.horovod.objects import broadcast_object

T = TypeVar("T")


class ObjectState:
    """Values kept as attributes: `state = ObjectState(epoch=0)`, `state.epoch += 1`, `state.commit()`."""

    def __init__(self, **values: Any) -> None:
        self._names = list(values)
        self._callbacks: list[Callable[[], object]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def register_reset_callbacks(self, callbacks: list[Callable[[], object]]) -> None:
        """Add functions to call after the set of ranks has changed, for example to adapt the learning rate."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called after the set of ranks has changed: `reset`, then the registered callbacks."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def reset(self) -> None:
        """Adapt to the current set of ranks. Nothing to do for plain values."""

    def save(self) -> None:
        """Copy all values, in this process's memory."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def commit(self) -> None:
        """Save. When a rank is lost, the survivors continue from the last commit."""
        self.save()

    def check_host_updates(self) -> None:
        """Nothing: hosts are never added."""

    def restore(self) -> None:
        """Return to the values of the last `save`."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Broadcast the values of rank 0 to all ranks, and save them. Collective."""
        values = broadcast_object({name: getattr(self, name) for name in self._names}, 0, "elastic.state")
        for name, value in values.items():
            setattr(self, name, value)
        self.save()


class VariablesState(ObjectState, ABC):
    """ObjectState with a framework's variables. A variable created after the last commit keeps its value on
    `restore`."""

    @abstractmethod
    def variables(self) -> list[Any]:
        """Return the current variables, in the same order on all ranks."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of the variables' values."""
        return [np.array(variable) for variable in variables]

    def assign(self, variable: Any, value: Any) -> None:
        """Set a variable to a value."""
        variable.assign(value)

    @abstractmethod
    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give the variables of all ranks the values of rank 0. Collective."""

    def save(self) -> None:
        """Copy all values and variables, in this process's memory."""
        super().save()
        variables = self.variables()
        self._values = list(zip(variables, self.read(variables), strict=True))

    def restore(self) -> None:
        """Return to the values of the last `save`."""
        super().restore()
        for variable, value in self._values:
            self.assign(variable, value)

    def sync(self) -> None:
        """Broadcast values and variables of rank 0 to all ranks, and save them. Collective."""
        self.broadcast(self.variables())
        super().sync()


def recovering(*failures: type[Exception]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make a framework's `run`, a decorator for `func(state, ...)`.

    failures   exceptions that the framework raises for a failed operation, beside HorovodInternalError

    The decorated function synchronises the state and calls `func`. If a rank is lost, the survivors shrink the world,
    restore the last commit, and call `func` again. It raises the error of `func` if the world is intact, and the error
    of `collectives.shrink` on a rank that is excluded.
    """

    caught: tuple[type[Exception], ...] = (HorovodInternalError, *failures)

    def run(func: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(func)
        def call(state: ObjectState, *args: Any, **kwargs: Any) -> T:
            while True:
                try:
                    state.sync()
                    return func(state, *args, **kwargs)
                except caught:
                    if collectives.world().failure is None:
                        raise
                collectives.shrink()
                state.restore()
                state.on_reset()

        return call

    return run
