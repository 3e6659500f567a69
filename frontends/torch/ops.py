"""Horovod's asynchronous and in-place operations on tensors. They may be called in any order and from any thread.

Ranks match calls by name. Calls without a name are numbered, with one count for each kind and process set, so all ranks
must make them in the same order. The differentiable operations are in autograd.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectives import OpName, ProcessSet, global_process_set
from collectives.arrays import type_name
from frontends.horovod import (
    Average,
    Handle,
    Handles,
    Reduction,
    check_linear,
    choose_op,
    communicator_of,
    listed,
    naming,
)
from frontends.torch.tensors import LIBRARY, MOVING, form_of, sparse_sum

__all__ = [
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "reducescatter_async",
    "sparse_allreduce_async",
]

# allreduce


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin to reduce `tensor` over the ranks of a process set, into a new tensor.

    op                                 Average by default, Sum, Adasum, Min, Max, Product
    prescale_factor, postscale_factor  factors of the tensor before and of the result after the reduction
    average                            deprecated: True means op=Average, False op=Sum

    Raises ValueError or TypeError for a bad argument or a name that is in flight; HorovodInternalError after a failure.
    """
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.allreduce(tensor, None, how)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`allreduce_async` in place."""
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.allreduce(tensor, tensor, how)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """allreduce in place; returns `tensor`."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return handle.synchronize()


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """allreduce_async of several tensors as one operation; its result is a list."""
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.grouped_allreduce(tensors, None, how)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce_async` in place."""
    given = listed(tensors)
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return LIBRARY.grouped_allreduce(given, given, how)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allreduce_ of several tensors as one operation."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return list(handle.synchronize())


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: OpName, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse COO tensor by an allgather of indices and values. Average and Sum only.

    Returns a function that waits for the result and returns a coalesced sparse tensor.
    """
    check_linear(op, "allreduce of a sparse tensor")
    comm = communicator_of(process_set)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        found = tensor.layout if isinstance(tensor, torch.Tensor) else type_name(tensor)
        raise TypeError(f"tensor: must be a sparse COO tensor, not {found}")
    coalesced = tensor.coalesce()
    parts = [form_of(coalesced, op), coalesced.indices().t().contiguous(), coalesced.values()]
    with naming(comm, "sparse_allreduce", name) as label:
        gathered = grouped_allgather_async(parts, label, process_set)

    def finish() -> torch.Tensor:
        _, where, what = gathered.synchronize()
        if op == Average:
            what = what / comm.size
        return sparse_sum(where, what, coalesced.shape)

    return finish


# allgather


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to concatenate the tensors of all ranks along the first dimension, which may differ."""
    return MOVING.allgather(tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """allgather_async of several tensors as one operation; its result is a list."""
    return MOVING.grouped_allgather(tensors, name, process_set)


# broadcast


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to send the tensor of `root_rank`, a rank of the world, to all ranks of the set, into a new tensor."""
    return MOVING.broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`broadcast_async` in place."""
    return MOVING.broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """broadcast in place; returns `tensor`."""
    return broadcast_async_(tensor, root_rank, name, process_set).synchronize()


# alltoall


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin to send parts of `tensor`, cut along the first dimension, to all ranks.

    splits   rows for each rank; equal parts by default

    `synchronize` returns the received tensor; with splits, also the number of rows received from each rank, as int64 if
    the splits are, else int32. Raises ValueError for splits that do not fit.
    """
    given = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    kind = torch.int64 if isinstance(splits, torch.Tensor) and splits.dtype == torch.int64 else torch.int32

    def finish(came: torch.Tensor, rows: Any) -> Any:
        return came if splits is None else (came, torch.from_numpy(rows).to(kind))

    return MOVING.alltoall(tensor, given, name, process_set, finish)


# reducescatter


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to reduce `tensor` over the ranks and give each its rows of the result. Average and Sum only."""
    return LIBRARY.reducescatter(tensor, Reduction(op, name, prescale_factor, postscale_factor, process_set))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handles:
    """reducescatter_async of several tensors; the handle's result is a list."""
    return LIBRARY.grouped_reducescatter(tensors, Reduction(op, name, prescale_factor, postscale_factor, process_set))
