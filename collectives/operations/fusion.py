"""Fusion: several small allreduces as one.

All ranks run the same operations in the same order (negotiation room), so they form the same bundles:

    arrays  --load, scale-->  buffer  --one allreduce-->  buffer  --store, scale-->  arrays

Where ranks can map each other's memory, the buffer of named operations lies in a window. Then nothing is staged, and
bundles are small enough to stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import UFUNCS, Array, named_dtype
from collectives.operations.job import Part
from collectives.operations.signature import Signature

LARGEST: Final = 1 << 18
"""Bytes. A larger array goes alone: two copies would cost more than the collective that they save."""
CACHED: Final = 1 << 20
"""Bytes. The most that is packed together in a window: more would leave the cache in between."""
WINDOW: Final = 2 * CACHED
"""Bytes of the window: halves may be accumulated in twice their bytes."""
_KINDS: Final = ("allreduce", "grouped_allreduce")
_Kind = tuple[Any, ...]
_NOTHING: Final = np.empty(0, np.uint8)


class BundleItem(NamedTuple):
    """An array of an operation, by their numbers; `array` is -1 for an operation that is no Packable."""

    operation: int
    array: int


def packable(signature: Signature) -> bool:
    """True for the signature of an operation that is a Packable."""
    return signature.kind in _KINDS and (signature.op is None or signature.op in UFUNCS) and not signature.detail


def bundles(operations: Sequence[Signature], limit: int) -> list[list[BundleItem]]:
    """The arrays that are reduced together, in order: alike in dtype, op and options, up to `limit` bytes."""
    result: list[list[BundleItem]] = []
    open_: dict[_Kind, tuple[list[BundleItem], int]] = {}
    for number, signature in enumerate(operations):
        if not packable(signature):
            result.append([BundleItem(number, -1)])
            continue
        for index, (kind, nbytes) in enumerate(_arrays(signature)):
            if nbytes > LARGEST or nbytes > limit:
                result.append([BundleItem(number, index)])
                continue
            bundle, filled = open_.get(kind, (None, 0))
            if bundle is None or filled + nbytes > limit:
                bundle, filled = [], 0
                result.append(bundle)
            bundle.append(BundleItem(number, index))
            open_[kind] = bundle, filled + nbytes
    return result


@lru_cache(1024)
def bundles_alone(signature: Signature, limit: int) -> list[list[int]]:
    """The same of the arrays of one operation, by their numbers."""
    return [[item.array for item in bundle] for bundle in bundles([signature._replace(detail=())], limit)]


@lru_cache(1024)
def _arrays(signature: Signature) -> tuple[tuple[_Kind, int], ...]:
    """For every array: the properties that arrays packed together have in common, and its bytes."""
    kind = signature.op, signature.prescale, signature.postscale, signature.algorithm, signature.reproducible
    pairs = zip(signature.dtypes, signature.shapes, strict=True)
    return tuple(((dtype, *kind), math.prod(shape) * named_dtype(dtype).itemsize) for dtype, shape in pairs)


def array_sizes(signature: Signature) -> tuple[int, ...]:
    """Return the bytes of every array of an operation."""
    return tuple(nbytes for _, nbytes in _arrays(signature))


class Buffer:
    """The memory that arrays are packed into, kept from one bundle to the next. All ranks use theirs alike."""

    def __init__(self) -> None:
        self._window = self._memory = _NOTHING

    def share(self, window: Array) -> None:
        """Use memory in a window, WINDOW bytes, for bundles that fit."""
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


def reduce_together(parts: Sequence[Part], buffer: Buffer, deadline: float, *, compares: bool = False) -> None:
    """Run one bundle. Raises as Executor.run.

    compares   the ranks have not compared the arrays' sizes before: the call does
    """
    space = parts[0].reduction.space
    space.executor.ready(deadline)
    if len(parts) > 1:
        space.quietly(_packed, parts, buffer, deadline, compares)
        return
    [(reduction, size, source, target)] = parts
    if source is None or target is None:
        source = target = np.zeros(size, reduction.given)
    offsets = space.offsets("allreduce", source, target)
    planned = reduction.planned((size,), in_place=source is target, offsets=offsets)
    space.quietly(reduction.run, planned, source, target, deadline)


def _packed(parts: Sequence[Part], buffer: Buffer, deadline: float, compares: bool) -> None:
    reduction, space = parts[0].reduction, parts[0].reduction.space
    sizes = tuple(part.size for part in parts)
    total = sum(sizes)
    work = buffer.take(total * reduction.width, reduction.dtype)
    blocks = sizes if reduction.by_array else (total,)
    call = reduction.call(blocks, in_place=True, offsets=space.offsets("allreduce", work, work))
    planned = reduction.plan(call._replace(packed=sizes) if compares else call)
    sources = [part.source for part in parts if part.source is not None]
    if len(sources) == len(parts):
        reduction.load_together(planned, sources, work)
    else:  # this rank has joined
        work.fill(0)
    averaged = reduction.exchange(planned, work, work, deadline)
    at = 0
    for part in parts:
        if part.target is not None:
            part.reduction.store(reduction.part(work, at, part.size), part.target, averaged)
        at += part.size
