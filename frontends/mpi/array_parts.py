"""Parts of arrays: the elements that subarrays and distributed arrays select, as layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.mpi import layout as layouts
from frontends.mpi.constants import (
    DISTRIBUTE_BLOCK,
    DISTRIBUTE_CYCLIC,
    DISTRIBUTE_DFLT_DARG,
    DISTRIBUTE_NONE,
    ORDER_C,
    UNDEFINED,
)
from frontends.mpi.errors import error
from frontends.mpi.layout import Layout


def selected(part: Layout, sizes: list[int], chosen: list[Any], order: int) -> Layout:
    """The elements of an array at the chosen indices of each dimension."""
    dimensions = list(zip(sizes, chosen, strict=True))
    layout, stride = part, part.extent
    for size, indices in reversed(dimensions) if order == ORDER_C else dimensions:
        steps = np.diff(indices)
        if not len(indices):
            layout = layouts.empty()
        elif not len(steps) or (steps == steps[0]).all():
            step = int(steps[0]) if len(steps) else 1
            layout = layouts.moved(layouts.strided(layout, len(indices), 1, step * stride), int(indices[0]) * stride)
        else:
            places = [int(index) * stride for index in indices]
            layout = layouts.blocks_of([layout] * len(places), [1] * len(places), places, one=layout)
        stride *= size
    return layouts.resized(layout, 0, stride)


def distributed(size: int, distribution: int, darg: int, parts: int, place: int) -> Any:
    """The indices of one dimension that belong to a place in the grid of ranks."""
    indices = np.arange(size)
    if distribution == DISTRIBUTE_NONE:
        return indices
    if distribution == DISTRIBUTE_BLOCK:
        length = -(-size // parts) if darg == DISTRIBUTE_DFLT_DARG else darg
        if length * parts < size:
            raise error("ERR_ARG", f"dargs: blocks of {length} are too small for {size} elements on {parts} ranks")
        return indices[place * length : (place + 1) * length]
    if distribution == DISTRIBUTE_CYCLIC:
        length = 1 if darg == DISTRIBUTE_DFLT_DARG else darg
        return indices[indices // length % parts == place]
    raise error("ERR_ARG", f"distribs: {distribution} is no distribution")


def real_code(p: int, r: int) -> str:
    """NumPy's code of the smallest real with so many decimal digits and such a range of exponents. Raises Exception."""
    if (p == UNDEFINED or p <= 6) and (r == UNDEFINED or r <= 37):
        return "f"
    if (p == UNDEFINED or p <= 15) and (r == UNDEFINED or r <= 307):
        return "d"
    if (p == UNDEFINED or p <= 18) and (r == UNDEFINED or r <= 4931):
        return "g"
    raise error("ERR_ARG", f"p={p}, r={r}: no number has so many decimal digits")
