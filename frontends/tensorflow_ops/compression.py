"""Compression of TensorFlow tensors by a cast."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from frontends.horovod import AnyCompression, Cast, Compressor, ErrorFeedback, LossyCompressions, NoneCompressor

__all__ = ["AnyCompression", "Compression", "Compressor", "ErrorFeedback"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: tf.Tensor) -> bool:
        return bool(tensor.dtype.is_floating and tensor.dtype.size > cls.dtype.size)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Sends floats as float16. Values beyond 65504 become infinite."""

    dtype = tf.float16


class BF16Compressor(_Cast):
    """Sends floats as bfloat16: the range of float32 with 8 bits of precision. Horovod does not have it."""

    dtype = tf.bfloat16


class Compression(LossyCompressions):
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
