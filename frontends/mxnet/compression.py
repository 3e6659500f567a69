"""Compression of MXNet's arrays by a cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.horovod import AnyCompression, Cast, Compressor, ErrorFeedback, LossyCompressions, NoneCompressor
from frontends.mxnet.tensors import BFLOAT16, as_array, dtype_of, empty

__all__ = ["AnyCompression", "Compression", "Compressor", "ErrorFeedback"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: Any) -> bool:
        dtype = dtype_of(tensor)
        return dtype.kind == "f" and dtype.itemsize > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        if BFLOAT16 not in (dtype_of(tensor), dtype):
            return tensor.astype(dtype, copy=False)
        made = empty(tensor.shape, np.dtype(dtype), tensor)  # MXNet itself casts bfloat16 on some processors only
        np.copyto(as_array(made, write=True), as_array(tensor), casting="unsafe")
        return made


class FP16Compressor(_Cast):
    """Sends floats as float16. Values beyond 65504 become infinite."""

    dtype = np.dtype(np.float16)


class BF16Compressor(_Cast):
    """Sends floats as bfloat16: the range of float32 with 8 bits of precision. Horovod does not have it."""

    dtype = BFLOAT16


class Compression(LossyCompressions):
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
