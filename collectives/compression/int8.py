"""Quantisation to 8 bits, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collectives.arrays import Array
from collectives.compression.codec import PIECE, Codec
from collectives.numeric import is_integer


@dataclass(frozen=True, slots=True)
class Int8(Codec):
    """A number is -127 to 127 times a scale, one for each block of numbers: the block's largest absolute value / 127.
    1 + 4 / block bytes for a float32: 3.94 times fewer by default.

    block     numbers with one scale
    rounding  'nearest', or 'stochastic': up or down at random, so that the expected value is the number itself
    feedback  add the rounding errors to the next call's numbers, if there is a state
    seed      of the random numbers, which also depend on tensor name, step and rank (without a state: on the rank)

    A block that holds NaN or infinity arrives as NaN. Scales below the smallest normal number are taken as 0.

    Sources: Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS
    (buckets, stochastic rounding); Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", ICLR (blocks);
    Seide et al. 2014, "1-bit stochastic gradient descent", Interspeech (error feedback).
    """

    block: int = 256
    rounding: str = "nearest"
    feedback: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_integer(self.block) or not 1 <= self.block <= PIECE:
            raise ValueError(f"block={self.block!r}: must be an int, 1 to {PIECE}")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding={self.rounding!r}: must be 'nearest' or 'stochastic'")
        if not is_integer(self.seed) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r}: must be an int, 0 or more")

    def nbytes(self, count: int, itemsize: int) -> int:
        return -(-count // self.block) * itemsize + count

    def encode(self, numbers: Array, data: Array, rng: np.random.Generator) -> None:
        for part, scales, quanta in self._blocks(numbers, data):
            top = np.maximum(part.max(1), -part.min(1))
            top /= 127
            top[top < np.finfo(top.dtype).tiny] = 0
            top[np.isinf(top)] = np.nan
            scales[:] = top
            top[top == 0] = 1
            scaled = part / top[:, None]
            if self.rounding == "nearest":
                np.rint(scaled, scaled)
            else:
                scaled += rng.random(scaled.shape, scaled.dtype)
                np.floor(scaled, scaled)
                np.clip(scaled, -127, 127, scaled)
            np.copyto(quanta, scaled, casting="unsafe")

    def decode(self, data: Array, numbers: Array) -> None:
        for part, scales, quanta in self._blocks(numbers, data):
            np.multiply(quanta, scales[:, None], part)

    def _blocks(self, numbers: Array, data: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Numbers (blocks, block), scales (blocks,) and quanta (blocks, block); a short last block by itself."""
        scales = data[: data.size - numbers.size].view(numbers.dtype)
        quanta = data[data.size - numbers.size :].view(np.int8)
        count = numbers.size // self.block
        whole = count * self.block
        if count:
            shape = (count, self.block)
            yield numbers[:whole].reshape(shape), scales[:count], quanta[:whole].reshape(shape)
        if whole < numbers.size:
            yield numbers[None, whole:], scales[count:], quanta[None, whole:]

    def _seeds(self) -> tuple[int, ...]:
        return (self.seed,)
