"""Keras on PyTorch: steps run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from frontends.horovod import agree, as_horovod
from frontends.keras.backends.interface import ReductionOptions
from frontends.torch import grouped_allreduce, grouped_allreduce_async_, init

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "step_if", "sync_variables"]

SPARSE: tuple[type, ...] = ()
FAILURES: tuple[type[Exception], ...] = ()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def combine(tensors: list[Any], options: ReductionOptions) -> list[Any]:
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


def dense(gradient: Any) -> Any:
    """Return the gradient as a dense tensor."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def prepare(model: keras.Model) -> None:
    """Nothing: `combine` stays out of torch.compile."""


def forget() -> None:
    """Nothing: steps run eagerly."""


def sync_variables(model: keras.Model) -> None:
    """Nothing: steps assign to the variables."""


def step_if(
    due: Any,
    totals: list[Any],
    combine: Callable[[list[Any]], list[Any]],
    step: Callable[[list[Any]], None],
    variables: Sequence[Any],
) -> None:
    """Run step(combine(totals)) if `due` is true."""
    if due:
        step(combine(totals))
