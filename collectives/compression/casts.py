"""Casts to half precision: half the bytes of float32, a quarter of float64's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.arrays import FLOAT16, Array, is_small_float, named_dtype
from collectives.compression.codec import Codec


@dataclass(frozen=True, slots=True)
class Cast(Codec):
    """Numbers travel in a smaller float; sums are made in their own precision and rounded once. No state is needed.

    NaN and infinity arrive as such.
    """

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers on their way."""

    @property
    def feedback(self) -> bool:
        return False

    def suits(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "f" and not is_small_float(dtype)

    def nbytes(self, count: int, itemsize: int) -> int:
        return count * self.dtype.itemsize

    def encode(self, numbers: Array, data: Array, rng: np.random.Generator) -> None:
        np.copyto(data.view(self.dtype), numbers, casting="unsafe")

    def decode(self, data: Array, numbers: Array) -> None:
        np.copyto(numbers, data.view(self.dtype))

    def compress(self, array: Array) -> tuple[Array, np.dtype[Any]]:
        """The array cast down, and what `decompress` needs; as Horovod's `Compression.fp16.compress`. Arrays that are
        no wider floats are returned as they are."""
        return (array.astype(self.dtype) if self.suits(array.dtype) else array), array.dtype

    def decompress(self, array: Array, ctx: np.dtype[Any]) -> Array:
        """The array cast back."""
        return array.astype(ctx, copy=False)


@dataclass(frozen=True, slots=True)
class FP16(Cast):
    """IEEE 754 half precision: 11 significant bits. Beyond 65504 lies infinity; below 6e-5 precision is lost."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return FLOAT16


@dataclass(frozen=True, slots=True)
class BF16(Cast):
    """bfloat16: 8 significant bits, the range of float32. Raises ModuleNotFoundError without ml_dtypes."""

    def __post_init__(self) -> None:
        named_dtype("bfloat16")

    @property
    def dtype(self) -> np.dtype[Any]:
        return named_dtype("bfloat16")
