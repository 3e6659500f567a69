"""Adasum of optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from collectives import ProcessSet
from frontends.horovod import Adasum, alone_in
from frontends.torch import ops
from frontends.torch.compression import Compressor
from frontends.torch.gradients import Parameter
from frontends.torch.passes import PassCounter


class StepReduction:
    """Steps on this rank's own gradients, and combines the changes of all ranks by Adasum.

    As in Horovod, that happens once for `backward_passes_per_step` passes, or earlier if `step` is called earlier.
    Horovod steps for each parameter separately during backward; this class steps for all of them in `step`.
    """

    in_flight = False

    def __init__(
        self, names: Mapping[Parameter, str], compression: type[Compressor], passes: int, process_set: ProcessSet
    ) -> None:
        self._names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self._compression = compression
        self._counter = PassCounter(len(self._names), passes)
        self._process_set = process_set
        self._stepping = False
        if not alone_in(process_set):
            for number, parameter in enumerate(self._names):
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))

    def synchronize(self) -> None:
        """Nothing: steps are combined, not gradients."""

    def step(self, plain_step: Callable[[Any], Any], closure: Callable[[], Any] | None, synchronize: bool) -> Any:
        """Step, and combine the changes. `synchronize` is ignored."""
        with torch.no_grad():
            alone = alone_in(self._process_set)
            before = {} if alone else {parameter: parameter.detach().clone() for parameter in self._names}
        self._stepping = True
        try:
            loss = plain_step(closure)
        finally:
            self._stepping = False
            self._counter.restart()
        with torch.no_grad():
            begun = []
            for parameter, old in before.items():
                small, ctx = self._compression.compress(parameter - old)
                handle = ops.allreduce_async_(small, None, self._names[parameter], Adasum, 1.0, 1.0, self._process_set)
                begun.append((parameter, handle, ctx))
            for parameter, handle, ctx in begun:
                change = self._compression.decompress(handle.synchronize(), ctx)
                parameter.copy_(before[parameter] + change)
        return loss

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step, and begin a step. Raises ValueError."""
        self._counter.set_passes(passes)

    def discard(self) -> None:
        """Begin a step."""
        self._counter.restart()

    def _on_gradient(self, number: int, parameter: Parameter) -> None:
        """Hook: a backward pass has added to a gradient. Gradients that a step's closure computes do not count."""
        if not self._stepping:
            self._counter.count(number)
