"""Sparsification: only the largest numbers travel."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.arrays import Array, rest, share
from collectives.compression.base import SMALL_BYTES, Compressor, Memory, add_up
from collectives.execution import Peers
from collectives.numeric import NUMBERS


@dataclass(frozen=True, slots=True)
class TopK(Compressor):
    """Every rank sends the numbers of a tensor with the largest absolute values, with their places (allgather), and
    all add them up. Ranks choose differently, so the sum has up to p times as many.

    ratio     the share of a tensor's numbers that a rank sends, 0 < ratio <= 1; at least one
    feedback  keep the unsent values and add them to the next call's numbers, if there is a state. Without it the rest
              is lost for good, and training does not get where it should.

    Bytes: ratio N (itemsize + 4) / itemsize to each of the others, for N bytes of numbers (places in tensors of more
    than 2**32 numbers take 8 bytes, not 4). For float32 that is p ratio times the bytes of an allreduce, so it pays
    while p ratio < 1; otherwise the tensor travels as it is. NaN and infinity count as largest and arrive as such.

    Sources: Stich et al. 2018, "Sparsified SGD with Memory", NeurIPS; Lin et al. 2018, "Deep Gradient Compression",
    ICLR, whose momentum correction, clipping and warm-up are the optimizer's business.
    """

    ratio: float = 0.01
    feedback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, NUMBERS) or not 0 < self.ratio <= 1:
            raise ValueError(f"ratio={self.ratio!r}: must be a number, more than 0 and at most 1")

    def count(self, size: int) -> int:
        """Number of values that are sent, out of `size`."""
        return min(size, max(1, math.ceil(self.ratio * size)))

    def combine(
        self, peers: Peers, xs: list[Array], outs: list[Array], memories: list[Memory] | None, divisor: int
    ) -> list[Memory] | None:
        sparse = [index for index, x in enumerate(xs) if self._pays(x, peers.size)]
        dense = [index for index in range(len(xs)) if index not in set(sparse)]
        changed = None if memories is None else list(memories)
        payload, layout = [], []
        for index in sparse:
            numbers = xs[index].reshape(-1).copy()
            if memories is not None and memories[index].residual is not None:
                numbers += memories[index].residual
            places = largest(numbers, self.count(numbers.size)).astype(_place(numbers.size))
            values = numbers[places]
            payload += [places.view(np.uint8), values.view(np.uint8)]
            layout.append((places.nbytes, places.dtype, values.nbytes))
            if changed is not None and self.feedback:
                numbers[places] = 0
                changed[index] = dataclasses.replace(changed[index], step=changed[index].step + 1, residual=numbers)
        add_up(peers, [xs[index] for index in dense], [outs[index] for index in dense], divisor)
        if not sparse:
            return changed
        table = peers.allgather(np.concatenate(payload))
        at = 0
        for index, (first, kind, second) in zip(sparse, layout, strict=True):
            out = outs[index].reshape(-1)
            out[:] = 0
            for row in table:
                places = row[at : at + first].view(kind)
                out[places] += row[at + first : at + first + second].view(out.dtype) * out.dtype.type(share(divisor))
            out /= rest(divisor)
            at += first + second
        return changed

    def _pays(self, x: Array, size: int) -> bool:
        """True if the others' choices are fewer bytes than an allreduce's 2 (p - 1) / p N."""
        sent = self.count(x.size) * (x.itemsize + _place(x.size).itemsize) * size
        return x.nbytes >= SMALL_BYTES and sent < 2 * x.nbytes


def largest(numbers: Array, count: int) -> Array:
    """The places of the `count` numbers that are largest in absolute value, ascending; of equal ones the first.

    Bits of floats without the sign are ordered as the numbers are, with infinity and NaN on top.
    """
    bits = np.abs(numbers).view(np.dtype(f"u{numbers.itemsize}"))
    threshold = np.partition(bits, bits.size - count)[bits.size - count]
    places = np.flatnonzero(bits >= threshold)
    excess = places.size - count
    if excess:
        ties = np.flatnonzero(bits[places] == threshold)
        places = np.delete(places, ties[ties.size - excess :])
    return places


def _place(size: int) -> np.dtype[Any]:
    return np.dtype(np.uint32 if size <= 1 << 32 else np.uint64)
