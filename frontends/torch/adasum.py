"""Adasum of optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectives import ProcessSet
from frontends.horovod import DENSE, MISSING, Adasum, Compressor, Max, alone_in, option_facts, title_of
from frontends.torch import ops
from frontends.torch.parameters import Hooks, Parameter, Roster
from frontends.torch.passes import PassCounter
from frontends.torch.works import eager


@eager
class StepReduction:
    """Steps on this rank's own gradients, and combines the changes of all ranks by Adasum.

    As in Horovod, that happens once for `backward_passes_per_step` passes, or earlier if `step` is called earlier.
    Horovod steps for each parameter separately during backward; this class steps for all of them in `step`.
    """

    in_flight = False

    def __init__(self, roster: Roster, compression: type[Compressor], passes: int, process_set: ProcessSet) -> None:
        self._roster = roster
        self._compression = compression
        self._process_set = process_set
        self._stepping = False
        self._counter = PassCounter(0, passes)
        self._hooks = Hooks(self._on_gradients)
        roster.compare(option_facts(op=Adasum, compression=title_of(compression)))
        self._watch()

    def close(self) -> None:
        """Count no more passes: the optimizer is gone."""
        self._hooks.close()

    def synchronize(self, param_groups: Sequence[dict[str, Any]]) -> None:
        """Nothing: steps are combined, not gradients."""

    def settle(self, param_groups: Sequence[dict[str, Any]]) -> None:
        """Make a gradient of each rank infinite if a rank has one that is not finite: for a caller that looks for these
        first, and then calls `step` or skips that, as all ranks do then. Begin a step."""
        self._counter.restart()
        if alone_in(self._process_set):
            return
        gradients = [parameter.grad for group in param_groups for parameter in group["params"]]
        values = [one._values() if one.is_sparse else one for one in gradients if one is not None]
        finite = all(bool(torch.isfinite(one).all()) for one in values)
        infinite = torch.tensor([not finite], device="cpu")
        ops.allreduce_(infinite, name="adasum.infinite", op=Max, process_set=self._process_set)
        if finite and infinite.item() and values:
            values[0].detach().fill_(math.inf)

    def step(
        self,
        plain_step: Callable[[Any], Any],
        closure: Callable[[], Any] | None,
        synchronize: bool,
        param_groups: Sequence[dict[str, Any]],
    ) -> Any:
        """Step, and combine the changes of the parameters that have a gradient on any rank. `synchronize` is ignored.

        Raises ValueError on every rank if the ranks' parameters differ.
        """
        alone = alone_in(self._process_set)
        self._roster.follow(param_groups)
        parameters = self._roster.parameters
        before: dict[int, torch.Tensor] = {}
        if not alone:
            with torch.no_grad():
                for index, parameter in enumerate(parameters):
                    if parameter.requires_grad or parameter.grad is not None:
                        before[index] = parameter.detach().clone()
        self._stepping = True
        try:
            loss = plain_step(closure)
        finally:
            self._stepping = False
            self._watch()
        if alone:
            return loss
        kinds = [MISSING if parameter.grad is None else DENSE for parameter in parameters]
        united = self._roster.unite(kinds, self._process_set)
        with torch.no_grad():
            begun = []
            for index, kind in enumerate(united.kinds):
                if kind == MISSING:
                    continue
                parameter = parameters[index]
                old = before[index] if index in before else parameter.detach().clone()
                small, ctx = self._compression.compress(parameter - old)
                name = self._roster.names[index]
                handle = ops.allreduce_async_(small, None, name, Adasum, 1.0, 1.0, self._process_set)
                begun.append((parameter, old, handle, ctx))
            for parameter, old, handle, ctx in begun:
                parameter.copy_(old + self._compression.decompress(handle.synchronize(), ctx))
        return loss

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step, and begin a step. Raises ValueError."""
        self._counter.set_passes(passes)
        self._counter.restart()

    def drain(self) -> None:
        """Begin a step."""
        self._hooks.forget()
        self._counter.restart()

    start_over = drain

    def _watch(self) -> None:
        """Count the passes of the parameters that there are, and begin a step."""
        self._numbers = {id(parameter): number for number, parameter in enumerate(self._roster.parameters)}
        self._counter.resize(len(self._numbers))
        if not alone_in(self._process_set):
            self._hooks.follow(self._roster.parameters)

    def _on_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Hook: a backward pass has added to gradients. Those that a step's closure computes do not count."""
        if not self._stepping:
            for parameter in parameters:
                number = self._numbers.get(id(parameter))
                if number is not None:
                    self._counter.count(number)
