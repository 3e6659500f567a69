"""Compression of torch's tensors by casting them."""

from __future__ import annotations

from typing import Any

import torch

from frontends.horovod.compression import Cast, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: torch.Tensor) -> bool:
        return bool(tensor.dtype.is_floating_point and tensor.element_size() > cls.dtype.itemsize)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Floats travel as float16: numbers beyond 65504 become infinite."""

    dtype = torch.float16


class BF16Compressor(_Cast):
    """Floats travel as bfloat16: the range of float32, 8 bits of precision. Not in Horovod."""

    dtype = torch.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
