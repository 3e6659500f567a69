"""Keras on PyTorch: steps run eagerly, and frontends.torch does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from frontends.keras.backends import Way
from frontends.torch import ops
from frontends.torch.basics import init

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "settle", "take_turn"]

SPARSE: tuple[type, ...] = ()
FAILURES: tuple[type[Exception], ...] = ()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def combine(tensors: list[Any], way: Way) -> list[Any]:
    """allreduce of all tensors, in place."""
    with torch.no_grad():
        handle = ops.grouped_allreduce_async_(
            tensors, None, way.name, way.op, way.prescale, way.postscale, way.process_set
        )
        combined: list[Any] = handle.synchronize()
        return combined


def dense(gradient: Any) -> Any:
    """The gradient, dense."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def prepare(model: keras.Model) -> None:
    """Nothing: `combine` stays out of torch.compile."""


def forget() -> None:
    """Nothing: steps run eagerly."""


def settle(model: keras.Model) -> None:
    """Nothing: steps assign to the variables."""


def take_turn(
    now: Any,
    totals: list[Any],
    combine: Callable[[list[Any]], list[Any]],
    step: Callable[[list[Any]], None],
    variables: Sequence[Any],
) -> None:
    """step(combine(totals)) if `now`."""
    if now:
        step(combine(totals))
