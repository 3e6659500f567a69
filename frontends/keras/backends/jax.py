"""Keras on JAX: train steps are stateless functions compiled by XLA, which call frontends.jax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras

from frontends.jax import Compression, allreduce_gradients, begin_anew
from frontends.keras.backends.interface import Backend, ReductionOptions


class JaxBackend(Backend):
    """Keras on JAX, which has no sparse gradients."""

    FAILURES = (jax.errors.JaxRuntimeError,)

    def combine(self, tensors: list[Any], options: ReductionOptions) -> list[Any]:
        """Allreduce all tensors by one call out of the compiled step."""
        compression = options.lossy or Compression.none
        return allreduce_gradients(tensors, options.facts, options.memory, options.label, *options.how, compression)

    def forget(self) -> None:
        begin_anew()

    def sync_variables(self, model: keras.Model) -> None:
        """Copy the values into the variables; between steps, Keras keeps them elsewhere."""
        model.jax_state_sync()

    def step_if(self, due: Any, totals: list[Any], combine: Any, step: Any, variables: Any) -> bool:
        """Run step(combine(totals)) if `due` is true.

        In a stateless scope, a branch cannot assign to variables. So `step` always runs, and its assignments are
        reverted unless the step is due.
        """
        combined = jax.lax.cond(due, combine, lambda same: same, totals)
        before = [variable.value for variable in variables]
        step(combined)
        for variable, value in zip(variables, before, strict=True):
            variable.assign(jnp.where(due, variable.value, value))
        return not isinstance(due, jax.core.Tracer) and bool(due)
