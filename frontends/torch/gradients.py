"""Groups of gradients that travel together, and their memory.

`lay_out` gives a group memory in a window that all ranks map, so its gradients are reduced in place. A gradient is
copied there once, when autograd has just written it and it is still in the cache; from then on the parameter's `grad`
is a view of that memory, and autograd reuses its own for the next parameter. DistributedDataParallel calls this
gradient_as_bucket_view.

    window   | w1 ........ | b1 . | w2 ...... |     one flat array for each dtype, gradients aligned to 64 bytes
               Slot(w1)      ...
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
from frontends.horovod import divided
from frontends.torch.tensors import as_array, plain_array

Parameter: TypeAlias = torch.nn.Parameter

GROUP_BYTES: Final = 24 << 20
"""Bytes of gradients at which a group is full, and the next one begins."""
_HUGE: Final = 256 << 20
_LINE: Final = 64
"""Bytes. Gradients begin at multiples of that."""

log = logging.getLogger("ronde.torch")


class Slot:
    """Memory of one parameter's gradient."""

    __slots__ = ("_address", "_kind", "_last", "_memory", "_shape", "_stride")

    def __init__(self, parameter: Parameter, memory: Any) -> None:
        """`memory` is a flat array of the parameter's size."""
        self._memory, self._kind = plain_array(memory)
        self._address = self._memory.ctypes.data
        self._shape, self._stride = parameter.shape, parameter.stride()
        self._last: weakref.ref[Any] | None = None

    def view(self) -> torch.Tensor:
        """Return the gradient."""
        return self._look(self._memory)

    def take(self, parameter: Parameter, gradient: torch.Tensor) -> bool:
        """Move the parameter's gradient into the slot. False if the parameter keeps its own tensor too, which must get
        the result."""
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
    """Parameters whose gradients are reduced as one operation.

    given    True if the user asked for this group
    arrays   its memory, as few flat arrays; empty if it has none
    slots    the slot of each parameter in that memory
    ready    number of complete gradients
    outside  parameters whose `grad` is not in the slot; see `Slot.take`
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
        """Move a gradient that is not complete yet into its slot, if it has one."""
        if self.slots and parameter.grad is not None and not parameter.grad.is_sparse:
            self.slots[parameter].take(parameter, parameter.grad)

    def start_over(self) -> None:
        """Begin a step: no gradient is complete."""
        self.ready = 0
        self.outside = []


def given_groups(names: Mapping[Parameter, str], groups: int | Sequence[Sequence[Parameter]] | None) -> list[Group]:
    """Return the groups that the user asked for: lists of parameters, or the number of groups. Raises ValueError."""
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
    """Divide parameters into groups by size, roughly in the order in which their gradients complete: the last layer
    first.

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
    """True if gradients of the parameter can and should have a slot: dense, in host memory, in a format of contiguous
    elements.

    A huge parameter has none, because its gradients may turn out to be sparse, and memory may not suffice for dense
    ones.
    """
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
    """Give memory in a window to all groups, or to none of them. Collective.

    Returns False if it must be tried again, because a rank has joined. All ranks must have equal parameters; otherwise,
    or without enough memory, no group gets memory. Raises RondeError.
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
        # A rank that has joined cannot take part in an allgather, so the others notice it.
        digests = communicator.allgather_async(np.array([digest]), name=f"{label}.layout").wait()
        if (digests != digest).any():
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
