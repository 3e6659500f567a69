"""Compressors that turn any piece of numbers into fewer bytes by itself, and the exchange that they share."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import Array, rest, share
from collectives.compression.base import SMALL_BYTES, Compressor, Memory, add_up
from collectives.execution import Peers

PIECE: Final = 1 << 15
"""Numbers that are worked on, and encoded, at once: so many stay in the cache."""


class Codec(Compressor):
    """Every rank encodes its numbers in p parts, one for each rank (alltoall); decodes and adds up the parts that it
    receives, and encodes the sum for all (allgather). A number is rounded twice, for every p, and added in full
    precision.

    Bytes a rank sends: 2 (p - 1) / p times the encoded size, as an allreduce does. This way of adding is that of 1-bit
    Adam (Tang et al. 2021, "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed",
    ICML), and so is that both roundings are made good in the next call; the second by the rank that added.
    """

    @property
    @abstractmethod
    def feedback(self) -> bool:
        """True if it remembers rounding errors."""

    @abstractmethod
    def nbytes(self, count: int, itemsize: int) -> int:
        """The encoded size of `count` numbers."""

    @abstractmethod
    def encode(self, numbers: Array, data: Array, rng: np.random.Generator) -> None:
        """Encode flat `numbers`, at most PIECE of them, into `data` (uint8, of the size that `nbytes` says)."""

    @abstractmethod
    def decode(self, data: Array, numbers: Array) -> None:
        """The reverse, with the same result on every rank."""

    def combine(
        self, peers: Peers, xs: list[Array], outs: list[Array], memories: list[Memory] | None, divisor: int
    ) -> list[Memory] | None:
        total, dtype, size = sum(x.size for x in xs), xs[0].dtype, peers.size
        length = -(-total // size)
        pieces = list(self._cut(length, dtype.itemsize))
        encoded = pieces[-1].data.stop if pieces else 0
        if total * dtype.itemsize < SMALL_BYTES or size * encoded >= total * dtype.itemsize:
            add_up(peers, xs, outs, divisor)
            return memories
        seeds = (0, 0) if memories is None else (memories[0].seed, memories[0].step)
        rng = np.random.default_rng((*self._seeds(), *seeds, peers.rank))
        given, result = _Joined(xs), _Joined(outs)
        lost, kept = None, memories
        if memories is not None:
            kept = [dataclasses.replace(memory, step=memory.step + 1) for memory in memories]
            if self.feedback:
                lost = [np.empty(x.size, dtype) for x in xs]
                kept = [dataclasses.replace(memory, residual=new) for memory, new in zip(kept, lost, strict=True)]
                for memory, new in zip(memories, lost, strict=True):
                    np.copyto(new, 0 if memory.residual is None else memory.residual)
        residual = None if lost is None else _Joined(lost)

        numbers, other = np.empty((2, PIECE), dtype)
        outgoing, answer = np.empty((size, encoded), np.uint8), np.empty(encoded, np.uint8)
        for rank, data in enumerate(outgoing):
            for piece in pieces:
                first, work = rank * length + piece.start, numbers[: piece.size]
                given.get(first, work)
                if residual is not None:
                    residual.get(first, other[: piece.size])
                    work += other[: piece.size]
                self.encode(work, data[piece.data], rng)
                if residual is not None:
                    self.decode(data[piece.data], other[: piece.size])
                    work -= other[: piece.size]
                    residual.put(first, work)
        incoming = peers.alltoall(outgoing)
        for piece in pieces:
            work, more = numbers[: piece.size], other[: piece.size]
            work[:] = 0
            for data in incoming:
                self.decode(data[piece.data], more)
                more *= share(divisor)
                work += more
            work /= rest(divisor)
            self.encode(work, answer[piece.data], rng)
            if residual is not None:
                first = peers.rank * length + piece.start
                self.decode(answer[piece.data], more)
                work -= more
                work *= divisor
                residual.get(first, more)
                work += more
                residual.put(first, work)
        for rank, data in enumerate(peers.allgather(answer)):
            for piece in pieces:
                self.decode(data[piece.data], numbers[: piece.size])
                result.put(rank * length + piece.start, numbers[: piece.size])
        return kept

    def _cut(self, length: int, itemsize: int) -> Iterator[_Piece]:
        """The pieces of one rank's part."""
        at = 0
        for start in range(0, length, PIECE):
            size = min(PIECE, length - start)
            end = at + self.nbytes(size, itemsize)
            yield _Piece(start, size, slice(at, end))
            at = end

    def _seeds(self) -> tuple[int, ...]:
        """Seeds of the random numbers, in addition to tensor, step and rank."""
        return ()


class _Piece(NamedTuple):
    """Numbers of a part, and where they are encoded."""

    start: int
    size: int
    data: slice


class _Joined:
    """Contiguous arrays, one after the other, as if they were one; behind the end there are zeros."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [array.reshape(-1) for array in arrays]
        self._ends = list(accumulate(array.size for array in arrays))

    def get(self, first: int, numbers: Array) -> None:
        """Copy from `first` on into `numbers`."""
        at = 0
        for part in self._parts(first, numbers.size):
            numbers[at : at + part.size] = part
            at += part.size
        numbers[at:] = 0

    def put(self, first: int, numbers: Array) -> None:
        """Copy `numbers` to `first` and on."""
        at = 0
        for part in self._parts(first, numbers.size):
            part[:] = numbers[at : at + part.size]
            at += part.size

    def _parts(self, first: int, count: int) -> Iterator[np.ndarray[Any, Any]]:
        """The parts of arrays that some elements are."""
        for array, end in zip(self._arrays, self._ends, strict=True):
            begin = end - array.size
            if begin >= first + count:
                return
            if first < end:
                yield array[max(first - begin, 0) : first + count - begin]
