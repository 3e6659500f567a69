"""The division of parameters into fragments of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectives.arrays import is_small_float
from collectives.local_sgd.library import Library


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive elements of one leaf.

    leaf   place of the leaf among all leaves
    part   the elements, of the flat leaf
    name   of the piece, among those of all fragments
    """

    leaf: int
    part: slice
    name: str


class Fragments:
    """The leaves of the parameters one after the other, cut into fragments of equal numbers of elements, give or take
    one. Large leaves are cut, small ones share a fragment.

    forms      path, shape and dtype of each leaf
    fragments  the pieces of each fragment
    """

    def __init__(self, library: Library, params: Any, count: int) -> None:
        """Raises TypeError for a leaf that is no array of floats, ValueError for a leaf that cannot be written, for no
        parameters, and for more fragments than elements."""
        self._library = library
        self.forms: list[tuple[str, tuple[int, ...], str]] = []
        ends, total = [], 0
        for name, leaf in library.leaves(params):
            array = library.read(leaf)
            if array.dtype.kind != "f" and not is_small_float(array.dtype):
                raise TypeError(f"params[{name!r}]: is of {array.dtype}; only floats can be averaged: leave it out")
            library.check(name, leaf)
            self.forms.append((name, array.shape, array.dtype.name))
            total += array.size
            ends.append(total)
        if not total:
            raise ValueError("params: has no elements")
        if count > total:
            raise ValueError(f"fragments={count}: must be at most {total}, the number of elements of params")
        self.fragments = [
            self._cut(ends, total * place // count, total * (place + 1) // count) for place in range(count)
        ]

    def leaves(self, params: Any) -> list[Any]:
        """The leaves. Raises ValueError if the tree is another one than at first."""
        found = self._library.leaves(params)
        forms = [(name, tuple(leaf.shape)) for name, leaf in found]
        wanted = [(name, shape) for name, shape, _ in self.forms]
        if forms != wanted:
            differing = sorted({name for name, _ in set(forms) ^ set(wanted)})
            raise ValueError(f"params: differs from the tree that was given at first, in {', '.join(differing[:3])}")
        return [leaf for _, leaf in found]

    def _cut(self, ends: list[int], start: int, stop: int) -> list[Piece]:
        pieces, first = [], 0
        for leaf, end in enumerate(ends):
            low, high = max(start, first), min(stop, end)
            if low < high:
                name = f"{self.forms[leaf][0]}[{low - first}:{high - first}]"
                pieces.append(Piece(leaf, slice(low - first, high - first), name))
            first = end
        return pieces
