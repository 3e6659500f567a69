"""Training that goes on without lost ranks: state that is committed and restored, and the loop around it.

What Horovod's elastic API has for every framework, as far as a world with a fixed set of processes allows: ranks are
lost, and never added. Start the job with `ronde run --keep-going`, or the launcher ends it with the first rank that
fails.
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
    """Values that are attributes: `state = ObjectState(epoch=0)`, `state.epoch += 1`, `state.commit()`."""

    def __init__(self, **values: Any) -> None:
        self._names = list(values)
        self._callbacks: list[Callable[[], object]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def register_reset_callbacks(self, callbacks: list[Callable[[], object]]) -> None:
        """Functions to call when there are other ranks than before, say to adapt the learning rate."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def reset(self) -> None:
        """Adapt to the ranks that there are."""

    def save(self) -> None:
        """Remember everything as it is, in this process."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def commit(self) -> None:
        """`save`; what comes after it is lost with a rank."""
        self.save()

    def check_host_updates(self) -> None:
        """Nothing: hosts are not added."""

    def restore(self) -> None:
        """Go back to what was saved last."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Give all ranks what the first one has."""
        values = broadcast_object({name: getattr(self, name) for name in self._names}, 0, "elastic.state")
        for name, value in values.items():
            setattr(self, name, value)
        self.save()


class VariablesState(ObjectState, ABC):
    """ObjectState with a framework's variables. One that was not there at the last commit keeps its value."""

    @abstractmethod
    def variables(self) -> list[Any]:
        """Those that there are now, in the same order on all ranks."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Copies of their values."""
        return [np.array(variable) for variable in variables]

    def assign(self, variable: Any, value: Any) -> None:
        """Give it the value."""
        variable.assign(value)

    @abstractmethod
    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values of the first one."""

    def save(self) -> None:
        """Remember everything as it is, in this process."""
        super().save()
        variables = self.variables()
        self._values = list(zip(variables, self.read(variables), strict=True))

    def restore(self) -> None:
        """Go back to what was saved last."""
        super().restore()
        for variable, value in self._values:
            self.assign(variable, value)

    def sync(self) -> None:
        """Give all ranks what the first one has."""
        self.broadcast(self.variables())
        super().sync()


def recovering(*failures: type[Exception]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Makes a framework's `run`, which decorates `func(state, ...)`: it is called with the state in sync, and again
    after the loss of a rank.

    failures  what the framework raises, beside HorovodInternalError, when an operation fails

    After one of them the survivors shrink the world, restore the state's last commit, and go on. Raises what `func`
    raises while the world is sound, and what `collectives.shrink` raises on a rank that is left out.
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
