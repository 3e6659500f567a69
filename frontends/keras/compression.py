"""Compression of Keras's tensors, on any backend, by casting them."""

from __future__ import annotations

from typing import Any

import keras

from frontends.horovod.compression import Cast, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: Any) -> bool:
        return keras.backend.standardize_dtype(tensor.dtype) in ("float32", "float64")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class FP16Compressor(_Cast):
    """Floats travel as float16: numbers beyond 65504 become infinite."""

    dtype = "float16"


class BF16Compressor(_Cast):
    """Floats travel as bfloat16: the range of float32, 8 bits of precision. Not in Horovod."""

    dtype = "bfloat16"


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
