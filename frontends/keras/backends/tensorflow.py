"""Keras on TensorFlow: train steps are tf.functions, into which frontends.tensorflow puts its operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from frontends.keras.backends import Way
from frontends.tensorflow.basics import init
from frontends.tensorflow.ops import grouped_allreduce

__all__ = ["FAILURES", "SPARSE", "combine", "dense", "forget", "init", "prepare", "settle", "take_turn"]

SPARSE: tuple[type, ...] = (tf.IndexedSlices,)
FAILURES: tuple[type[Exception], ...] = (tf.errors.OpError,)


def combine(tensors: list[Any], way: Way) -> list[Any]:
    """allreduce of all tensors. Raises RuntimeError where XLA compiles the step."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "DistributedOptimizer: XLA cannot compile calls to other ranks into a TensorFlow step; pass "
            "jit_compile=False to model.compile, or give fit callbacks.BroadcastGlobalVariablesCallback, which sets it"
        )
    return grouped_allreduce(
        tensors,
        op=way.op,
        prescale_factor=way.prescale,
        postscale_factor=way.postscale,
        process_set=way.process_set,
        name=way.name,
    )


def dense(gradient: Any) -> Any:
    """The gradient, dense."""
    return tf.convert_to_tensor(gradient)


def prepare(model: keras.Model) -> None:
    """Without XLA, which Keras turns on by itself where there is a GPU."""
    if model.jit_compile:
        model.jit_compile = False
        model.train_function = None


def forget() -> None:
    """Nothing: graphs outlive the world that they were made in."""


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
    keras.ops.cond(now, lambda: step(combine(totals)), lambda: None)
