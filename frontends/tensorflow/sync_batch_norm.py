"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from collectives import ProcessSet, global_process_set
from frontends.horovod import Sum
from frontends.tensorflow.ops import allreduce

if keras.backend.backend() != "tensorflow":
    raise ImportError(f"SyncBatchNormalization: needs Keras on tensorflow, and it runs on {keras.backend.backend()}")


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """keras.layers.BatchNormalization, with its arguments, with mean and variance over the batches of all ranks (Ioffe
    and Szegedy, 2015).

    process_set   the ranks whose batches count; all by default

    Batches may differ in size; masked values do not count. Sums are float64. Collective in training; otherwise it is
    ordinary batch normalisation.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = False
        self._process_set = process_set

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Return mean and biased variance of each channel, of shape (C,)."""
        wide = tf.cast(inputs, tf.float64)
        axes = [axis for axis in range(wide.shape.rank) if axis != self.axis % wide.shape.rank]
        weights = tf.ones_like(wide)
        if mask is not None:
            weights *= tf.cast(mask, tf.float64)[..., None]
            wide = tf.where(weights > 0, wide, 0.0)
        own = tf.stack([tf.reduce_sum(part, axes) for part in (wide, wide * wide, weights)])
        total = allreduce(own, op=Sum, process_set=self._process_set)
        mean = tf.math.divide_no_nan(total[0], total[2])
        variance = tf.maximum(tf.math.divide_no_nan(total[1], total[2]) - mean * mean, 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
