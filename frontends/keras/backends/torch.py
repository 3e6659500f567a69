"""Keras on PyTorch: steps run eagerly."""

from __future__ import annotations

from typing import Any

import torch

from frontends.horovod import agree, as_horovod
from frontends.keras.backends.interface import Backend, ReductionOptions
from frontends.torch import LIBRARY, grouped_allreduce_, init


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
                agree(options.how.process_set.communicator, options.label, options.facts)
            if not tensors:
                return []
            if options.lossy is not None:
                how, lossy = options.how, options.lossy
                return list(LIBRARY.compressed(tensors, tensors, how, options.memory, lossy).synchronize())
            return grouped_allreduce_(tensors, **options.how._asdict())

    def dense(self, gradient: Any) -> Any:
        """Return the gradient as a dense tensor."""
        return gradient.to_dense() if gradient.is_sparse else gradient
