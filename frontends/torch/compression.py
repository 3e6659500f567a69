"""Compression of torch tensors by a cast."""

from __future__ import annotations

from typing import Any

import torch

from frontends.horovod import AnyCompression, Cast, Compressor, ErrorFeedback, LossyCompressions, NoneCompressor

__all__ = ["AnyCompression", "Compression", "Compressor", "ErrorFeedback"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: torch.Tensor) -> bool:
        return bool(tensor.dtype.is_floating_point and tensor.element_size() > cls.dtype.itemsize)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Sends floats as float16. Values beyond 65504 become infinite."""

    dtype = torch.float16


class BF16Compressor(_Cast):
    """Sends floats as bfloat16: the range of float32 with 8 bits of precision. Horovod does not have it."""

    dtype = torch.bfloat16


class Compression(LossyCompressions):
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
