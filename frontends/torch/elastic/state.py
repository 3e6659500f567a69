"""State that can be committed and restored, and the loop that goes on with it after a loss."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

import collectives
from frontends.horovod.errors import HorovodInternalError
from frontends.horovod.objects import allgather_object, broadcast_object
from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.functions import broadcast_optimizer_state, broadcast_parameters

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


class TorchState(ObjectState):
    """ObjectState with a model, an optimizer and samplers: `TorchState(model, optimizer, epoch=0, batch=0)`.

    Of several models, optimizers and samplers give each by a name; they are known by their types.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        named = {"model": model, "optimizer": optimizer, **values}
        handled = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._objects = {name: value for name, value in named.items() if isinstance(value, handled)}
        for name, value in self._objects.items():
            setattr(self, name, value)
        super().__init__(**{name: value for name, value in values.items() if name not in self._objects})

    def reset(self) -> None:
        """Divide what is left of the epoch anew."""
        for value in self._objects.values():
            if isinstance(value, ElasticSampler):
                value.reset()

    def save(self) -> None:
        """Remember everything as it is, in this process."""
        super().save()
        self._states = {name: copy.deepcopy(value.state_dict()) for name, value in self._objects.items()}

    def restore(self) -> None:
        """Go back to what was saved last."""
        super().restore()
        for name, value in self._objects.items():
            value.load_state_dict(copy.deepcopy(self._states[name]))

    def sync(self) -> None:
        """Give all ranks what the first one has; samplers take together what all ranks have processed."""
        for value in self._objects.values():
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), 0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, 0)
            elif isinstance(value, ElasticSampler):
                for state in allgather_object(value.state_dict()):
                    value.record_indices(set(state["processed_indices"]))
                value.reset()
        super().sync()


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates `func(state, ...)`: it is called with the state in sync, and again after the loss of a rank.

    After a HorovodInternalError the survivors shrink the world, restore the state's last commit, and go on. Raises what
    `func` raises otherwise, and what `collectives.shrink` raises on a rank that is left out.
    """

    @functools.wraps(func)
    def call(state: ObjectState, *args: Any, **kwargs: Any) -> T:
        while True:
            state.sync()
            try:
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                if collectives.world().failure is None:
                    raise
                collectives.shrink()
                state.restore()
                state.on_reset()

    return call
