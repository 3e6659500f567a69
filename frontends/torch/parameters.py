"""The parameters that an optimizer has now, and their names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from collectives import ProcessSet
from collectives.negotiation import NameInFlightError
from frontends.horovod import Fact, Members, Union, allgather_object, communicator_of
from frontends.torch.works import eager

Parameter: TypeAlias = torch.nn.Parameter

SMALL_BYTES: Final = 64 << 10
"""Bytes. Smaller gradients are handled together: one by one that takes longer than the copying."""
_TOGETHER: Final = 32
"""Small gradients that are handed over together. Between two kernels of a backward pass a function of Python takes
three times as long as in a loop."""
_COMPARE: Final = 1 << 32
"""A wish: to compare the values of parameters that are matched by their places."""
_COMPARED: Final = 1024
"""Elements at the beginning of a parameter that are compared then."""


def gradient_dtype(parameter: Parameter) -> torch.dtype | None:
    """Return the dtype of the parameter's gradients: its own, unless the program has set `grad_dtype`; None for any."""
    return getattr(parameter, "grad_dtype", parameter.dtype)  # not in older versions of torch


class Roster:
    """The parameters of an optimizer's groups, which may change between any two steps.

    parameters  of all groups, in order; frozen ones as well
    names       of each, unique, and the same on all ranks

    A parameter has the name that the user gave it, also if it joins the optimizer later; else that of the group's
    `param_names`; else that of the parameter whose place it took; else one made of its place.
    """

    def __init__(self, named: Mapping[Parameter, str] | None, param_groups: Sequence[dict[str, Any]]) -> None:
        """`named` has all names that the user gave."""
        self._known = WeakTensorKeyDictionary()
        for parameter, name in (named or {}).items():
            self._known[parameter] = name
        self._keys: list[int] | None = None
        self._at: dict[tuple[int, int], str] = {}
        self._in_doubt = False
        """True if parameters are matched by their places, and their values are not yet compared."""
        self._by_place: list[int] = []
        self._given: Sequence[Fact] = ()
        self.parameters: list[Parameter] = []
        self.names: list[str] = []
        self.follow(param_groups)

    def follow(self, param_groups: Sequence[dict[str, Any]]) -> bool:
        """Take the parameters that the groups have now. False if they are the same as before."""
        keys = [id(parameter) for group in param_groups for parameter in group["params"]]
        if keys == self._keys:
            return False
        self._keys = keys
        before, self._at, self._by_place = self._at, {}, []
        self.parameters, self.names = [], []
        for number, group in enumerate(param_groups):
            given = group.get("param_names") or ()
            for index, parameter in enumerate(group["params"]):
                own = given[index] if index < len(given) else before.get((number, index))
                name = self._known.get(parameter) or own
                if name is None or name in self._at.values():
                    name = f"param_groups.{number}.{index}"
                    self._by_place.append(len(self.names))
                self._known[parameter] = self._at[number, index] = name
                self.parameters.append(parameter)
                self.names.append(name)
        self._in_doubt = len(self._by_place) > 1
        self._make_members()
        return True

    def compare(self, given: Sequence[Fact]) -> None:
        """Let `unite` compare arguments of the optimizer, too."""
        self._given = given
        self._make_members()

    def _make_members(self) -> None:
        forms = [f"{tuple(parameter.shape)} {gradient_dtype(parameter)}" for parameter in self.parameters]
        self._members = Members(self.names, forms, self._given)

    def forget(self) -> None:
        """Take the parameters anew at the next `follow`: one has changed."""
        self._keys = None

    def unite(self, kinds: Sequence[int], process_set: ProcessSet, wishes: int = 0) -> Union:
        """Return the kinds of gradients that the ranks have together. Collective.

        kinds    of this rank's gradients, in the order of `parameters`
        wishes   bits below 2**32; the ranks get those of all of them

        Raises ValueError on every rank, with the names of the parameters, if the ranks' optimizers have other ones, or
        list unnamed ones in other orders, and with those arguments that differ; on this one while another optimizer of
        the process set does the same, or a step that was interrupted is not over on the other ranks;
        HorovodInternalError if a rank is lost.
        """
        doubt = _COMPARE if self._in_doubt else 0
        try:
            united = self._members.unite(communicator_of(process_set), "optimizer", kinds, wishes | doubt)
        except NameInFlightError as error:
            raise ValueError(
                "optimizer: cannot combine its gradients, as a step that was interrupted waits for the other ranks, or "
                "another DistributedOptimizer of the process set combines its own in another thread; let one thread "
                "step both, in the same order on all ranks"
            ) from error
        if united.wishes & _COMPARE:
            self._compare(process_set)
        return united

    def check_alike(self, process_set: ProcessSet) -> None:
        """Raise ValueError on every rank, with the names, if the ranks' parameters have other values. Collective."""
        own = dict(zip(self.names, map(_digest, self.parameters), strict=True))
        views = allgather_object(own, "optimizer.alike", process_set)
        other = [name for name in self.names if any(view[name] != own[name] for view in views)]
        if other:
            raise ValueError(
                f"optimizer: the ranks have different values of {', '.join(other[:4])} since a step that failed or was "
                "interrupted: call broadcast_parameters and broadcast_optimizer_state on all ranks, then go on"
            )

    def _compare(self, process_set: ProcessSet) -> None:
        names = [self.names[index] for index in self._by_place]
        compare_order([self.parameters[index] for index in self._by_place], names, process_set)
        self._in_doubt = False


def compare_order(parameters: Sequence[Parameter], names: Sequence[str], process_set: ProcessSet) -> None:
    """Raise ValueError on every rank if the ranks have the same parameters in different orders, as their values show.
    Collective."""
    views = allgather_object(
        [_digest(parameter, _COMPARED) for parameter in parameters], "optimizer.values", process_set
    )
    for rank, view in enumerate(views):
        if view != views[0] and sorted(view) == sorted(views[0]):
            moved = [name for name, here, there in zip(names, view, views[0], strict=True) if here != there]
            raise ValueError(
                f"optimizer: rank {rank} has the parameters {', '.join(moved[:4])} in another order than rank 0; all "
                "ranks must list them in one order, or give named_parameters to DistributedOptimizer"
            )


@eager
class Hooks:
    """Calls a function with the parameters to whose gradients a backward pass has added: with a large one at once, with
    small ones together, and with the last of them at the end of the pass."""

    def __init__(self, function: Callable[[Sequence[Parameter]], None]) -> None:
        self._function = function
        self._hooked: dict[int, tuple[Parameter, Any]] = {}
        self._arrived: list[Parameter] = []

    def follow(self, parameters: Sequence[Parameter]) -> None:
        """Watch these parameters, and no others. Frozen ones cannot be watched yet."""
        hooked = self._hooked
        if len(hooked) > len(parameters) or any(id(one) not in hooked and one.requires_grad for one in parameters):
            kept = {id(parameter) for parameter in parameters}
            for key in [key for key in hooked if key not in kept]:
                hooked.pop(key)[1].remove()
            for parameter in parameters:
                if id(parameter) not in hooked and parameter.requires_grad:
                    note = self._note if parameter.nbytes <= SMALL_BYTES else self._note_large
                    hooked[id(parameter)] = parameter, parameter.register_post_accumulate_grad_hook(note)

    def close(self) -> None:
        """Watch none."""
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()
        self.forget()

    def hand_over(self) -> None:
        """Call the function with those that it has not had yet: a pass that ends by an error leaves some."""
        arrived, self._arrived = self._arrived, []
        if arrived:
            self._function(arrived)

    def forget(self) -> None:
        """Forget those that the function has not had yet."""
        self._arrived = []

    def _note(self, parameter: Parameter) -> None:
        arrived = self._arrived
        arrived.append(parameter)
        if len(arrived) == 1:
            torch.autograd.Variable._execution_engine.queue_callback(self.hand_over)
        elif len(arrived) >= _TOGETHER:
            self.hand_over()

    def _note_large(self, parameter: Parameter) -> None:
        self._arrived.append(parameter)
        self.hand_over()


def _digest(parameter: Parameter, count: int | None = None) -> str:
    """Return a digest of a parameter's elements, or of the first `count`."""
    first = parameter.detach().reshape(-1)[:count].cpu().contiguous()
    return hashlib.blake2b(first.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
