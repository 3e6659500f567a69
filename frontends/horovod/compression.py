"""Horovod's compression of gradients: floats are cast to a smaller type before the reduction and back after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Compressor", "casts"]


class Compressor:
    """Interface of the argument `compression`: any object with these two functions. They may run inside a compiled
    step."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and a context for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Restore the original type of a reduced tensor. `ctx` is the context that `compress` returned."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def casts(
    module: str, is_wide: Callable[[Any], bool], cast: Callable[[Any, Any], Any], half: Any, brain: Any
) -> tuple[type[Compressor], type[Compressor]]:
    """Return `fp16` and `bf16` for `Compression` of a frontend's module: floats travel as float16 or bfloat16.

    is_wide      tells whether a tensor's elements are floats of more than 16 bits; others are sent unchanged
    cast         converts a tensor to a dtype
    half, brain  the framework's dtypes
    """

    def to(name: str, dtype: Any) -> type[Compressor]:
        class Cast(Compressor):
            @staticmethod
            def compress(tensor: Any) -> tuple[Any, Any]:
                return (cast(tensor, dtype), tensor.dtype) if is_wide(tensor) else (tensor, None)

            @staticmethod
            def decompress(tensor: Any, ctx: Any) -> Any:
                return tensor if ctx is None else cast(tensor, ctx)

        Cast.__module__, Cast.__qualname__ = module, f"Compression.{name}"  # by which pickle finds it
        return Cast

    return to("fp16", half), to("bf16", brain)
