"""Compression of JAX arrays by a cast."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from frontends.horovod import AnyCompression, Cast, Compressor, ErrorFeedback, LossyCompressions, NoneCompressor

__all__ = ["AnyCompression", "Compression", "Compressor", "ErrorFeedback"]


class _Cast(Cast):
    @classmethod
    def shrinks(cls, tensor: jax.Array) -> bool:
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > 2)

    @staticmethod
    def cast(tensor: jax.Array, dtype: Any) -> jax.Array:
        return tensor.astype(dtype)


class FP16Compressor(_Cast):
    """Sends floats as float16. Values beyond 65504 become infinite."""

    dtype = jnp.float16


class BF16Compressor(_Cast):
    """Sends floats as bfloat16: the range of float32 with 8 bits of precision. Horovod does not have it."""

    dtype = jnp.bfloat16


class Compression(LossyCompressions):
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
