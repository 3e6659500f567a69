"""Keras on TensorFlow: train steps are tf.functions that contain operations of frontends.tensorflow_ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from frontends.horovod import init
from frontends.keras.backends.interface import ReductionOptions
from frontends.tensorflow_ops import Compression, agreement, grouped_allreduce

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "step_if", "sync_variables"]

SPARSE: tuple[type, ...] = (tf.IndexedSlices,)
FAILURES: tuple[type[Exception], ...] = (tf.errors.OpError,)


def combine(tensors: list[Any], options: ReductionOptions) -> list[Any]:
    """Allreduce all tensors. Raises RuntimeError in a step that XLA compiles."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "DistributedOptimizer: XLA cannot compile calls to other ranks into a TensorFlow step; pass "
            "jit_compile=False to model.compile, or give fit callbacks.BroadcastGlobalVariablesCallback, which sets it"
        )
    with agreement(options.label, options.facts, options.process_set):
        return grouped_allreduce(
            tensors,
            compression=options.lossy or Compression.none,
            op=options.op,
            prescale_factor=options.prescale,
            postscale_factor=options.postscale,
            process_set=options.process_set,
            name=options.name,
        )


def dense(gradient: Any) -> Any:
    """Return the gradient as a dense tensor."""
    return tf.convert_to_tensor(gradient)


def prepare(model: keras.Model) -> None:
    """Switch XLA off, which Keras switches on by itself if there is a GPU."""
    if model.jit_compile:
        model.jit_compile = False
        model.train_function = None


def forget() -> None:
    """Nothing: graphs refer to the current world when they run."""


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
    keras.ops.cond(due, lambda: step(combine(totals)), lambda: None)
