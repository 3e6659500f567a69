"""Layouts: the places of a datatype's bytes, as NumPy arrays of offsets. Nothing here knows of MPI's objects.

A layout describes one element: blocks of bytes at offsets from the element's address, in the order in which they
travel. Offsets are computed when they are first needed, for all blocks at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Run = tuple["np.dtype[Any]", int]


class Layout:
    """The places of the bytes of one element.

    size                      number of bytes of data
    lb, extent                where an element begins, and the distance to the next one
    true_lb, true_extent      the same of the data alone
    runs, repeats             the basic elements in order: (dtype, number), and how often this is repeated
    bounded                   True if the program has given its bounds, or those of all its parts
    """

    def __init__(
        self,
        size: int,
        lb: int,
        extent: int,
        true_lb: int,
        true_extent: int,
        runs: tuple[Run, ...],
        repeats: int,
        blocks: Callable[[], tuple[Offsets, Offsets]],
        *,
        bounded: bool = False,
    ) -> None:
        """`blocks` computes the offsets and lengths of the blocks."""
        self.size = size
        self.lb = lb
        self.extent = extent
        self.true_lb = true_lb
        self.true_extent = true_extent
        self.runs = runs
        self.repeats = repeats
        self.bounded = bounded
        self._blocks = blocks

    @cached_property
    def blocks(self) -> tuple[Offsets, Offsets]:
        """Offsets and lengths of the blocks, neighbours joined."""
        return _joined(*self._blocks())

    @cached_property
    def whole(self) -> bool:
        """True if elements that follow each other are one piece of memory, which begins at the first one's address."""
        if self.size == 0:
            return True
        if self.size != self.extent or self.true_lb or self.lb or self.true_extent != self.size:
            return False
        return len(self.blocks[0]) == 1

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of the basic elements, if all are equal."""
        return self.runs[0][0] if len(self.runs) == 1 else None

    @property
    def elements(self) -> int:
        """The number of basic elements."""
        return self.repeats * sum(number for _, number in self.runs)

    def span(self, count: int) -> tuple[int, int]:
        """The first and the last-but-one byte that so many elements touch, from the address of the first one."""
        if count == 0 or self.size == 0:
            return 0, 0
        steps = (0, (count - 1) * self.extent)
        return min(steps) + self.true_lb, max(steps) + self.true_lb + self.true_extent

    @cached_property
    def _unit(self) -> int:
        """The largest power of two up to 8 that divides all offsets, lengths and the extent."""
        offsets, lengths = self.blocks
        common = math.gcd(self.extent, int(np.gcd.reduce(offsets)), int(np.gcd.reduce(lengths)), 8)
        return common & -common

    @cached_property
    def _index(self) -> Offsets:
        """The places of one element's data, counted in units."""
        offsets, lengths = self.blocks
        unit = self._unit
        offsets, lengths = offsets // unit, lengths // unit
        if len(lengths) and (lengths == lengths[0]).all():
            found: Offsets = (offsets[:, None] + np.arange(lengths[0])).reshape(-1)
            return found
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        index: Offsets = np.repeat(offsets, lengths) + within
        return index

    def places(self, count: int) -> tuple[Offsets, int]:
        """The places of the data of so many elements, and the bytes of one place."""
        index, unit = self._index, self._unit
        if count == 1:
            return index, unit
        steps = np.arange(count, dtype=np.int64) * (self.extent // unit)
        return (steps[:, None] + index).reshape(-1), unit


def basic(dtype: np.dtype[Any]) -> Layout:
    """The layout of one number, or of a structure that counts as one."""
    size = dtype.itemsize
    if dtype.names is None:
        return Layout(size, 0, size, 0, size, ((dtype, 1),), 1, lambda: (np.zeros(1, np.int64), np.array([size])))
    fields = [(dtype.fields[name][0], dtype.fields[name][1]) for name in dtype.names]  # type: ignore[index]
    offsets, lengths = [offset for _, offset in fields], [kind.itemsize for kind, _ in fields]
    end = max(offset + length for offset, length in zip(offsets, lengths, strict=True))
    runs = tuple((kind, 1) for kind, _ in fields)
    return Layout(sum(lengths), 0, size, 0, end, runs, 1, lambda: (np.array(offsets), np.array(lengths)))


def empty(extent: int = 0) -> Layout:
    """The layout of no data."""
    return Layout(0, 0, extent, 0, 0, (), 1, lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)))


def blocks_of(
    parts: Sequence[Layout],
    counts: Sequence[int],
    displacements: Sequence[int],
    *,
    one: Layout | None = None,
    aligned: bool = False,
) -> Layout:
    """Blocks of elements at displacements in bytes.

    one      the layout of all parts, if they are equal
    aligned  True makes the extent a multiple of the alignment of the basic elements, as that of a struct of C is;
             unless the program has given the bounds of all parts
    """
    triples = [(part, n, at) for part, n, at in zip(parts, counts, displacements, strict=True) if n > 0]
    if not triples or (one is not None and not one.size):
        return empty()
    size = sum(part.size * n for part, n, _ in triples)
    lower = min(at + part.lb + min(0, (n - 1) * part.extent) for part, n, at in triples)
    upper = max(at + part.lb + part.extent + max(0, (n - 1) * part.extent) for part, n, at in triples)
    bounded = all(part.bounded for part, _, _ in triples)
    if aligned and not bounded:
        step = max((dtype.alignment for part, _, _ in triples for dtype, _ in part.runs), default=1)
        upper += -(upper - lower) % step
    data = [(at, *part.span(n)) for part, n, at in triples if part.size]
    true_lower = min((at + first for at, first, _ in data), default=0)
    true_upper = max((at + end for at, _, end in data), default=0)
    runs, repeats = _runs(triples) if one is None else _repeated(one, sum(n for _, n, _ in triples))

    def blocks() -> tuple[Offsets, Offsets]:
        if one is not None:
            return _placed(one, np.array([n for _, n, _ in triples]), np.array([at for *_, at in triples]))
        found = [_placed(part, np.array([n]), np.array([at])) for part, n, at in triples]
        return np.concatenate([offsets for offsets, _ in found]), np.concatenate([lengths for _, lengths in found])

    extent, true_extent = upper - lower, true_upper - true_lower
    return Layout(size, lower, extent, true_lower, true_extent, runs, repeats, blocks, bounded=bounded)


def strided(part: Layout, count: int, length: int, stride: int) -> Layout:
    """`count` blocks of `length` elements, `stride` bytes apart."""
    if count <= 0 or length <= 0 or not part.size:
        return empty()
    steps, inner = (count - 1) * stride, (length - 1) * part.extent
    lower = part.lb + min(0, steps) + min(0, inner)
    upper = part.lb + part.extent + max(0, steps) + max(0, inner)
    true_lower = part.true_lb + min(0, steps) + min(0, inner)
    true_upper = part.true_lb + part.true_extent + max(0, steps) + max(0, inner)
    runs, repeats = _repeated(part, count * length)

    def blocks() -> tuple[Offsets, Offsets]:
        if part.whole and part.size:
            if stride == length * part.extent:
                return np.zeros(1, np.int64), np.array([count * length * part.size])
            return np.arange(count, dtype=np.int64) * stride, np.full(count, length * part.size)
        return _placed(part, np.full(count, length), np.arange(count, dtype=np.int64) * stride)

    size, extent, true_extent = part.size * count * length, upper - lower, true_upper - true_lower
    return Layout(size, lower, extent, true_lower, true_extent, runs, repeats, blocks, bounded=part.bounded)


def resized(part: Layout, lb: int, extent: int) -> Layout:
    """The layout with other bounds."""
    true = part.true_lb, part.true_extent
    return Layout(part.size, lb, extent, *true, part.runs, part.repeats, lambda: part.blocks, bounded=True)


def moved(part: Layout, by: int) -> Layout:
    """The layout with all its data at other offsets; the bounds stay."""

    def blocks() -> tuple[Offsets, Offsets]:
        offsets, lengths = part.blocks
        return offsets + by, lengths

    shifted = part.true_lb + by if part.size else 0
    bounds = part.lb, part.extent, shifted, part.true_extent
    return Layout(part.size, *bounds, part.runs, part.repeats, blocks, bounded=part.bounded)


def _placed(part: Layout, counts: Offsets, at: Offsets) -> tuple[Offsets, Offsets]:
    """The blocks of runs of elements that begin at offsets."""
    if part.whole:
        return at, counts * part.size
    offsets, lengths = part.blocks
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    starts = np.repeat(at, counts) + within * part.extent
    return (starts[:, None] + offsets).reshape(-1), np.tile(lengths, len(starts))


def _joined(offsets: Offsets, lengths: Offsets) -> tuple[Offsets, Offsets]:
    """The blocks without empty ones; those that touch their predecessor become a part of it."""
    filled = lengths > 0
    offsets, lengths = offsets[filled].astype(np.int64), lengths[filled].astype(np.int64)
    if len(offsets) < 2:
        return offsets, lengths
    first = np.concatenate(([True], offsets[1:] != offsets[:-1] + lengths[:-1]))
    return offsets[first], np.add.reduceat(lengths, np.flatnonzero(first))


def _repeated(part: Layout, count: int) -> tuple[tuple[Run, ...], int]:
    if len(part.runs) == 1:
        dtype, number = part.runs[0]
        return ((dtype, number * part.repeats * count),), 1
    return part.runs, part.repeats * count


def _runs(triples: Sequence[tuple[Layout, int, int]]) -> tuple[tuple[Run, ...], int]:
    found: list[Run] = []
    for part, n, _ in triples:
        runs, repeats = _repeated(part, n)
        for dtype, number in runs * repeats:
            if found and found[-1][0] == dtype:
                found[-1] = dtype, found[-1][1] + number
            else:
                found.append((dtype, number))
    return tuple(found), 1
