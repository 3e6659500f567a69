"""Agreement on sizes that only some ranks know: small exchanges of fixed size ahead of the data."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from collectives.execution import Executor
from collectives.planning import Call
from transports.errors import MismatchError

_MAX_DIMS: Final = 64  # NumPy's limit
_NAME_BYTES: Final = 32
_INT64: Final = np.dtype(np.int64)
AGREEMENT: Final = "an agreement on sizes"
"""The name of such an exchange in Call.within."""
Header = np.ndarray[Any, np.dtype[np.int64]]
_HEADER: Final = 2 + _NAME_BYTES // 8 + _MAX_DIMS


@dataclass(frozen=True, slots=True)
class Shapes:
    """A whole array in parts: the rows of each rank, and the dtype and the shape of a row."""

    dtype: np.dtype[Any]
    rows: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return (sum(self.rows), *self.rest)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of each rank's part."""
        per_row = math.prod(self.rest)
        return tuple(count * per_row for count in self.rows)


def _describe(rows: int, rest: tuple[int, ...], dtype: np.dtype[Any]) -> Header:
    header = np.zeros(_HEADER, _INT64)
    header[0], header[1] = rows, len(rest)
    header[2 : 2 + _NAME_BYTES // 8] = np.frombuffer(dtype.name.encode().ljust(_NAME_BYTES, b"\0"), _INT64)
    header[2 + _NAME_BYTES // 8 :][: len(rest)] = rest
    return header


def _read(header: Header) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    name = header[2 : 2 + _NAME_BYTES // 8].tobytes().rstrip(b"\0").decode()
    rest = header[2 + _NAME_BYTES // 8 :][: int(header[1])]
    return int(header[0]), tuple(int(dim) for dim in rest), np.dtype(name)


def agree_on_shapes(
    executor: Executor,
    collective: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    deadline: float,
) -> Shapes:
    """Every rank tells the shape of its part; all ranks learn the rows of all.

    A digest stands for the rest of the shape and the dtype, so that the usual exchange is 16 bytes a rank. Raises
    MismatchError on every rank, with a table, if the parts differ in more than their first dimension; the
    communicator stays usable, since all ranks came to the same end.
    """

    size = len(executor.ranks)

    def exchange(mine: Header) -> Header:
        table = np.empty((size, len(mine)), _INT64)
        call = Call("allgather", _INT64, (len(mine),) * size, within=AGREEMENT)
        executor.run_call(call, mine, table.reshape(-1), deadline)
        return table

    digest = _digest(shape[1:], dtype)
    rows, digests = exchange(np.array((shape[0], digest), _INT64)).T.tolist()
    if digests.count(digest) != size:
        parts = [_read(header) for header in exchange(_describe(shape[0], shape[1:], dtype))]
        said = "; ".join(f"rank {r}: {(rows, *rest)} {kind}" for r, (rows, rest, kind) in enumerate(parts))
        raise MismatchError(
            f"{collective}: the ranks' arrays may differ in their first dimension only: {said}", rank=executor.rank
        )
    return Shapes(dtype, tuple(rows), shape[1:])


@lru_cache(maxsize=256)
def _digest(rest: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return zlib.crc32(repr((rest, dtype.name)).encode())


def agree_on_parts(executor: Executor, given: Shapes | None, root: int, deadline: float) -> Shapes:
    """The root tells all ranks the parts of its array; `given` is these parts at the root, None elsewhere."""
    header = np.empty(_HEADER + len(executor.ranks), _INT64)
    if given is not None:
        header[:_HEADER] = _describe(0, given.rest, given.dtype)
        header[_HEADER:] = given.rows
    alias = None if given is None else 0
    call = Call("broadcast", _INT64, (len(header),), root=root, alias=alias, within=AGREEMENT)
    executor.run_call(call, None if given is None else header, header, deadline)
    _, rest, dtype = _read(header[:_HEADER])
    return Shapes(dtype, tuple(header[_HEADER:].tolist()), rest)


def agree_on_splits(
    executor: Executor,
    dtype: np.dtype[Any],
    rows: tuple[int, ...],
    rest: tuple[int, ...],
    uneven: bool,
    deadline: float,
) -> Shapes:
    """Every rank tells every other its number of rows for it; returns the rows that come to this rank.

    Unless `uneven`, all parts are equal and nothing is exchanged.
    """
    if uneven:
        given = np.asarray(rows, _INT64)
        coming = np.empty_like(given)
        executor.run_call(Call("alltoall", _INT64, (1,), within=AGREEMENT), given, coming, deadline)
        rows = tuple(coming.tolist())
    return Shapes(dtype, rows, rest)
