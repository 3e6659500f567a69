"""Compression of TensorFlow tensors by a cast."""

from __future__ import annotations

import tensorflow as tf

from frontends.horovod import AnyCompression, Compressions, casts

__all__ = ["AnyCompression", "Compression"]


def _is_wide(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size > 2)


class Compression(Compressions):
    """Values for the argument `compression`."""

    fp16, bf16 = casts(__name__, _is_wide, tf.cast, tf.float16, tf.bfloat16)
