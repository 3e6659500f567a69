"""Broadcast of parameters and optimizer state, so that all ranks begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from collectives import ProcessSet, global_process_set
from frontends.horovod import VALUE, Fact, agree, agree_on_values, as_horovod, broadcast_made, communicator_of, root_in
from frontends.torch import ops
from frontends.torch.parameters import compare_order
from frontends.torch.tensors import MOVING


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give the parameters of all ranks the values of `root_rank`, a rank of the world, in place.

    params   model.state_dict(), model.named_parameters(), or a list of tensors. Values that are not tensors are ignored

    Raises ValueError for another type, such as a module, and on every rank if the ranks have other names or numbers of
    tensors, or one of them has a tensor that cannot be sent, such as a sparse one; HorovodInternalError if these differ
    in shape or type.
    """
    pairs: list[tuple[str | None, Any]]
    if isinstance(params, torch.nn.Module):
        raise ValueError("params: is a module; give its state_dict()")
    if isinstance(params, Mapping):
        pairs = sorted(params.items(), key=lambda pair: str(pair[0]))
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str | bytes):
        pairs = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"params: must be a dict, pairs of name and tensor, or tensors, not {type(params).__name__}")
    modules = [type(value).__name__ for _, value in pairs if isinstance(value, torch.nn.Module)]
    if modules:
        raise ValueError(f"params: has modules ({', '.join(modules)}); give the state_dict() of the whole model")
    tensors = [(name, tensor) for name, tensor in pairs if isinstance(tensor, torch.Tensor)]
    named = {str(place if name is None else name): tensor for place, (name, tensor) in enumerate(tensors)}
    obstacles = {name: _obstacle(tensor) for name, tensor in sorted(named.items())}
    with as_horovod():
        agree_on_values(communicator_of(process_set), "parameters", obstacles, "params")
    with torch.no_grad():
        handles = [ops.broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in tensors]
        for handle in handles:
            handle.synchronize()


def _obstacle(tensor: torch.Tensor) -> str:
    """Return the reason why a tensor cannot be broadcast, empty if it can."""
    if torch.nn.parameter.is_lazy(tensor):
        return "is not initialized yet; call the model once before"
    return MOVING.obstacle(tensor)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give the optimizers of all ranks state and options of `root_rank`'s optimizer, also before its first step.

    Works for every optimizer whose `load_state_dict` accepts its `state_dict`. The ranks have optimizers of one class,
    with parameters of the same shapes in the same order; if not, as also the parameters' values may show, all ranks
    raise ValueError. They also raise the error of a state that the root cannot give. `model` is accepted for Horovod's
    sake and ignored.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    with as_horovod():
        agree(communicator_of(process_set), "optimizer.form", list(_facts(optimizer)))
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    compare_order(own, [str(index) for index in range(len(own))], process_set)
    tensors: list[torch.Tensor] = []

    def make() -> Any:
        return _outline(optimizer.state_dict(), tensors, "optimizer.state_dict()")

    outline = broadcast_made(make, root_rank, "optimizer.outline", process_set)
    is_root = process_set.rank() == root_in(process_set, root_rank)
    state = None if is_root else _fill(outline, tensors)
    for index, tensor in enumerate(tensors):
        ops.broadcast_(tensor, root_rank, f"optimizer.{index}", process_set)
    if not is_root:
        optimizer.load_state_dict(state)


def _facts(optimizer: torch.optim.Optimizer) -> Iterator[Fact]:
    """The class of an optimizer, and the shapes of its parameters."""
    yield Fact("optimizer", "optimizer", type(optimizer).__name__, VALUE)
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name = f"param_groups.{number}.{index}"
            yield Fact(name, name, str(tuple(parameter.shape)), VALUE)


class _Tensor:
    """Placeholder of a tensor in an outline."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device.type


_CONTAINERS: Final = (dict, list, tuple)


def _outline(value: Any, tensors: list[torch.Tensor], place: str) -> Any:
    """Return `value` with placeholders in place of its dense tensors, which are appended to the list. Others, such as
    the momentum of sparse gradients, stay in it. `place` is that of the value, for messages."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        MOVING.as_array(plain, place)  # raises on the root, before others wait for the tensor
        tensors.append(plain)
        return _Tensor(value)
    if isinstance(value, dict):
        return {key: _outline(part, tensors, f"{place}[{key!r}]") for key, part in value.items()}
    if type(value) in _CONTAINERS:
        return type(value)(_outline(part, tensors, f"{place}[{key}]") for key, part in enumerate(value))
    return value


def _fill(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value of an outline with empty tensors in place of the placeholders; they are appended to the list."""
    if isinstance(outline, _Tensor):
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype, device=outline.device))
        return tensors[-1]
    if isinstance(outline, dict):
        return {key: _fill(part, tensors) for key, part in outline.items()}
    if type(outline) in _CONTAINERS:
        return type(outline)(_fill(part, tensors) for part in outline)
    return outline
