"""State of models, optimizers and samplers that can be committed and restored."""

from __future__ import annotations

from typing import Any

import torch

from collectives.elastic import Arrays
from frontends.horovod import HostsUpdatedInterrupt, ObjectState, recovering
from frontends.torch.elastic.sampler import ElasticSampler

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "TorchState", "run"]

run = recovering()


class _Tensors(Arrays):
    """Tensors as bytes, with dtype, shape and device."""

    def encode(self, value: Any) -> tuple[Any, Any] | None:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            return super().encode(value)
        flat = value.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy(), (value.dtype, tuple(value.shape), value.device.type)

    def decode(self, array: Any, note: Any) -> Any:
        if note is None:
            return super().decode(array, note)
        dtype, shape, device = note
        return torch.from_numpy(array).view(dtype).reshape(shape).to(device)


class TorchState(ObjectState):
    """ObjectState with a model, an optimizer and samplers: `TorchState(model, optimizer, epoch=0, batch=0)`.

    Pass further models, optimizers and samplers by name; they are recognised by their types. They may be replaced:
    `state.optimizer = ...`.
    """

    library = _Tensors()

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        named = {"model": model, "optimizer": optimizer, **values}
        handled = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._handled = [name for name, value in named.items() if isinstance(value, handled)]
        for name in self._handled:
            setattr(self, name, named[name])
        super().__init__(**{name: value for name, value in values.items() if name not in self._handled})
        self._kept = self._objects()

    def reset(self) -> None:
        """Divide the rest of the epoch among the current ranks."""
        for _, value in self._objects():
            if isinstance(value, ElasticSampler):
                value.reset()

    def read(self) -> Any:
        """The attributes, the states of models, optimizers and samplers, and on this rank these themselves."""
        states = [(name, value.state_dict()) for name, value in self._objects()]
        return super().read(), states

    def write(self, values: Any) -> None:
        """Set the attributes and the states."""
        attributes, states = values
        super().write(attributes)
        for name, state in states:
            getattr(self, name).load_state_dict(state)

    def save(self) -> None:
        """Copy all values and states, in this process's memory."""
        super().save()
        self._kept = self._objects()

    def restore(self) -> None:
        """Return to the values and states of the last commit, and to the objects that had them."""
        for name, value in self._kept:
            setattr(self, name, value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the values and states of the last commit, or at first those of rank 0, and divide the rest of
        the epoch among the current ranks. Collective."""
        super().sync()
        self.reset()
        self._kept = self._objects()

    def _objects(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self._handled]
