"""State of models, optimizers and samplers that can be committed and restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any, Final

import numpy as np
import torch

from collectives.arrays import type_name
from collectives.elastic import Arrays
from frontends import horovod
from frontends.horovod import HostsUpdatedInterrupt, recovering
from frontends.torch.elastic.sampler import ElasticSampler

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "TorchState", "run"]

run = recovering()
_HANDLED: Final = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
"""Types of objects that keep their identity."""


class _Tensors(Arrays):
    """Tensors as elements without a type in the bytes of their storages; a storage on a device has a copy here. NumPy's
    arrays as in Arrays."""

    def __init__(self) -> None:
        self._here: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
        self._made: dict[tuple[int, str], torch.UntypedStorage] = {}
        self._kept: list[Any] = []  # while they live, no other object has their address or identity

    def encode(self, value: Any) -> tuple[Any, Any] | None:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return super().encode(value)
        plain = value.detach().resolve_conj().resolve_neg()
        item = plain.element_size()
        array = np.ndarray(
            tuple(plain.shape),
            f"V{item}",
            self._bytes(plain.untyped_storage()),
            plain.storage_offset() * item,
            tuple(step * item for step in plain.stride()),
        )
        needs_gradient = value.requires_grad and value.is_leaf
        return array, (type(value), value.dtype, value.device.type, needs_gradient)

    def decode(self, array: Any, note: Any) -> Any:
        if note is None:
            return super().decode(array, note)
        kind, dtype, device, needs_gradient = note
        block = array if array.base is None else array.base
        storage = self._made.get((id(block), device))
        if storage is None:
            data = torch.from_numpy(block.reshape(-1).view(np.uint8))
            # A block of several may have NumPy arrays in it, too. The storage of one tensor is torch's own: to resize.
            storage = data.to(device, copy=array is block).untyped_storage()
            self._made[id(block), device] = storage
            self._kept.append(block)
        offset = array.__array_interface__["data"][0] - block.__array_interface__["data"][0]
        steps = [step // array.itemsize for step in array.strides]
        tensor = torch.empty(0, dtype=dtype, device=device)
        tensor.set_(storage, offset // array.itemsize, array.shape, steps)
        if kind is torch.nn.Parameter:
            return torch.nn.Parameter(tensor, needs_gradient)
        return tensor.requires_grad_(needs_gradient)

    def _bytes(self, storage: torch.UntypedStorage) -> Any:
        key = storage.device, storage.data_ptr()
        if key not in self._here:
            self._here[key] = storage.cpu()  # the same storage if it is here
            self._kept.append(storage)
        return np.from_dlpack(torch.empty(0, dtype=torch.uint8, device="cpu").set_(self._here[key]))


class ObjectState(horovod.ObjectState):
    """Values kept as attributes, tensors and what refers to them included: `state = ObjectState(epoch=0)`,
    `state.epoch += 1`, `state.commit()`. A rank whose values differ from those of the others after a commit gets
    theirs, as in Horovod. Tensors that share memory share it again after `restore` and `sync`."""

    library = _Tensors


class TorchState(ObjectState):
    """ObjectState with a model, an optimizer and samplers: `TorchState(model, optimizer, epoch=0, batch=0)`.

    Pass further models, optimizers and samplers by name; they are recognised by their types. They may be replaced:
    `state.optimizer = ...`.

    Models, optimizers and samplers keep their identity: `restore` and `sync` change their contents. So other values
    may refer to them, to their modules, parameters and buffers, as a scheduler of learning rates refers to its
    optimizer. Parameters that only an optimizer has are kept with it.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        for name, value in (("model", model), ("optimizer", optimizer)):
            if isinstance(value, type | str | bytes | Number):
                raise TypeError(f"{name}={value!r:.60}: must be a torch {name}, not {type_name(value)}")
        named = {"model": model, "optimizer": optimizer, **values}
        self._handled = [name for name, value in named.items() if isinstance(value, _HANDLED)]
        for name in self._handled:
            setattr(self, name, named[name])
        super().__init__(**{name: value for name, value in named.items() if name not in self._handled})
        self._kept = self._objects()

    def reset(self) -> None:
        """Divide the rest of the epoch among the current ranks."""
        for _, value in self._objects():
            if isinstance(value, ElasticSampler):
                value.reset()

    def read(self) -> Any:
        """The attributes, the states of models, optimizers and samplers, and on this rank these themselves."""
        states = [(name, value.state_dict()) for name, value in self._objects()]
        return super().read(), states, [parameter.detach() for _, parameter in self._loose()]

    def write(self, values: Any) -> None:
        """Set the attributes and the states. Raises ValueError, with nothing changed, if this rank's state was made
        with other models, optimizers and samplers."""
        attributes, states, loose = values
        found = [name for name, _ in states]
        if sorted(found) != sorted(self._handled):
            raise ValueError(
                f"state: has models, optimizers and samplers {found} on the ranks that committed it, and "
                f"{self._handled} here; make it with the same ones on all ranks"
            )
        super().write(attributes)
        for name, state in states:
            getattr(self, name).load_state_dict(state)
        with torch.no_grad():
            for (_, parameter), value in zip(self._loose(), loose, strict=True):
                parameter.copy_(value)

    def fixed(self) -> Mapping[str, Any]:
        """Models, optimizers and samplers, with the modules, parameters and buffers in them."""
        return dict([*self._objects(), *self._parts(), *self._loose()])

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
        """The models, optimizers and samplers. Raises TypeError if one was replaced by something else."""
        found = [(name, getattr(self, name)) for name in self._handled]
        for name, value in found:
            if not isinstance(value, _HANDLED):
                kinds = ", ".join(kind.__name__ for kind in _HANDLED)
                raise TypeError(f"{name}: is a {type(value).__name__}; the state was made with one of {kinds}")
        return found

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """The modules, parameters and buffers of the models."""
        for name, model in self._objects():
            if isinstance(model, torch.nn.Module):
                for found in (model.named_modules(), model.named_parameters(), model.named_buffers()):
                    yield from ((f"{name}.{part}", value) for part, value in found if part)

    def _loose(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters of optimizers that no model has."""
        known = {id(part) for _, part in self._parts()}
        loose = []
        for name, optimizer in self._objects():
            if isinstance(optimizer, torch.optim.Optimizer):
                for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                    if id(parameter) not in known:
                        known.add(id(parameter))
                        loose.append((f"{name}.param_groups[{index}]", parameter))
        return loose
