"""The parameters of a framework as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collectives.trees import Array, leaves


class Library:
    """Trees of parameters. This class knows NumPy arrays in dicts, lists and tuples; a frontend overrides it."""

    def leaves(self, params: Any) -> list[tuple[str, Any]]:
        """The path and the leaf of each array, always in the same order. Raises TypeError for another leaf."""
        return list(leaves(params, kinds=(np.ndarray,)))

    def read(self, leaf: Any) -> Array:
        """The numbers of a leaf, which may share its memory."""
        array: Array = leaf
        return array

    def write(self, params: Any, values: Mapping[int, Array]) -> Any:
        """The tree with other numbers in some leaves. NumPy's arrays are changed in place.

        values  numbers by the place of the leaf in `leaves`, in its shape; of float32 or float64
        """
        found = self.leaves(params)
        for place, value in values.items():
            np.copyto(found[place][1], value, casting="unsafe")
        return params

    def check(self, name: str, leaf: Any) -> None:
        """Raise ValueError if the leaf cannot be written."""
        if not leaf.flags.writeable:
            raise ValueError(f"params[{name!r}]: is a read-only array, which cannot be changed in place; give a copy")
