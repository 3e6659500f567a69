"""Keras on TensorFlow: train steps are tf.functions that contain operations of frontends.tensorflow_ops."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from collectives import ProcessSet
from frontends.keras.backends.interface import Backend, ReductionOptions
from frontends.tensorflow_ops import Compression, agreement, members, reduce_together, reserve, stays_alone


class TensorFlowBackend(Backend):
    """Keras on TensorFlow. Graphs refer to the current world when they run, and steps assign to the variables."""

    SPARSE = (tf.IndexedSlices,)
    FAILURES = (tf.errors.OpError,)

    def combine(self, tensors: list[Any], options: ReductionOptions) -> list[Any]:
        """Allreduce all tensors. Raises RuntimeError in a step that XLA compiles."""
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise RuntimeError(
                "DistributedOptimizer: XLA cannot compile calls to other ranks into a TensorFlow step; pass "
                "jit_compile=False to model.compile, or give fit callbacks.BroadcastGlobalVariablesCallback, which "
                "sets it"
            )
        compression, how = options.lossy or Compression.none, options.how
        with agreement(options.label, options.facts, how.process_set, options.reserved):
            return reduce_together(tensors, how, compression, options.memory)

    def reserve(self, label: str) -> str:
        """Return the label in the scope of the step."""
        return reserve(label)

    def dense(self, gradient: Any) -> Any:
        """Return the gradient as a dense tensor."""
        return tf.convert_to_tensor(gradient)

    def alone(self, process_set: ProcessSet) -> bool:
        """True if this rank has no other rank to combine with: now, and in a graph, whenever it runs."""
        return stays_alone(process_set)

    def divided(self, gradient: Any, process_set: ProcessSet) -> Any:
        """Return the gradient as a dense tensor, divided by the number of ranks of the world in which the step runs."""
        dense = tf.convert_to_tensor(gradient)
        return dense / tf.cast(members(process_set), dense.dtype)

    def prepare(self, model: keras.Model) -> None:
        """Switch XLA off, which Keras switches on by itself if there is a GPU."""
        if model.jit_compile:
            model.jit_compile = False
            model.train_function = None

    def step_if(self, due: Any, totals: list[Any], combine: Any, step: Any, variables: Any) -> bool:
        """Run step(combine(totals)) if `due` is true."""
        keras.ops.cond(due, lambda: step(combine(totals)), lambda: None)
        return tf.executing_eagerly() and bool(due)
