"""Horovod's compression of gradients, on any backend: cast to half the size before they are sent, back afterwards."""

from __future__ import annotations

from typing import Any

import keras


class Compressor:
    """What `compression=` takes: any object with these two functions. They may run inside a compiled step."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to be sent, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before, of what came."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves everything as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _Cast(Compressor):
    dtype: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype not in ("float32", "float64"):
            return tensor, None
        return keras.ops.cast(tensor, cls.dtype), dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else keras.ops.cast(tensor, ctx)


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
