"""Compression of MXNet's arrays by a cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.arrays import named_dtype
from frontends.horovod import AnyCompression, Compressions, casts
from frontends.mxnet.tensors import as_array, dtype_of, empty

__all__ = ["AnyCompression", "Compression"]


def _is_wide(tensor: Any) -> bool:
    dtype = dtype_of(tensor)
    return dtype.kind == "f" and dtype.itemsize > 2


def _cast(tensor: Any, dtype: Any) -> Any:
    wanted = named_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if "bfloat16" not in (dtype_of(tensor).name, wanted.name):
        return tensor.astype(dtype, copy=False)
    made = empty(tensor.shape, wanted, tensor)  # MXNet itself casts bfloat16 on some processors only
    np.copyto(as_array(made, write=True), as_array(tensor), casting="unsafe")
    return made


class Compression(Compressions):
    """Values for the argument `compression`."""

    fp16, bf16 = casts(__name__, _is_wide, _cast, "float16", "bfloat16")
