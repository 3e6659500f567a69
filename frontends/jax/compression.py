"""Compression of JAX arrays by a cast."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from frontends.horovod import AnyCompression, Compressions, casts

__all__ = ["AnyCompression", "Compression"]


def _is_wide(tensor: jax.Array) -> bool:
    return bool(jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > 2)


class Compression(Compressions):
    """Values for the argument `compression`."""

    fp16, bf16 = casts(__name__, _is_wide, jnp.astype, jnp.float16, jnp.bfloat16)
