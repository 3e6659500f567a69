"""Keras on PyTorch: steps run eagerly."""

from __future__ import annotations

from typing import Any

import torch

from frontends.horovod import agree, as_horovod
from frontends.keras.backends.interface import Backend, ReductionOptions
from frontends.torch import grouped_allreduce, grouped_allreduce_async_, init


class TorchBackend(Backend):
    """Keras on PyTorch. `combine` stays out of torch.compile."""

    def init(self, comm: Any, process_sets: Any) -> None:
        """Horovod's `init` for torch."""
        init(comm, process_sets)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def combine(self, tensors: list[Any], options: ReductionOptions) -> list[Any]:
        """Allreduce all tensors in place."""
        with torch.no_grad():
            with as_horovod():
                agree(options.process_set.communicator, options.label, options.facts)
            if not tensors:
                return []
            if options.lossy is not None:
                how = options.lossy, options.op, 1.0, 1.0, options.process_set
                return grouped_allreduce(tensors, None, options.name, *how)
            handle = grouped_allreduce_async_(
                tensors, None, options.name, options.op, options.prescale, options.postscale, options.process_set
            )
            combined: list[Any] = handle.synchronize()
            return combined

    def dense(self, gradient: Any) -> Any:
        """Return the gradient as a dense tensor."""
        return gradient.to_dense() if gradient.is_sparse else gradient
