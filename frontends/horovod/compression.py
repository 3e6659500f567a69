"""Horovod's compression of gradients: floats are cast to a smaller type before the reduction and back after it.

Each frontend gives the two functions that depend on its tensor type; see Cast.
"""

from __future__ import annotations

from typing import Any


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


class Cast(Compressor):
    """Sends floats that are larger than `dtype` as `dtype`. A frontend's subclass implements `shrinks` and `cast`."""

    dtype: Any = None

    @classmethod
    def shrinks(cls, tensor: Any) -> bool:
        """True if the tensor's elements are floats larger than `dtype`."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Return the tensor converted to `dtype`."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (cls.cast(tensor, cls.dtype), tensor.dtype) if cls.shrinks(tensor) else (tensor, None)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)
