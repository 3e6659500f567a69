"""Division of tensors and lists among ranks and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from numbers import Integral
from typing import Final, TypeVar

from collectives.schedule import split_evenly

__all__ = ["BUCKET", "buckets", "divided", "rows_for"]

T = TypeVar("T")

BUCKET: Final = 25_000_000
"""Bytes of gradients that travel together if no groups are given: few operations, and most of a backward pass's
gradients are sent before its end. The same value as in torch's DistributedDataParallel."""


def rows_for(
    shape: Sequence[int], given: Sequence[int] | None, size: int, tensor: str = "tensor", splits: str = "splits"
) -> list[int]:
    """Return the number of rows for each of `size` ranks: `given`, or equal parts of the first dimension if None.

    tensor, splits   names of the arguments, for the error text

    Raises ValueError for splits that do not fit the shape, and for a first dimension that cannot be divided equally.
    """
    rows = shape[0] if len(shape) else -1
    if rows < 0 or (given is None and rows % size):
        raise ValueError(
            f"{tensor}: its shape, {tuple(shape)}, has no first dimension that {size} ranks share equally; "
            f"give {splits}"
        )
    if given is None:
        return [rows // size] * size
    found = list(given) if isinstance(given, Iterable) else [given]
    if all(isinstance(one, Integral) for one in found):
        found = list(map(int, found))  # sums and products of NumPy's wrap
    if len(found) != size or not all(isinstance(one, int) and one >= 0 for one in found) or sum(found) != rows:
        raise ValueError(
            f"{splits}={found}: must be {size} integers, one for each rank, 0 or more and {rows} together, "
            f"the rows of {tensor}"
        )
    return found


def divided(items: Sequence[T], groups: int) -> list[list[T]]:
    """Cut `items` into at most `groups` consecutive lists of about equal length; none of them is empty."""
    left = iter(items)
    return [list(islice(left, size)) for size in split_evenly(len(items), groups) if size]


def buckets(items: Sequence[T], sizes: Iterable[int], limit: int = BUCKET) -> list[list[T]]:
    """Cut `items` into consecutive lists by their sizes. A list ends with the item that brings it to `limit`."""
    found: list[list[T]] = []
    filled = limit
    for item, size in zip(items, sizes, strict=True):
        if filled >= limit:
            found.append([])
            filled = 0
        found[-1].append(item)
        filled += size
    return found
