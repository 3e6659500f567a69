"""Horovod's asynchronous and in-place operations on tensors. They may be called in any order and from any thread.

Ranks match calls by name. Calls without a name are numbered, with one count for each kind and process set, so all ranks
must make them in the same order. The differentiable operations are in autograd.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from collectives import Communicator, OpName, ProcessSet, global_process_set
from frontends.horovod import (
    Average,
    ErrorFeedback,
    Handle,
    Handles,
    as_horovod,
    check_linear,
    choose_op,
    communicator_of,
    full_name,
    root_in,
    rows_for,
    scale_options,
)
from frontends.torch.tensors import as_array, as_tensor, writable_array


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor for a result. Raises TypeError as `as_array`."""
    as_array(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _start(begin: Callable[[], Any], finish: Callable[[Any], Any]) -> Handle:
    with as_horovod():
        return Handle(begin(), finish)


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
    output = _empty_like(tensor)
    return _allreduce(tensor, output, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


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
    return _allreduce(tensor, tensor, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


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
    result: torch.Tensor = handle.synchronize()
    return result


def _allreduce(
    tensor: torch.Tensor,
    output: torch.Tensor,
    op: OpName,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    comm = communicator_of(process_set)
    target = writable_array(output)
    source = target if output is tensor else as_array(tensor)
    scales, label = scale_options(prescale, postscale), full_name(comm, "allreduce", name)
    return _start(lambda: comm.allreduce_async(source, op, out=target, name=label, **scales), lambda _: output)


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
    outputs = [_empty_like(tensor) for tensor in tensors]
    return _grouped(tensors, outputs, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


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
    given = list(tensors)
    return _grouped(given, given, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


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
    result: list[torch.Tensor] = handle.synchronize()
    return result


def _grouped(
    tensors: Sequence[torch.Tensor],
    outputs: list[torch.Tensor],
    op: OpName,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    comm = communicator_of(process_set)
    targets = [writable_array(output, f"tensors[{index}]") for index, output in enumerate(outputs)]
    sources = [
        target if output is tensor else as_array(tensor, f"tensors[{index}]")
        for index, (tensor, output, target) in enumerate(zip(tensors, outputs, targets, strict=True))
    ]
    return _combine(comm, sources, targets, op, name, prescale, postscale, outputs)


def _combine(
    comm: Communicator,
    sources: list[Any],
    targets: list[Any],
    op: OpName,
    name: str | None,
    prescale: float,
    postscale: float,
    result: Any,
) -> Handle:
    scales, label = scale_options(prescale, postscale), full_name(comm, "grouped_allreduce", name)
    return _start(
        lambda: comm.grouped_allreduce_async(sources, op, out=targets, name=label, **scales), lambda _: result
    )


def combine_arrays_async(
    arrays: list[Any],
    name: str,
    op: OpName,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce_async_` of NumPy arrays."""
    comm = communicator_of(process_set)
    return _combine(comm, arrays, arrays, op, name, prescale_factor, postscale_factor, arrays)


def compressed_async(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    op: OpName,
    label: str | None,
    names: Sequence[str],
    feedback: ErrorFeedback,
    process_set: ProcessSet,
) -> Handle:
    """Begin to reduce tensors as one operation, with a lossy compression. Raises TypeError for tensors on a GPU.

    names   of the tensors in the memory of the compression
    """
    comm = communicator_of(process_set)
    targets = [writable_array(output) for output in outputs]
    pairs = zip(tensors, outputs, targets, strict=True)
    sources = [target if output is tensor else as_array(tensor) for tensor, output, target in pairs]
    name = full_name(comm, "compressed", label)
    return _start(lambda: feedback.begin(comm, sources, targets, op, name, names), lambda _: list(outputs))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: OpName, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse COO tensor by an allgather of indices and values. Average and Sum only.

    Returns a function that waits for the result and returns a coalesced sparse tensor.
    """
    check_linear(op, "allreduce of a sparse tensor")
    comm = communicator_of(process_set)
    coalesced = tensor.coalesce()
    label = full_name(comm, "sparse_allreduce", name)
    indices = allgather_async(coalesced.indices().t().contiguous(), f"{label}.indices", process_set)
    values = allgather_async(coalesced.values(), f"{label}.values", process_set)

    def finish() -> torch.Tensor:
        where, what = indices.synchronize(), values.synchronize()
        if op == Average:
            what = what / comm.size
        return torch.sparse_coo_tensor(where.t(), what, coalesced.shape, check_invariants=True).coalesce()

    return finish


# allgather


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to concatenate the tensors of all ranks along the first dimension, which may differ."""
    comm = communicator_of(process_set)
    source, label = as_array(tensor), full_name(comm, "allgather", name)
    return _start(lambda: comm.allgather_async(source, name=label), as_tensor)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """allgather_async of several tensors as one operation; its result is a list."""
    comm = communicator_of(process_set)
    sources = [as_array(tensor, f"tensors[{index}]") for index, tensor in enumerate(tensors)]
    label = full_name(comm, "grouped_allgather", name)
    return _start(
        lambda: comm.grouped_allgather_async(sources, name=label), lambda arrays: [as_tensor(array) for array in arrays]
    )


# broadcast


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to send the tensor of `root_rank`, a rank of the world, to all ranks of the set, into a new tensor."""
    return _broadcast(tensor, _empty_like(tensor), root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`broadcast_async` in place."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """broadcast in place; returns `tensor`."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).synchronize()
    return result


def _broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Handle:
    comm = communicator_of(process_set)
    root = root_in(process_set, root_rank)
    target = writable_array(output)
    source = target if output is tensor else as_array(tensor)
    label = full_name(comm, "broadcast", name)
    return _start(lambda: comm.broadcast_async(source, root, out=target, name=label), lambda _: output)


# alltoall


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin to send parts of `tensor`, cut along the first dimension, to all ranks.

    splits   rows for each rank; equal parts by default

    `synchronize` returns the received tensor; with splits, also the number of rows received from each rank. Raises
    ValueError for splits that do not fit.
    """
    comm = communicator_of(process_set)
    # always with splits: ranks may have different numbers of rows
    given = rows_for(tensor.shape, splits.tolist() if isinstance(splits, torch.Tensor) else splits, comm.size)
    source, label = as_array(tensor), full_name(comm, "alltoall", name)
    kind = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32

    def finish(both: Any) -> Any:
        came = as_tensor(both[0])
        return came if splits is None else (came, torch.from_numpy(np.asarray(both[1])).to(kind))

    return _start(lambda: comm.alltoall_async(source, given, return_splits=True, name=label), finish)


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
    comm = communicator_of(process_set)
    source = as_array(tensor)
    check_linear(op, "reducescatter")
    scales, label = scale_options(prescale_factor, postscale_factor), full_name(comm, "reducescatter", name)
    return _start(lambda: comm.reduce_scatter_async(source, op, name=label, **scales), as_tensor)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handles:
    """reducescatter_async of several tensors; the handle's result is a list."""
    comm = communicator_of(process_set)
    label = full_name(comm, "grouped_reducescatter", name)
    return Handles(
        [
            reducescatter_async(tensor, f"{label}.{index}", op, process_set, prescale_factor, postscale_factor)
            for index, tensor in enumerate(tensors)
        ]
    )
