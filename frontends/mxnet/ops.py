"""Horovod's operations on MXNet's arrays.

Every public operation waits until MXNet's engine has computed its tensor, and returns when the result is there, so an
error is raised by the call itself. Horovod queues operations in the engine: `priority`, which orders that queue, is
accepted here and ignored. Results are not part of a recorded graph, as in Horovod. Training begins several operations
of LIBRARY before it waits for one.

Ranks match calls by name. Calls without a name are numbered, with one count for each kind and process set, so all ranks
must make them in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import Average, Reduction, choose_op, listed
from frontends.mxnet.library import mx
from frontends.mxnet.tensors import LIBRARY, as_array, as_tensor

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]

# allreduce


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: OpName | None = None,
) -> Any:
    """Return `tensor` reduced over the ranks of a process set.

    op                                 Average by default, Sum, Adasum, Min, Max, Product
    prescale_factor, postscale_factor  factors of the tensor before and of the result after the reduction
    average                            deprecated: True means op=Average, False op=Sum
    priority                           accepted and ignored

    Raises ValueError or TypeError for a bad argument or a name that is in flight; HorovodInternalError if the ranks
    disagree or a rank is lost.
    """
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.allreduce(tensor, None, how).synchronize()


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: OpName | None = None,
) -> Any:
    """`allreduce` in place; returns `tensor`."""
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.allreduce(tensor, tensor, how).synchronize()


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: OpName | None = None,
) -> list[Any]:
    """`allreduce` of several tensors as one operation; returns a list."""
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return list(LIBRARY.grouped_allreduce(tensors, None, how).synchronize())


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: OpName | None = None,
) -> list[Any]:
    """`grouped_allreduce` in place; returns a list of the tensors."""
    given = listed(tensors)
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return list(LIBRARY.grouped_allreduce(given, given, how).synchronize())


# allgather


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the tensors of all ranks, concatenated along the first dimension, which may differ. Raises as
    `allreduce`; `priority` is ignored."""
    return LIBRARY.allgather(tensor, name, process_set).synchronize()


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of several tensors as one operation; returns a list."""
    return list(LIBRARY.grouped_allgather(tensors, name, process_set).synchronize())


# broadcast


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of `root_rank`, a rank of the world, on all ranks of the process set. Raises as `allreduce`,
    and ValueError if the root is not in the set; `priority` is ignored."""
    return LIBRARY.broadcast(tensor, None, root_rank, name, process_set).synchronize()


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`broadcast` in place; returns `tensor`."""
    return LIBRARY.broadcast(tensor, tensor, root_rank, name, process_set).synchronize()


# alltoall


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send parts of `tensor`, cut along the first dimension, to all ranks; return the received parts in rank order.

    splits   rows for each rank, as an array of ints or a list; equal parts by default

    With splits the result is a pair: also the number of rows received from each rank, an int32 array. Raises
    ValueError for splits that do not fit, otherwise as `allreduce`; `priority` is ignored.
    """
    given = None if splits is None else _counts(splits)

    def finish(came: Any, rows: Any) -> Any:
        return came if splits is None else (came, as_tensor(rows.astype(np.int32), tensor))

    return LIBRARY.alltoall(tensor, given, name, process_set, finish).synchronize()


def _counts(splits: Any) -> list[int]:
    array = as_array(splits, "splits") if isinstance(splits, mx.nd.NDArray) else np.asarray(splits)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"splits={splits!r}: must be ints, one for each rank")
    return [int(count) for count in array]


# reducescatter


def reducescatter(
    tensor: Any,
    op: OpName = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce `tensor` over the ranks and return this rank's rows of the result; lower ranks get the larger parts.
    Average and Sum only, otherwise as `allreduce`."""
    how = Reduction(op, name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.reducescatter(tensor, how).synchronize()


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: OpName = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several tensors; returns a list."""
    how = Reduction(op, name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.grouped_reducescatter(tensors, how).synchronize()
