"""How many rows of a tensor go to each rank."""

from __future__ import annotations

from collections.abc import Sequence


def rows_for(
    shape: Sequence[int], given: Sequence[int] | None, size: int, tensor: str = "tensor", splits: str = "splits"
) -> list[int]:
    """What `given` says, or without it equally many for each of `size` ranks. Raises ValueError, with the names of both
    arguments, for what does not fit."""
    rows = shape[0] if len(shape) else -1
    if rows < 0 or (given is None and rows % size):
        raise ValueError(
            f"{tensor}: its shape, {tuple(shape)}, has no first dimension that {size} ranks share equally; "
            f"give {splits}"
        )
    if given is None:
        return [rows // size] * size
    found = list(given)
    if len(found) != size or min(found) < 0 or sum(found) != rows:
        raise ValueError(
            f"{splits}={found}: must be {size} numbers, one for each rank, 0 or more and {rows} together, "
            f"the rows of {tensor}"
        )
    return found
