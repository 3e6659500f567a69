"""Keras on JAX: train steps are stateless functions, compiled by XLA, from which frontends.jax calls out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from frontends.horovod.basics import init
from frontends.jax.ops import grouped_allreduce
from frontends.keras.backends import Way

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "settle", "take_turn"]

SPARSE: tuple[type, ...] = ()
FAILURES: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)


def combine(tensors: list[Any], way: Way) -> list[Any]:
    """allreduce of all tensors: one call out of the compiled step."""
    return grouped_allreduce(tensors, way.op, way.name, way.prescale, way.postscale, way.process_set)


def dense(gradient: Any) -> Any:
    """The gradient: JAX's are dense."""
    return gradient


def prepare(model: keras.Model) -> None:
    """Nothing: `combine` works in compiled steps."""


def forget() -> None:
    """What XLA has compiled is for this rank of so many."""
    jax.clear_caches()


def settle(model: keras.Model) -> None:
    """Keras keeps their values outside of them between steps."""
    model.jax_state_sync()


def take_turn(
    now: Any,
    totals: list[Any],
    combine: Callable[[list[Any]], list[Any]],
    step: Callable[[list[Any]], None],
    variables: Sequence[Any],
) -> None:
    """step(combine(totals)) if `now`. In a stateless scope a branch cannot assign to variables: `step` is taken in any
    case, and undone unless it was its turn."""
    combined = jax.lax.cond(now, combine, lambda same: same, totals)
    before = [variable.value for variable in variables]
    step(combined)
    for variable, value in zip(variables, before, strict=True):
        variable.assign(jnp.where(now, variable.value, value))
