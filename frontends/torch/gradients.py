"""Which gradients travel together, and where they lie.

A group has memory once `lay_out` has given it some: in a window (collectives/windows.py), so that its gradients are
combined where they lie. What autograd gives is copied there once, while it is in the cache; the parameter's `grad` is a
view of it from then on, and autograd uses its own memory again for the next parameter. DistributedDataParallel calls
that gradient_as_bucket_view.
"""

from __future__ import annotations

import logging
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from collectives import Communicator, MismatchError, RendezvousError
from frontends.horovod.gradients import divided
from frontends.torch.tensors import as_array, plain_array

Parameter: TypeAlias = torch.nn.Parameter

GROUP_BYTES: Final = 24 << 20
"""When gradients of a group are no fewer than that, the next one begins a new group."""
_HUGE: Final = 256 << 20
_LINE: Final = 64
"""Bytes. Gradients begin at multiples of that."""

log = logging.getLogger("ronde")


class Slot:
    """The place of a parameter's gradient."""

    __slots__ = ("_address", "_kind", "_last", "_memory", "_shape", "_stride")

    def __init__(self, parameter: Parameter, memory: Any) -> None:
        """`memory` is a flat array as large as the parameter."""
        self._memory, self._kind = plain_array(memory)
        self._address = self._memory.ctypes.data
        self._shape, self._stride = parameter.shape, parameter.stride()
        self._last: weakref.ref[Any] | None = None

    def view(self) -> torch.Tensor:
        """The gradient."""
        return self._look(self._memory)

    def take(self, parameter: Parameter, gradient: torch.Tensor) -> bool:
        """Bring the parameter's gradient here. False if it also stays where it is, and is to get what comes of it."""
        if gradient.data_ptr() == self._address:
            return True
        if self._last is not None and self._last() is not None:
            warnings.warn(
                "a gradient of an earlier step is still in use, and is overwritten now: take gradient.clone(), or give "
                "DistributedOptimizer gradient_as_bucket_view=False",
                stacklevel=2,
            )
        piece = self._memory[:]  # lives as long as a tensor looks at it
        view = self._look(piece)
        view.copy_(gradient.detach())
        if gradient.requires_grad:  # it is part of a graph of its own
            return False
        self._last = weakref.ref(piece)
        parameter.grad = view
        return True

    def _look(self, memory: Any) -> torch.Tensor:
        tensor = torch.from_numpy(memory)
        return (tensor if self._kind is None else tensor.view(self._kind)).as_strided(self._shape, self._stride)


class Group:
    """Parameters whose gradients are combined as one operation.

    given    it is the user's
    arrays   its memory, as few flat arrays; none without
    slots    where each gradient lies in it
    ready    how many gradients are complete
    outside  parameters whose `grad` is not in the slot, as `Slot.take` says
    """

    def __init__(self, parameters: Sequence[Parameter], name: str, *, given: bool) -> None:
        self.parameters = parameters
        self.name = name
        self.given = given
        self.arrays: list[Any] = []
        self.slots: dict[Parameter, Slot] = {}
        self.ready = 0
        self.outside: list[Parameter] = []

    def take_early(self, parameter: Parameter) -> None:
        """Have a gradient that is not complete yet lie in its slot already, if there is one for it."""
        if self.slots and parameter.grad is not None and not parameter.grad.is_sparse:
            self.slots[parameter].take(parameter, parameter.grad)

    def start_over(self) -> None:
        """No gradient is complete."""
        self.ready = 0
        self.outside = []


def given_groups(names: Mapping[Parameter, str], groups: int | Sequence[Sequence[Parameter]] | None) -> list[Group]:
    """What the user wants to travel together: lists of the parameters, or into how many groups to divide them. Raises
    ValueError."""
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups={groups}: must be 0 or more")
        chosen = divided(list(names), groups)
    else:
        chosen = [list(group) for group in groups]
    counts = Counter(parameter for group in chosen for parameter in group)
    if any(count > 1 for count in counts.values()):
        raise ValueError("groups: a parameter is in more than one")
    if not set(counts) <= set(names):
        raise ValueError("groups: has a parameter that is not the optimizer's")
    return [Group(group, f"{names[group[0]]}.group", given=True) for group in chosen if group]


def own_groups(names: Mapping[Parameter, str], limit: int) -> list[Group]:
    """Groups of parameters that `can_lie`, in about the order in which their gradients are complete: the last first.

    limit  bytes; a group with at least that many is complete
    """
    found: list[list[Parameter]] = []
    filled = limit
    for parameter in reversed(list(names)):
        if filled >= limit or parameter.dtype != found[-1][0].dtype:
            found.append([])
            filled = 0
        found[-1].append(parameter)
        filled += parameter.nbytes
    texts = [" to ".join(dict.fromkeys((names[group[0]], names[group[-1]]))) for group in found]
    return [Group(group, name, given=False) for group, name in zip(found, texts, strict=True)]


def can_lie(parameter: Parameter) -> bool:
    """True if its gradients may lie in memory of the host, in the order of its own elements, and should: of a huge
    parameter they may turn out to be sparse, and then there may not be as much memory."""
    dense = parameter.layout is torch.strided and parameter.device.type == "cpu" and 0 < parameter.nbytes <= _HUGE
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return dense and any(parameter.is_contiguous(memory_format=one) for one in formats if parameter.ndim in _RANKS[one])


_RANKS: Final = {
    torch.contiguous_format: range(65),
    torch.channels_last: (4,),
    torch.channels_last_3d: (5,),
}
"""The numbers of dimensions that memory formats are for."""


def lay_out(communicator: Communicator, groups: Sequence[Group], names: Mapping[Parameter, str]) -> bool:
    """Give all groups memory that the ranks of the communicator map, or none of them. Collective.

    False if that is to be tried again, because a rank has joined. The ranks must have equal parameters; otherwise, or
    where there is no room, no group gets memory. Raises RondeError.
    """
    sizes: Counter[np.dtype[Any]] = Counter()
    ends: list[tuple[Group, np.dtype[Any], int, int]] = []
    places: list[tuple[Group, Parameter, np.dtype[Any], int]] = []
    facts: list[object] = []
    for group in groups:
        kinds = {parameter: as_array(parameter).dtype for parameter in group.parameters}
        for dtype in dict.fromkeys(kinds.values()):
            start, lines = sizes[dtype], _LINE // dtype.itemsize
            for parameter in (one for one in group.parameters if kinds[one] == dtype):
                places.append((group, parameter, dtype, sizes[dtype]))
                facts.append((names[parameter], parameter.shape, parameter.stride(), dtype.name, sizes[dtype]))
                sizes[dtype] += -(-parameter.numel() // lines) * lines
            ends.append((group, dtype, start, sizes[dtype]))
    if not ends:
        return True
    label = f"{names[groups[0].parameters[0]]}.gradients"
    digest = zlib.crc32(repr(facts).encode())
    try:
        said = np.array([digest, -digest], np.int64)
        least, most = communicator.allreduce_async(said, "min", name=f"{label}.layout").wait()
        if least != -most:
            log.warning("the parameters named %s and so on are not the same on all ranks", label)
            return True
        memory = {dtype: communicator.empty(size, dtype, name=f"{label}.{dtype.name}") for dtype, size in sizes.items()}
    except MismatchError:
        return False
    except RendezvousError as error:
        log.warning("gradients are copied on their way: %s", error)
        return True
    for group, dtype, start, stop in ends:
        group.arrays.append(memory[dtype][start:stop])
    for group, parameter, dtype, start in places:
        group.slots[parameter] = Slot(parameter, memory[dtype][start : start + parameter.numel()])
    return True
