"""State of models, optimizers and samplers that can be committed and restored."""

from __future__ import annotations

import copy
from typing import Any

import torch

from frontends.horovod.elastic import ObjectState, recovering
from frontends.horovod.objects import allgather_object
from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.functions import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ObjectState", "TorchState", "run"]

run = recovering()


class TorchState(ObjectState):
    """ObjectState with a model, an optimizer and samplers: `TorchState(model, optimizer, epoch=0, batch=0)`.

    Of several models, optimizers and samplers give each by a name; they are known by their types. Another one may take
    the place of one of them: `state.optimizer = ...`.
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
        """Divide what is left of the epoch anew."""
        for _, value in self._objects():
            if isinstance(value, ElasticSampler):
                value.reset()

    def save(self) -> None:
        """Remember everything as it is, in this process."""
        super().save()
        self._states = [(name, value, copy.deepcopy(value.state_dict())) for name, value in self._objects()]

    def restore(self) -> None:
        """Go back to what was saved last."""
        super().restore()
        for name, value, state in self._states:
            setattr(self, name, value)
            value.load_state_dict(copy.deepcopy(state))

    def sync(self) -> None:
        """Give all ranks what the first one has; samplers take together what all ranks have processed."""
        for _, value in self._objects():
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), 0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, 0)
            elif isinstance(value, ElasticSampler):
                for state in allgather_object(value.state_dict()):
                    value.record_indices(set(state["processed_indices"]))
                value.reset()
        super().sync()

    def _objects(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self._handled]
