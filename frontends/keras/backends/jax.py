"""Keras on JAX: train steps are stateless functions compiled by XLA, which call frontends.jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from frontends.horovod import init
from frontends.jax import Compression, allreduce_gradients
from frontends.keras.backends.interface import ReductionOptions

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "step_if", "sync_variables"]

SPARSE: tuple[type, ...] = ()
FAILURES: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)


def combine(tensors: list[Any], options: ReductionOptions) -> list[Any]:
    """Allreduce all tensors by one call out of the compiled step."""
    scales = options.prescale, options.postscale
    how = options.lossy or Compression.none
    known = options.facts, options.label
    return allreduce_gradients(tensors, *known, options.op, options.name, *scales, options.process_set, how)


def dense(gradient: Any) -> Any:
    """Return the gradient unchanged: JAX has no sparse gradients."""
    return gradient


def prepare(model: keras.Model) -> None:
    """Nothing: `combine` works in compiled steps."""


def forget() -> None:
    """Clear JAX's caches: rank and size are constants of compiled programs."""
    jax.clear_caches()


def sync_variables(model: keras.Model) -> None:
    """Copy the values into the variables; between steps, Keras keeps them elsewhere."""
    model.jax_state_sync()


def step_if(
    due: Any,
    totals: list[Any],
    combine: Callable[[list[Any]], list[Any]],
    step: Callable[[list[Any]], None],
    variables: Sequence[Any],
) -> None:
    """Run step(combine(totals)) if `due` is true.

    In a stateless scope, a branch cannot assign to variables. So `step` always runs, and its assignments are reverted
    unless the step is due.
    """
    combined = jax.lax.cond(due, combine, lambda same: same, totals)
    before = [variable.value for variable in variables]
    step(combined)
    for variable, value in zip(variables, before, strict=True):
        variable.assign(jnp.where(due, variable.value, value))
