"""Horovod's compression of gradients: cast to half the size before they are sent, back when they have come."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Compressor:
    """What `compression=` takes: any class with these two functions, which are traced like the rest."""

    @staticmethod
    def compress(array: jax.Array) -> tuple[jax.Array, Any]:
        """The array to be sent, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(array: jax.Array, ctx: Any) -> jax.Array:
        """The array as it was before, of what came."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves everything as it is."""

    @staticmethod
    def compress(array: jax.Array) -> tuple[jax.Array, Any]:
        return array, None

    @staticmethod
    def decompress(array: jax.Array, ctx: Any) -> jax.Array:
        return array


class _Cast(Compressor):
    dtype: Any

    @classmethod
    def compress(cls, array: jax.Array) -> tuple[jax.Array, Any]:
        if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize <= 2:
            return array, None
        return array.astype(cls.dtype), array.dtype

    @staticmethod
    def decompress(array: jax.Array, ctx: Any) -> jax.Array:
        return array if ctx is None else array.astype(ctx)


class FP16Compressor(_Cast):
    """Floats travel as float16: numbers beyond 65504 become infinite."""

    dtype = jnp.float16


class BF16Compressor(_Cast):
    """Floats travel as bfloat16: the range of float32, 8 bits of precision. Not in Horovod."""

    dtype = jnp.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
