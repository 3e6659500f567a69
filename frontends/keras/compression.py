"""Compression of Keras tensors by a cast, on any backend."""

from __future__ import annotations

from typing import Any

import keras

from frontends.horovod import AnyCompression, Cast, Compressor, ErrorFeedback, LossyCompressions, NoneCompressor

__all__ = ["AnyCompression", "Compression", "Compressor", "ErrorFeedback"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: Any) -> bool:
        return keras.backend.standardize_dtype(tensor.dtype) in ("float32", "float64")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class FP16Compressor(_Cast):
    """Sends floats as float16. Values beyond 65504 become infinite."""

    dtype = "float16"


class BF16Compressor(_Cast):
    """Sends floats as bfloat16: the range of float32 with 8 bits of precision. Horovod does not have it."""

    dtype = "bfloat16"


class Compression(LossyCompressions):
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
