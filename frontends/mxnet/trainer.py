"""DistributedTrainer: Gluon's trainer with gradients averaged over the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from collectives import ProcessSet, global_process_set
from frontends.horovod import is_lossy, listed
from frontends.mxnet.compression import AnyCompression, Compression
from frontends.mxnet.gradients import GradientReduction
from frontends.mxnet.library import mx
from frontends.mxnet.optimizer import DistributedOptimizer


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Gluon's Trainer whose `step` and `allreduce_grads` average the gradients over the ranks.

    params                     net.collect_params(), or a dict or a list of parameters, on one device
    optimizer                  a name, or an optimizer of MXNet
    optimizer_params           its arguments, if a name is given
    compression                Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                               Compression.int8(), .topk(0.01), .powersgd(2), one for each trainer
    gradient_predivide_factor  gradients are divided by it before the sum, and multiplied by it / size after
    prefix                     of the names by which ranks match gradients
    num_groups                 number of operations in which the gradients travel; 0: one for every 25 MB
    process_set                ranks that average; others step with their own gradients

    The gradients of the last layers travel while the backward pass computes those of the first. `step` takes
    the number of rows of this rank. It raises ValueError on every rank, with the names of the parameters, if a gradient
    is missing, or stale (no backward pass has computed it since the last step), on some ranks only. Raises ValueError
    or TypeError for a bad argument.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: AnyCompression = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "optimizer: is a DistributedOptimizer; DistributedTrainer uses the optimizer in it", stacklevel=2
            )
            optimizer = optimizer.wrapped
        self._reduction = GradientReduction(compression, gradient_predivide_factor, num_groups, process_set)
        self._prefix = prefix or ""
        # MXNet sorts parameters by their names, which count the blocks that a process has made: 9 is after 10
        given = params.values() if isinstance(params, Mapping | mx.gluon.ParameterDict) else params
        self._in_order = listed(given, "params", "parameters")
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if self._contexts is not None and len(self._contexts) > 1:
            raise ValueError(f"params: are on {self._contexts}; must be on one device, start a rank for each")
        if is_lossy(compression):
            compression.belong_to([self._name(index) for index in range(len(self._in_order))], self._in_order)

    def _name(self, index: int) -> str:
        """The name by which ranks match the gradient of a parameter."""
        return f"{self._prefix}{index}"

    def _allreduce_grads(self) -> None:
        """Called by `step` and `allreduce_grads`."""
        gradients = [
            (self._name(index), param.name, None if param.grad_req == "null" else param.list_grad()[0])
            for index, param in enumerate(self._in_order)
        ]
        # MXNet does not update parameters of stale gradients, or raises: then all ranks must
        stale = {
            name
            for param, (name, _, gradient) in zip(self._in_order, gradients, strict=True)
            if gradient is not None and not param._data[0]._fresh_grad
        }
        self._reduction.run(gradients, stale)
