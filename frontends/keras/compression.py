"""Compression of Keras tensors by a cast, on any backend."""

from __future__ import annotations

from typing import Any

import keras

from frontends.horovod import AnyCompression, Compressions, casts

__all__ = ["AnyCompression", "Compression"]


def _is_wide(tensor: Any) -> bool:
    return keras.backend.standardize_dtype(tensor.dtype) in ("float32", "float64")


def _cast(tensor: Any, dtype: Any) -> Any:
    return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class Compression(Compressions):
    """Values for the argument `compression`."""

    fp16, bf16 = casts(__name__, _is_wide, _cast, "float16", "bfloat16")
