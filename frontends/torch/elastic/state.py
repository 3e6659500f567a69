"""State of models, optimizers and samplers that can be committed and restored."""

from __future__ import annotations

import copy
from typing import Any

import torch

from frontends.horovod import ObjectState, broadcast_object, recovering
from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.functions import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ObjectState", "TorchState", "run"]

run = recovering()


class TorchState(ObjectState):
    """ObjectState with a model, an optimizer and samplers: `TorchState(model, optimizer, epoch=0, batch=0)`.

    Pass further models, optimizers and samplers by name; they are recognised by their types. They may be replaced:
    `state.optimizer = ...`.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        named = {"model": model, "optimizer": optimizer, **values}
        handled = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._handled = [name for name, value in named.items() if isinstance(value, handled)]
        for name in self._handled:
            setattr(self, name, named[name])
        super().__init__(**{name: value for name, value in values.items() if name not in self._handled})

    def reset(self) -> None:
        """Divide the rest of the epoch among the current ranks."""
        for _, value in self._objects():
            if isinstance(value, ElasticSampler):
                value.reset()

    def save(self) -> None:
        """Copy all values and states, in this process's memory."""
        super().save()
        self._states = [(name, value, copy.deepcopy(value.state_dict())) for name, value in self._objects()]

    def restore(self) -> None:
        """Return to the values and states of the last `save`."""
        super().restore()
        for name, value, state in self._states:
            setattr(self, name, value)
            value.load_state_dict(copy.deepcopy(state))

    def sync(self) -> None:
        """Broadcast all values and states of rank 0 to all ranks. Collective."""
        for _, value in self._objects():
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), 0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, 0)
            elif isinstance(value, ElasticSampler):
                value.load_state_dict(broadcast_object(value.state_dict()))
        super().sync()

    def _objects(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self._handled]
