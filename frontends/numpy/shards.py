"""Division of datasets among the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from collectives import ProcessSet, global_process_set
from collectives.trees import Array, like
from frontends.horovod import communicator_of

_REMAINDERS: Final = ("pad", "drop", "uneven")


def shard(
    *datasets: Any,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    remainder: str = "pad",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return this rank's rows of datasets of equal length: `X, y = shard(X, y, shuffle=True, epoch=epoch)`.

    datasets    arrays (also of pandas and SciPy), lists and other sequences of samples, and dicts and tuples of them
    shuffle     permute the rows first; the order depends on seed and epoch only, so it is the same on all ranks
    remainder   treatment of rows that cannot be divided equally: "pad" repeats rows from the beginning, "drop" omits
                rows; all ranks then have the same number. "uneven" gives some ranks one row more; use it for
                evaluation, not for steps that wait for each other

    Rank r gets rows r, r + size, ... of that order, so the n-th batches of all ranks together are the n-th batch of a
    single process. Nothing is sent. Returns one part for one dataset, a tuple of parts for several. Raises ValueError
    for datasets of different lengths, an empty dataset, fewer rows than ranks with "drop", and a bad argument;
    TypeError for a dataset whose rows cannot be taken.
    """
    if remainder not in _REMAINDERS:
        raise ValueError(f"remainder={remainder!r}: must be one of {', '.join(_REMAINDERS)}")
    for name, number in (("seed", seed), ("epoch", epoch)):
        if shuffle and not (isinstance(number, int | np.integer) and number >= 0):
            raise ValueError(f"{name}={number!r}: must be an int, 0 or more")
    if not datasets:
        raise ValueError("datasets: must be at least one")
    comm = communicator_of(process_set)
    lengths = [found for number, dataset in enumerate(datasets) for found in _lengths(dataset, f"datasets[{number}]")]
    count = lengths[0][1]
    for place, length in lengths:
        if length != count:
            raise ValueError(f"{place}: has {length} rows, {lengths[0][0]} has {count}")
    if count == 0 or (remainder == "drop" and count < comm.size):
        raise ValueError(f"datasets: {count} rows do not suffice for {comm.size} ranks with remainder={remainder!r}")
    rows = _rows(count, comm.rank, comm.size, shuffle, seed, epoch, remainder)
    parts = tuple(_taken(dataset, rows) for dataset in datasets)
    return parts if len(parts) > 1 else parts[0]


def _rows(count: int, rank: int, size: int, shuffle: bool, seed: int, epoch: int, remainder: str) -> slice | Array:
    """Return the rows of a rank; a slice if possible, so that arrays need not be copied."""
    whole = count % size == 0
    if not shuffle and (whole or remainder != "pad"):
        return slice(rank, count - count % size if remainder == "drop" else count, size)
    order = np.random.default_rng([seed, epoch]).permutation(count) if shuffle else np.arange(count)
    if remainder == "drop":
        order = order[: count - count % size]
    elif remainder == "pad" and not whole:
        order = np.resize(order, -(-count // size) * size)
    return order[rank::size]


def _lengths(dataset: Any, place: str) -> Iterator[tuple[str, int]]:
    """Yield the argument path and the number of rows of each dataset."""
    if isinstance(dataset, dict):
        for key, part in dataset.items():
            yield from _lengths(part, f"{place}[{key!r}]")
    elif isinstance(dataset, tuple):
        for index, part in enumerate(dataset):
            yield from _lengths(part, f"{place}[{index}]")
    elif getattr(dataset, "shape", ()) and hasattr(dataset, "__getitem__"):  # SciPy's dia_array has none
        yield place, int(dataset.shape[0])
    elif isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes):
        yield place, len(dataset)
    else:
        raise TypeError(
            f"{place}: must be an array with at least one dimension, a sequence, or a dict or tuple of those, not "
            f"{type(dataset).__name__}"
        )


def _taken(dataset: Any, rows: slice | Array) -> Any:
    if isinstance(dataset, dict):
        return {key: _taken(part, rows) for key, part in dataset.items()}
    if isinstance(dataset, tuple):
        return like(dataset, (_taken(part, rows) for part in dataset))
    if hasattr(dataset, "shape"):
        return getattr(dataset, "iloc", dataset)[rows]  # pandas counts rows by `iloc`
    if isinstance(rows, slice):
        return dataset[rows]
    return [dataset[row] for row in rows.tolist()]
