"""Groups of gradients that travel together, and their memory.

`lay_out` gives a group memory in a window that all ranks map, so its gradients are reduced in place. A gradient is
copied there once: a large one when autograd has just written it and it is still in the cache, small ones together when
all of the group are complete. With gradient_as_bucket_view, as in DistributedDataParallel, the parameter's `grad`
is a view of that memory from then on, and autograd reuses its own. Without it only small gradients have such memory,
and the results are copied back: a large gradient is reduced where autograd wrote it.

    window   | w1 ........ | b1 . | w2 ...... |     a Memory for each group and dtype, gradients aligned to 64 bytes
               Slot(w1)      ...
"""

from __future__ import annotations

import logging
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from collectives import Communicator, MismatchError, RendezvousError
from frontends.horovod import MISSING, SPARSE, check_groups, divided
from frontends.torch.parameters import SMALL_BYTES, Parameter, gradient_dtype
from frontends.torch.tensors import as_array, plain_array

GROUP_BYTES: Final = 24 << 20
"""Bytes of gradients at which a group is full, and the next one begins."""
COPIED_BYTES: Final = 1 << 20
"""Bytes. A larger gradient is not copied to memory of a group and back: an operation of its own takes less time."""
_HUGE: Final = 256 << 20
_LINE: Final = 64
"""Bytes. Gradients begin at multiples of that."""

log = logging.getLogger("ronde.torch")


class Gradient:
    """The gradient of one parameter.

    number  among all gradients
    group   with which it travels; None: alone
    slot    its memory in the group's, if that has memory
    begun   True once its reduction has begun in this step
    small   True if it is copied to its slot together with others; a larger one as soon as it is complete, while it is
            in the cache
    moved   the parameter's gradient that was copied to the slot with others, and stays where it is; None: none was
    kind    the kind that the ranks together have in this step, from `synchronize` on
    dense   True once a rank had a dense one
    """

    __slots__ = (
        "_sent",
        "_version",
        "begun",
        "dense",
        "group",
        "kind",
        "moved",
        "name",
        "number",
        "parameter",
        "slot",
        "small",
    )

    def __init__(self, number: int, parameter: Parameter, name: str) -> None:
        self.number = number
        self.parameter = parameter
        self.name = name
        self.begun = False
        self.kind = MISSING
        self.dense = False
        self.moved: torch.Tensor | None = None
        self._sent: torch.Tensor | None = None
        self._version = 0
        self.group: Group | None
        self.slot: Slot | None
        self.small: bool
        self.lie_in(None)

    def lie_in(self, group: Group | None) -> None:
        """Travel with a group from now on, or alone."""
        self.group = group
        self.slot = None if group is None else group.slots.get(self.parameter)
        self.small = self.parameter.nbytes <= SMALL_BYTES

    def note(self) -> None:
        """The reduction has begun with what the parameter has now."""
        self._sent = own = self.parameter.grad
        if own is not None:
            self._version = own._version

    def forget(self) -> None:
        """The program knows of a change."""
        self._sent = None

    def start_over(self) -> None:
        """Begin a step."""
        self.begun = False
        self.kind = MISSING
        self.moved = self._sent = None

    @property
    def changed(self) -> bool:
        """True if the program has changed the gradient since `note`: the result may have a part of the change."""
        sent, own = self._sent, self.parameter.grad
        return sent is not None and own is sent and own._version != self._version

    def give_kind(self) -> None:
        """Give a gradient that this rank did not have the kind that the others have: none, sparse or dense."""
        own = self.parameter.grad
        if self.kind == MISSING:
            self.parameter.grad = None
        elif self.kind == SPARSE and own is not None and not own.is_sparse:
            self.parameter.grad = own.to_sparse(1)


class Memory:
    """Flat memory of gradients of one dtype.

    address  of its first byte
    slots    all that are in it
    as_view  True if the parameters' gradients are views of it
    """

    def __init__(self, array: Any, *, as_view: bool) -> None:
        self.as_view = as_view
        self._array, self._kind = plain_array(array)
        self.address = self._array.ctypes.data
        self.itemsize = self._array.itemsize
        self.slots: list[Slot] = []
        self._tensor: torch.Tensor | None = None
        self._last: weakref.ref[Any] | None = None

    def tensor(self) -> torch.Tensor:
        """Return the flat tensor of this step. If gradients are views, it is another one in each step, so that it shows
        if those of an earlier step are still in use."""
        if self._tensor is None:
            in_use = self._last is not None and self._last() is not None
            if in_use and not any(slot.holds_gradient for slot in self.slots):
                warnings.warn(
                    "a gradient of an earlier step is still in use, and is overwritten now: take gradient.clone(), or "
                    "create DistributedOptimizer without gradient_as_bucket_view",
                    stacklevel=2,
                )
            piece = self._array[:]  # lives as long as a tensor looks at it
            self._last = weakref.ref(piece)
            with torch.inference_mode(False):  # later steps, outside of that mode, could not write to a tensor of it
                tensor = torch.from_numpy(piece)
                self._tensor = tensor if self._kind is None else tensor.view(self._kind)
        return self._tensor

    def start_over(self) -> None:
        """Begin a step."""
        if self.as_view:
            self._tensor = None


class Slot:
    """Memory of one parameter's gradient."""

    __slots__ = ("_dtype", "_memory", "_parameter", "_shape", "_start", "_stride", "_view", "address")

    def __init__(self, parameter: Parameter, memory: Memory, start: int) -> None:
        """`start` is the number of the first element."""
        self._parameter = parameter
        self._memory = memory
        self._start = start
        self._shape, self._stride, self._dtype = parameter.shape, parameter.stride(), parameter.dtype
        self.address = memory.address + start * memory.itemsize
        self._view: torch.Tensor | None = None
        memory.slots.append(self)

    @property
    def fits(self) -> bool:
        """False once the parameter or its gradients have another dtype or shape, or are on a device."""
        parameter = self._parameter
        same = parameter.dtype is self._dtype and gradient_dtype(parameter) is self._dtype
        return bool(same and parameter.shape == self._shape and parameter.is_cpu)

    @property
    def holds_gradient(self) -> bool:
        """True if the parameter's gradient is here."""
        gradient = self._parameter.grad
        return gradient is not None and not gradient.is_sparse and gradient.data_ptr() == self.address

    def view(self) -> torch.Tensor:
        """Return the gradient. The same tensor in each step, unless it becomes the parameter's."""
        if self._view is not None:
            return self._view
        view = self._memory.tensor().as_strided(self._shape, self._stride, self._start)
        if not self._memory.as_view:
            self._view = view
        return view

    def take(self, gradient: torch.Tensor) -> None:
        """Copy a gradient of the parameter into the slot. If gradients are views, it becomes the parameter's, unless
        that is sparse or part of a graph of its own."""
        if gradient.data_ptr() != self.address:
            view = self.view()
            view.copy_(gradient.detach())
            if gradient is self._parameter.grad and self.can_replace(gradient):
                self._parameter.grad = view

    def can_replace(self, gradient: torch.Tensor) -> bool:
        """True if the slot is to become the parameter's gradient instead of this one. Not if the program has changed
        the dtype between two passes of a step."""
        return self._memory.as_view and not gradient.requires_grad and gradient.dtype is self._dtype


class Group:
    """Parameters whose gradients are reduced as one operation.

    given     True if the user asked for this group
    arrays    its memory, as few flat arrays; empty if it has none
    memories  the same
    members   the gradients
    slots     the slot of each parameter in that memory
    ready     number of complete gradients
    waiting   those that are to be moved to their slots together
    """

    def __init__(self, parameters: Sequence[Parameter], name: str, *, given: bool) -> None:
        self.parameters = parameters
        self.name = name
        self.given = given
        self.arrays: list[Any] = []
        self.memories: list[Memory] = []
        self.members: list[Gradient] = []
        self.slots: dict[Parameter, Slot] = {}
        self.ready = 0
        self.waiting: list[Gradient] = []

    def start_over(self) -> None:
        """Begin a step: no gradient is complete."""
        self.ready = 0
        self.waiting = []
        for memory in self.memories:
            memory.start_over()


def take_together(group: Group) -> list[Gradient]:
    """Copy the waiting gradients of a group into their slots by one call. If gradients are views, the slots become the
    parameters'. Returns those that it is not for: missing and sparse ones, and those with a graph of their own."""
    left, views, sources = [], [], []
    for one in group.waiting:
        slot, own = one.slot, one.parameter.grad
        if slot is None or own is None or own.is_sparse or own.requires_grad:
            left.append(one)
        elif own.data_ptr() != slot.address:
            view = slot.view()
            views.append(view)
            sources.append(own)
            if slot.can_replace(own):
                one.parameter.grad = view
            else:
                one.moved = own
    if views:
        torch._foreach_copy_(views, sources)
    return left


def give_back(group: Group) -> None:
    """Copy the results of a group to the gradients that are outside its memory, at first or since: as sparse as these
    are."""
    results, own = [], []
    for one in group.members:
        parameter, slot = one.parameter, one.slot
        if slot is None:
            continue
        gradient = parameter.grad
        if gradient is not None and gradient is one.moved:
            results.append(slot.view())
            own.append(gradient)
        elif not slot.holds_gradient:
            result = slot.view()
            if gradient is None or gradient.is_sparse:
                parameter.grad = result.clone() if gradient is None else result.to_sparse(gradient.sparse_dim())
            else:
                results.append(result)
                own.append(gradient.detach())
    if own:
        torch._foreach_copy_(own, results)


def given_groups(names: Mapping[Parameter, str], groups: int | Sequence[Sequence[Parameter]] | None) -> list[Group]:
    """Return the groups that the user asked for: lists of parameters, or the number of groups. Raises ValueError or
    TypeError."""
    check_groups(groups)
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int):
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
    """True if gradients of the parameter can and should have a slot: dense, in host memory, of the parameter's dtype,
    in a format of contiguous elements.

    A huge parameter has none, because its gradients may turn out to be sparse, and memory may not suffice for dense
    ones.
    """
    dense = parameter.layout is torch.strided and parameter.device.type == "cpu" and 0 < parameter.nbytes <= _HUGE
    plain = dense and gradient_dtype(parameter) is parameter.dtype
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return plain and any(parameter.is_contiguous(memory_format=one) for one in formats if parameter.ndim in _RANKS[one])


_RANKS: Final = {
    torch.contiguous_format: range(65),
    torch.channels_last: (4,),
    torch.channels_last_3d: (5,),
}
"""The numbers of dimensions that memory formats are for."""


def lay_out(
    communicator: Communicator, groups: Sequence[Group], names: Mapping[Parameter, str], *, as_view: bool
) -> bool:
    """Give memory in a window to all groups, or to none of them: with `as_view` to be that of gradients. Collective.

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
    found: dict[tuple[Group, np.dtype[Any]], tuple[Memory, int]] = {}
    for group, dtype, start, stop in ends:
        array = memory[dtype][start:stop]
        group.arrays.append(array)
        group.memories.append(Memory(array, as_view=as_view))
        found[group, dtype] = group.memories[-1], start
    for group, parameter, dtype, start in places:
        of_group, first = found[group, dtype]
        group.slots[parameter] = Slot(parameter, of_group, start - first)
    return True
