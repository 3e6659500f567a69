"""Horovod's compression of gradients: cast to half the size before they are sent, back when they have come.

A frontend says how its tensors are cast; the rest is here.
"""

from __future__ import annotations

from typing import Any


class Compressor:
    """What `compression=` takes: any object with these two functions. They may run inside a compiled step."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to be sent, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before, of what came."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves everything as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class Cast(Compressor):
    """Floats that are larger than `dtype` travel as that. A frontend gives `shrinks` and `cast`."""

    dtype: Any

    @classmethod
    def shrinks(cls, tensor: Any) -> bool:
        """True for a tensor of floats that are larger than `dtype`."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (cls.cast(tensor, cls.dtype), tensor.dtype) if cls.shrinks(tensor) else (tensor, None)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)
