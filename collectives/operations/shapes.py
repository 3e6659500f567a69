"""Agreement on sizes that only some ranks know: small exchanges of fixed size ahead of the data."""

from __future__ import annotations

import math
import operator
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import named_dtype
from collectives.execution import Executor
from collectives.planning import Call
from transports.errors import MismatchError

_MAX_DIMS: Final = 64  # NumPy's limit
_NAME_BYTES: Final = 32
_TEXT_BYTES: Final = 256
_WORD: Final = 0xFFFFFFFFFFFFFFFF
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


class Stated(NamedTuple):
    """The sizes that a receiver expects; None for those that it leaves open.

    rows    rows of each rank's part
    whole   shape of the whole result
    """

    rows: tuple[int, ...] | None = None
    whole: tuple[int, ...] | None = None

    def complaint(self, rank: int, coming: Shapes) -> str:
        """The text of what does not fit the sizes that come to the receiver `rank`; empty if all does."""
        if self.rows is not None and self.rows != coming.rows:
            sender = next(i for i, pair in enumerate(zip(self.rows, coming.rows, strict=True)) if pair[0] != pair[1])
            unit = f"rows of shape {coming.rest}" if coming.rest else "elements"
            given = coming.rows[sender]
            return f"rank {rank} expects {self.rows[sender]} {unit} from rank {sender}, which gives {given}"
        if self.whole is not None and self.whole != coming.whole:
            return f"out of rank {rank} has shape {self.whole}, must have {coming.whole}"
        return ""

    def digest(self) -> int:
        """A number that tells all ranks what is stated; 0 for nothing."""
        return 0 if self == NOTHING else 1 + zlib.crc32(repr((self.rows, self.whole)).encode())


NOTHING: Final = Stated()


def _fitting(coming: Shapes) -> set[int]:
    """The digests of everything that a receiver may state if these sizes come to it."""
    rows, whole = coming.rows, coming.whole
    return {stated.digest() for stated in (NOTHING, Stated(rows), Stated(None, whole), Stated(rows, whole))}


def refuse_sizes(executor: Executor, collective: str, complaint: str, deadline: float) -> MismatchError:
    """The error of a call whose sizes do not fit what some receivers state, which all ranks know.

    complaint  the text of this rank; empty if its sizes fit

    Every rank learns the texts of all. Nothing of the call has been sent, so the communicator stays usable.
    """
    texts = np.zeros((len(executor.ranks), _TEXT_BYTES), np.uint8)
    mine = np.frombuffer(complaint.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"), np.uint8)
    call = Call("allgather", mine.dtype, (_TEXT_BYTES,) * len(texts), within=AGREEMENT)
    executor.run_call(call, mine, texts.reshape(-1), deadline)
    said = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
    receivers = [rank for rank, text in enumerate(said) if text]
    return MismatchError(f"{collective}: {'; '.join(filter(None, said))}", rank=executor.rank, peer=receivers[0])


def _describe(rows: int, rest: tuple[int, ...], dtype: np.dtype[Any]) -> Header:
    header = np.zeros(_HEADER, _INT64)
    header[0], header[1] = rows, len(rest)
    header[2 : 2 + _NAME_BYTES // 8] = np.frombuffer(dtype.name.encode().ljust(_NAME_BYTES, b"\0"), _INT64)
    header[2 + _NAME_BYTES // 8 :][: len(rest)] = rest
    return header


def _read(header: Header) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    name = header[2 : 2 + _NAME_BYTES // 8].tobytes().rstrip(b"\0").decode()
    rest = header[2 + _NAME_BYTES // 8 :][: int(header[1])]
    return int(header[0]), tuple(int(dim) for dim in rest), named_dtype(name)


def agree_on_shapes(
    executor: Executor,
    collective: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    deadline: float,
    stated: Stated = NOTHING,
) -> Shapes:
    """Every rank tells the shape of its part, and the sizes that it states as a receiver; all ranks learn the rows of
    all.

    Digests stand for the rest of the shape and the dtype, and for what is stated, so that the usual exchange is 24
    bytes a rank. Raises MismatchError on every rank, with a table, if the parts differ in more than their first
    dimension, or are not what a receiver states; the communicator stays usable, since all ranks came to the same end.
    """

    size = len(executor.ranks)

    def exchange(mine: Header) -> Header:
        table = np.empty((size, len(mine)), _INT64)
        call = Call("allgather", _INT64, (len(mine),) * size, within=AGREEMENT)
        executor.run_call(call, mine, table.reshape(-1), deadline)
        return table

    digest = _digest(shape[1:], dtype)
    rows, digests, expected = exchange(np.array((shape[0], digest, stated.digest()), _INT64)).T.tolist()
    if digests.count(digest) != size:
        parts = [_read(header) for header in exchange(_describe(shape[0], shape[1:], dtype))]
        said = "; ".join(f"rank {r}: {(rows, *rest)} {kind}" for r, (rows, rest, kind) in enumerate(parts))
        raise MismatchError(
            f"{collective}: the ranks' arrays may differ in their first dimension only: {said}", rank=executor.rank
        )
    shapes = Shapes(dtype, tuple(rows), shape[1:])
    if any(expected) and not _fitting(shapes).issuperset(expected):
        raise refuse_sizes(executor, collective, stated.complaint(executor.rank, shapes), deadline)
    return shapes


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


def agree_on_stated_parts(
    executor: Executor,
    given: Shapes | None,
    out: tuple[tuple[int, ...], np.dtype[Any]] | None,
    root: int,
    deadline: float,
) -> Shapes:
    """`agree_on_parts` in which every rank also states shape and dtype of the array `out` for its part, if it has one.

    It is a sum of what the root tells and of a digest from each receiver. Raises MismatchError on every rank if a part
    is not what its receiver states; the communicator stays usable. Ranks that name other roots raise it too, and the
    communicator is aborted.
    """
    size, rank = len(executor.ranks), executor.rank
    header = np.zeros(_HEADER + 2 * size, _INT64)
    if given is not None:
        header[:_HEADER] = _describe(0, given.rest, given.dtype)
        header[_HEADER:-size] = given.rows
    header[_HEADER + size + rank] = 0 if out is None else 1 + _digest(*out)
    within = f"{AGREEMENT} of root {root}"  # a sum has no root of its own by which the ranks' calls would differ
    call = Call("allreduce", _INT64, (len(header),), "sum", alias=0, within=within)
    executor.run_call(call, header, header, deadline)
    _, rest, dtype = _read(header[:_HEADER])
    shapes = Shapes(dtype, tuple(header[_HEADER:-size].tolist()), rest)
    parts = [(rows, *rest) for rows in shapes.rows]
    wrong = [
        told not in (0, 1 + _digest(part, dtype)) for told, part in zip(header[-size:].tolist(), parts, strict=True)
    ]
    if any(wrong):
        text = ""
        if wrong[rank] and out is not None:
            text = f"out of rank {rank} has shape {out[0]} and dtype {out[1]}, must have {parts[rank]} and {dtype}"
        raise refuse_sizes(executor, "scatter", text, deadline)
    return shapes


def agree_on_splits(
    executor: Executor,
    dtype: np.dtype[Any],
    rows: tuple[int, ...],
    rest: tuple[int, ...],
    stated: Stated,
    deadline: float,
) -> Shapes:
    """Every rank gives the others these numbers of rows; returns the rows that come to this rank.

    Either all ranks state the rows that they expect, or none does. If they do, one number shows whether all of them
    fit; else every rank tells every other its number of rows, and whether it states the shape of its result.

    Raises MismatchError on every rank if what is given is not what a receiver states; the communicator stays usable.
    """
    size, rank = len(executor.ranks), executor.rank
    kind = _digest(rest, dtype)
    if stated.rows is not None:
        given, taken = _weights(rank, size)
        surplus = sum(map(operator.mul, rows, given)) - sum(map(operator.mul, stated.rows, taken))
        if _sum(executor, surplus * (2 * kind + 1), deadline) == 0:
            return Shapes(dtype, stated.rows, rest)
    table = np.empty((size, 2), _INT64)
    table[:, 0], table[:, 1] = rows, 2 * kind + (stated.whole is not None)
    coming = np.empty_like(table)
    executor.run_call(Call("alltoall", _INT64, (2,), within=AGREEMENT), table.reshape(-1), coming.reshape(-1), deadline)
    shapes = Shapes(dtype, tuple(coming[:, 0].tolist()), rest)
    told = coming[:, 1]
    alike = bool((told >> 1 == kind).all())
    text = stated.complaint(rank, shapes) if alike else f"rank {rank} gives rows of shape {rest} and dtype {dtype}"
    if not alike or stated.rows is not None or ((told & 1).any() and _sum(executor, bool(text), deadline)):
        raise refuse_sizes(executor, "alltoall", text, deadline)
    return shapes


def _sum(executor: Executor, value: int, deadline: float) -> int:
    """The sum of all ranks' values, of 64 bits."""
    total = np.array([value & _WORD], np.uint64).view(_INT64)
    executor.run_call(Call("allreduce", _INT64, (1,), "sum", alias=0, within=AGREEMENT), total, total, deadline)
    return int(total[0])


@lru_cache(maxsize=64)
def _weights(rank: int, size: int) -> tuple[list[int], list[int]]:
    """Odd numbers of 64 bits, one for each pair of giver and receiver: for the pairs in which a rank gives, and for
    those in which it receives. A sum that is weighted by them is 0 only by chance of 2**-64 if some pairs do not fit.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
    """

    def weight(pair: int) -> int:
        mixed = (pair + 1) * 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
        return (mixed ^ mixed >> 31) | 1

    return [weight(rank * size + peer) for peer in range(size)], [weight(peer * size + rank) for peer in range(size)]
