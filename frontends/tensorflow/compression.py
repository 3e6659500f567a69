"""Compression of TensorFlow's tensors by casting them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from frontends.horovod.compression import Cast, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: tf.Tensor) -> bool:
        return bool(tensor.dtype.is_floating and tensor.dtype.size > cls.dtype.size)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Floats travel as float16: numbers beyond 65504 become infinite."""

    dtype = tf.float16


class BF16Compressor(_Cast):
    """Floats travel as bfloat16: the range of float32, 8 bits of precision. Not in Horovod."""

    dtype = tf.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
