"""Several small allreduces as one: which ones, and how they share a buffer.

All ranks run the same operations in the same order (negotiate.py) and so come to the same bundles. A bundle is loaded
into one buffer, exchanged by one collective, and stored from it: each array is copied once each way, and scaled on the
way. Where ranks can map each other's memory the buffer of named operations lies in a window, so that nothing is staged,
and bundles are small enough to stay in the cache all the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.buffers import Array
from collectives.reducing import Reduction
from collectives.reductions import ADASUM
from collectives.terms import Terms

LARGEST: Final = 1 << 18
"""Bytes. Larger arrays go alone: two copies would cost more than the collective that they save."""
CACHED: Final = 1 << 20
"""Bytes. More are not packed together where that is done in a window: they would leave the cache in between."""
WINDOW: Final = 2 * CACHED
"""Halves may be accumulated in twice as many bytes."""
_KINDS: Final = ("allreduce", "grouped_allreduce")
_Kind = tuple[Any, ...]
_NOTHING: Final = np.empty(0, np.uint8)


class Part(NamedTuple):
    """One array of an allreduce, of `size` elements: flat, contiguous; `source` may be `target`. None: this rank has
    joined, and gives zeros."""

    reduction: Reduction
    size: int
    source: Array | None
    target: Array | None


class Packable(NamedTuple):
    """An operation that is nothing but an allreduce of each of some arrays, and the result once that is done."""

    parts: Sequence[Part]
    finish: Callable[[], Any]


class Place(NamedTuple):
    """An array of an operation, by their numbers; `array` is -1 for the whole of an operation that is no Packable."""

    operation: int
    array: int


def packable(terms: Terms) -> bool:
    """True for the terms of a Packable."""
    return terms.kind in _KINDS and terms.op != ADASUM and not terms.detail


def bundles(operations: Sequence[Terms], limit: int) -> list[list[Place]]:
    """What is run together, in order: of one dtype, op and so on, and of at most `limit` bytes."""
    result: list[list[Place]] = []
    open_: dict[_Kind, tuple[list[Place], int]] = {}
    for number, terms in enumerate(operations):
        if not packable(terms):
            result.append([Place(number, -1)])
            continue
        for index, (kind, nbytes) in enumerate(_arrays(terms)):
            if nbytes > LARGEST or nbytes > limit:
                result.append([Place(number, index)])
                continue
            bundle, filled = open_.get(kind, (None, 0))
            if bundle is None or filled + nbytes > limit:
                bundle, filled = [], 0
                result.append(bundle)
            bundle.append(Place(number, index))
            open_[kind] = bundle, filled + nbytes
    return result


@lru_cache(1024)
def _arrays(terms: Terms) -> tuple[tuple[_Kind, int], ...]:
    """Of every array: what those have in common that may be packed together, and its bytes."""
    kind = terms.op, terms.prescale, terms.postscale, terms.algorithm, terms.reproducible
    pairs = zip(terms.dtypes, terms.shapes, strict=True)
    return tuple(((dtype, *kind), math.prod(shape) * np.dtype(dtype).itemsize) for dtype, shape in pairs)


class Buffer:
    """The memory that arrays are packed into, kept from one bundle to the next. All ranks take alike from theirs."""

    def __init__(self) -> None:
        self._window = self._memory = _NOTHING

    def share(self, window: Array) -> None:
        """Use memory in a window, WINDOW bytes, for what fits."""
        self._window = window

    def limit(self, fusion: int) -> int:
        """The most bytes that should be packed together, where `fusion` is the most that may be."""
        return min(fusion, CACHED) if self._window.nbytes else fusion

    def take(self, size: int, dtype: np.dtype[Any]) -> Array:
        """`size` elements, with any contents."""
        nbytes = size * dtype.itemsize
        if nbytes <= self._window.nbytes:
            return self._window[:nbytes].view(dtype)
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(max(nbytes, 2 * self._memory.nbytes), np.uint8)
        return self._memory[:nbytes].view(dtype)

    def release(self) -> None:
        """Let go of the memory."""
        self._window = self._memory = _NOTHING


def reduce_together(parts: Sequence[Part], buffer: Buffer, deadline: float) -> None:
    """Run one bundle. Raises as Executor.run."""
    reduction = parts[0].reduction
    if len(parts) > 1:
        reduction.quietly(_packed, reduction, parts, buffer, deadline)
        return
    [(_, size, source, target)] = parts
    if source is None or target is None:
        source = target = np.zeros(size, reduction.given)
    reduction.run(source, target, reduction.blocks([size]), 0, deadline)


def _packed(reduction: Reduction, parts: Sequence[Part], buffer: Buffer, deadline: float) -> None:
    work = buffer.take(sum(part.size for part in parts), reduction.dtype)
    at = 0
    for part in parts:
        piece = work[at : at + part.size]
        if part.source is None:
            piece.fill(0)
        else:
            part.reduction.load(part.source, piece)
        at += part.size
    divided = reduction.exchange(work, work, reduction.blocks([part.size for part in parts]), 0, deadline)
    at = 0
    for part in parts:
        if part.target is not None:
            part.reduction.store(work[at : at + part.size], part.target, divided)
        at += part.size
