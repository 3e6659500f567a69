"""Adasum: a sum that does not count the common part of the ranks' gradients twice.

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

The sum where gradients are orthogonal, the mean where they are parallel. Ranks are combined pairwise in the tree of
`patterns.canonical_tree`: ranks 0 and 1, 2 and 3, ..., then the results; where the number of ranks is no power of two,
the first ranks are paired beforehand (with 3 ranks: 0 and 1, the result and 2). Every tensor has its own coefficients.

Source: Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation", MLSys. The paper halves the vectors
log2(p) times and adds up dot products in groups of 2, 4, ... ranks. Here one alltoall brings each rank its p-th part of
all vectors, so that it can combine along the whole tree: as many bytes, 2 (p - 1) / p N, for any number of ranks, and
fast where alltoall is. A level of the tree costs one allreduce of 3 float64 per pair and tensor besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from collectives.arrays import FLOAT32, Array, is_small_float
from collectives.execution import Peers
from collectives.schedule import Tree, canonical_tree

_BLOCK = 1 << 14
"""Elements that are widened to float64 at once for a dot product."""
_Pair = tuple[int, int]


def adasum(peers: Peers, source: Array, target: Array, sizes: Sequence[int]) -> None:
    """Combine all ranks' `source` into `target`, flat float arrays that may be one: the same bits on every rank.

    sizes   elements of each tensor in it, in order

    float16, bfloat16 and 8-bit floats are combined and travel as float32, and are rounded once. Dot products are
    added in float64. A tensor that holds NaN or infinity on any rank comes out as NaN, in a world of one as it is.
    """
    dtype = FLOAT32 if is_small_float(source.dtype) else source.dtype
    if peers.size == 1:
        np.copyto(target, source)
        return
    powers = np.zeros(len(sizes), np.int32)
    if dtype.itemsize > 4:  # the squares of other numbers fit float64
        powers = _magnitudes(peers, source, sizes)
    length = -(-source.size // peers.size)
    parts = np.zeros((peers.size, length), dtype)
    parts.reshape(-1)[: source.size] = source
    for tensor, piece in _pieces(sizes, 0, source.size):
        _times_power(parts.reshape(-1)[piece], -powers[tensor])
    mine = peers.alltoall(parts)
    pieces = list(_pieces(sizes, peers.rank * length, length))
    for level in levels(peers.size):
        dots = np.zeros((len(level), len(sizes), 3))
        for row, (left, right) in zip(dots, level, strict=True):
            for tensor, piece in pieces:
                row[tensor] = _dots(mine[left, piece], mine[right, piece])
        peers.allreduce(dots, reproducible=True)
        for row, (left, right) in zip(dots, level, strict=True):
            for tensor, piece in pieces:
                _combine(mine[left, piece], mine[right, piece], *row[tensor].tolist())
    result = peers.allgather(mine[0]).reshape(-1)[: target.size]
    for tensor, piece in _pieces(sizes, 0, source.size):
        _times_power(result[piece], powers[tensor])
    np.copyto(target, result, casting="unsafe")


def _magnitudes(peers: Peers, source: Array, sizes: Sequence[int]) -> Array:
    """For each tensor the power of two that no number of any rank reaches; 0 where there are others than numbers. A
    tensor is divided by it, so that no dot product overflows or vanishes: adasum(c a, c b) = c adasum(a, b)."""
    largest = np.zeros(len(sizes))
    for tensor, piece in _pieces(sizes, 0, source.size):
        largest[tensor] = np.abs(source[piece]).max()
    largest = peers.allgather(largest).max(axis=0)
    return np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]


def _times_power(tensor: Array, power: int) -> None:
    """Multiply by 2 ** power."""
    if power:
        np.ldexp(tensor, power, tensor)


def levels(size: int) -> list[list[_Pair]]:
    """The pairs of each level of the canonical tree, the leaves' first: the right one is combined into the left one,
    which is where its subtree's first rank was. In the end all is at 0."""
    found: list[list[_Pair]] = []

    def visit(node: Tree) -> tuple[int, int]:
        """The node's first rank and its height."""
        if isinstance(node, int):
            return node, 0
        (left, below_left), (right, below_right) = visit(node[0]), visit(node[1])
        height = max(below_left, below_right)
        while len(found) <= height:
            found.append([])
        found[height].append((left, right))
        return left, height + 1

    visit(canonical_tree(size))
    return found


def _pieces(sizes: Sequence[int], start: int, length: int) -> Iterator[tuple[int, slice]]:
    """The tensors that elements start..start+length of their concatenation belong to, with where they are therein."""
    at = -start
    for tensor, size in enumerate(sizes):
        first, last = max(at, 0), min(at + size, length)
        if first < last:
            yield tensor, slice(first, last)
        at += size


def _dots(a: Array, b: Array) -> Array:
    """a.b, a.a and b.b in float64."""
    dots = np.zeros(3)
    for start in range(0, len(a), _BLOCK):
        left = a[start : start + _BLOCK].astype(np.float64)
        right = b[start : start + _BLOCK].astype(np.float64)
        dots += left @ right, left @ left, right @ right
    return dots


def _combine(a: Array, b: Array, ab: float, aa: float, bb: float) -> None:
    """a = adasum(a, b); b is overwritten. A vector of zeros has no direction, and changes nothing."""
    factor: Any = a.dtype.type
    np.multiply(a, factor(1 - ab / (2 * aa) if aa else 1), a)
    np.multiply(b, factor(1 - ab / (2 * bb) if bb else 1), b)
    np.add(a, b, a)
