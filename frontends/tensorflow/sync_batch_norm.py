"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import keras
import tensorflow as tf

from collectives import ProcessSet, global_process_set
from frontends.horovod import Sum, check_process_set
from frontends.tensorflow_ops import allreduce

if keras.backend.backend() != "tensorflow":
    raise ImportError(f"SyncBatchNormalization: needs Keras on tensorflow, and it runs on {keras.backend.backend()}")

_Base: Final[Any] = tf.keras.layers.BatchNormalization
_TF_KERAS: Final = not issubclass(_Base, keras.layers.Layer)
"""True with TF_USE_LEGACY_KERAS: the layer is of tf-keras 2."""


class SyncBatchNormalization(_Base):  # type: ignore[misc]
    """tf.keras.layers.BatchNormalization, with its arguments, with mean and variance over the batches of all ranks
    (Ioffe and Szegedy, 2015).

    process_set   the ranks whose batches count; all by default

    Batches may differ in size; masked values do not count. Sums are float64. Collective in training; otherwise it is
    ordinary batch normalisation.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if _TF_KERAS:
            kwargs["synchronized"] = True  # otherwise tf-keras does not call _calculate_mean_and_var
        check_process_set(process_set)
        super().__init__(*args, **kwargs)
        self.supports_jit = False
        self._process_set = process_set

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _calculate_mean_and_var(
        self, inputs: Any, reduction_axes: Sequence[int], keep_dims: bool, mask: Any = None
    ) -> tuple[Any, Any]:
        """Called by tf-keras: return mean and biased variance of each channel."""
        mean, variance = _combined(inputs, reduction_axes, mask, self._process_set)
        if not keep_dims:
            return mean, variance
        shape = [1 if axis in reduction_axes else inputs.shape[axis] for axis in range(inputs.shape.rank)]
        return tf.reshape(mean, shape), tf.reshape(variance, shape)


def _moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Called by Keras 3: return mean and biased variance of each channel, of shape (C,)."""
    axes = [axis for axis in range(inputs.shape.rank) if axis != self.axis % inputs.shape.rank]
    return _combined(inputs, axes, mask, self._process_set)


if not _TF_KERAS:  # tf-keras has a method of this name with other arguments
    SyncBatchNormalization._moments = tf.autograph.experimental.do_not_convert(_moments)


def _combined(inputs: Any, axes: Sequence[int], mask: Any, process_set: ProcessSet) -> tuple[Any, Any]:
    """Return mean and biased variance over these axes and all ranks."""
    wide = tf.cast(inputs, tf.float64)
    weights = tf.ones_like(wide)
    if mask is not None:
        weights *= tf.cast(mask, tf.float64)[..., None]
        wide = tf.where(weights > 0, wide, 0.0)
    own = tf.stack([tf.reduce_sum(part, axes) for part in (wide, wide * wide, weights)])
    total = allreduce(own, op=Sum, process_set=process_set)
    mean = tf.math.divide_no_nan(total[0], total[2])
    if inputs.dtype == tf.float64:  # whose squares would lose digits where the mean is large against the deviation
        shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
        own = tf.reduce_sum(weights * (wide - tf.reshape(mean, shape)) ** 2, axes)
        variance = tf.math.divide_no_nan(allreduce(own, op=Sum, process_set=process_set), total[2])
    else:
        variance = tf.maximum(tf.math.divide_no_nan(total[1], total[2]) - mean * mean, 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
