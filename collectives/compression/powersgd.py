"""PowerSGD: gradients of matrices as products of two thin ones."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from collectives.arrays import Array
from collectives.compression.base import SMALL_BYTES, Compressor, Memory, add_up
from collectives.execution import Peers
from collectives.numeric import is_integer


@dataclass(frozen=True, slots=True)
class PowerSGD(Compressor):
    """A tensor, as a matrix M of its first dimension n by all others m, becomes P Q^T of rank r, by one step of power
    iteration: P = M Q (added up over the ranks), made orthonormal; Q = M^T P (added up).

    rank        r; 1 to 4 is usual
    feedback    keep M - P Q^T and add it to the next call's numbers, if there is a state
    warm_start  begin with the last call's Q, if there is a state; else with random numbers each time
    seed        of the random numbers, which also depend on tensor name and step

    Bytes: those of an allreduce of r (n + m) numbers in place of n m, in two exchanges for all tensors together.
    Tensors of one dimension, and those where that saves less than half, travel as they are. A tensor that holds NaN or
    infinity comes out as NaN.

    Source: Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS. Results that must be equal on all ranks (the orthonormal basis, the product) use operations
    on elements, which are exact to the bit on every machine; matrix products only compute terms of a later sum.
    """

    rank: int = 2
    feedback: bool = True
    warm_start: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_integer(self.rank) or self.rank < 1:
            raise ValueError(f"rank={self.rank!r}: must be an int, 1 or more")
        if not is_integer(self.seed) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r}: must be an int, 0 or more")

    def combine(
        self, peers: Peers, xs: list[Array], outs: list[Array], memories: list[Memory] | None, divisor: int
    ) -> list[Memory] | None:
        low = [index for index, x in enumerate(xs) if self._pays(x)]
        dense = [index for index in range(len(xs)) if index not in set(low)]
        matrices, rights = [], []
        for index in low:
            memory = None if memories is None else memories[index]
            matrix = xs[index].reshape(len(xs[index]), -1)
            if memory is not None and self.feedback:  # a copy, which becomes the residual
                matrix = matrix + (0 if memory.residual is None else memory.residual.reshape(matrix.shape))
            matrices.append(matrix)
            rights.append(self._start(matrix, memory))

        lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
        sources = [*lefts, *(xs[index] for index in dense)]
        add_up(peers, sources, [*lefts, *(outs[index] for index in dense)], divisor)
        for left in lefts:
            orthonormalise(left)
        rights = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        add_up(peers, rights, rights, divisor)
        changed = None if memories is None else list(memories)
        for index, matrix, left, right in zip(low, matrices, lefts, rights, strict=True):
            product = outs[index].reshape(matrix.shape)
            _multiply(left, right, product)
            if changed is None:
                continue
            if self.feedback:  # a rank's part in the product is that in the mean
                matrix -= product if divisor > 1 else product / matrix.dtype.type(peers.size)
            changed[index] = dataclasses.replace(
                changed[index],
                step=changed[index].step + 1,
                residual=matrix.reshape(-1) if self.feedback else None,
                matrix=right if self.warm_start else None,
            )
        return changed

    def _pays(self, x: Array) -> bool:
        if x.ndim < 2 or x.nbytes < SMALL_BYTES:
            return False
        rows = len(x)
        return 2 * self.rank * (rows + x.size // rows) <= x.size

    def _start(self, matrix: Array, memory: Memory | None) -> Array:
        """The Q to begin with: the last one, with random numbers in columns that came to nothing."""
        name, step = (0, 0) if memory is None else (memory.seed, memory.step)
        rng = np.random.default_rng((self.seed, name, step))
        random = (rng.random((matrix.shape[1], self.rank)) - 0.5).astype(matrix.dtype)
        if memory is None or memory.matrix is None:
            return random
        return np.where(memory.matrix.any(0), memory.matrix, random)


def orthonormalise(basis: Array) -> None:
    """Make the columns of `basis` orthonormal, in place: Gram-Schmidt, twice for each column ("twice is enough", Giraud
    et al. 2005). A column that depends on those before it becomes zero. The same bits on every machine."""
    wide = basis.astype(np.float64)
    for column in range(wide.shape[1]):
        vector = wide[:, column].copy()
        before = np.sqrt(_dot(vector, vector))
        for _ in range(2):
            for other in range(column):
                vector -= _dot(wide[:, other], vector) * wide[:, other]
        norm = np.sqrt(_dot(vector, vector))
        lost = norm <= before * np.finfo(basis.dtype).eps
        wide[:, column] = 0 if lost else vector / norm
    np.copyto(basis, wide, casting="unsafe")


def _dot(a: Array, b: Array) -> np.float64:
    """The dot product by halves, since the order in which libraries add differs between machines."""
    signature = a * b
    while signature.size > 1:
        half = signature.size // 2
        rest = signature[2 * half :]
        signature = signature[:half] + signature[half : 2 * half]
        if rest.size:
            signature[0] += rest[0]
    result: np.float64 = signature[0]
    return result


def _multiply(left: Array, right: Array, product: Array) -> None:
    """product = left right^T, one column after the other."""
    np.multiply(left[:, :1], right[:, 0], product)
    for column in range(1, left.shape[1]):
        product += left[:, column : column + 1] * right[:, column]
