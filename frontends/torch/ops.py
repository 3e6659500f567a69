"""Horovod's operations on tensors, asynchronous and in place: named, in any order, from any thread.

Without a name operations are numbered, one count for each kind and process set; so those must be called in one order.
The differentiable forms are in autograd.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from collectives import Communicator
from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.handles import Handle, Handles
from frontends.horovod.names import Average, Sum, choose_op, communicator_of, full_name, root_in
from frontends.horovod.splits import rows_for
from frontends.torch.tensors import as_array, as_tensor, writable_array


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor for a result. Raises TypeError for what `as_array` does not take."""
    as_array(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _scale(factor: float) -> float | None:
    return None if factor == 1.0 else factor


def _start(begin: Callable[[], Any], finish: Callable[[Any], Any]) -> Handle:
    with as_horovod():
        return Handle(begin(), finish)


# allreduce


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin to combine `tensor` over the ranks of a process set, into a new tensor.

    op                                 Average by default, Sum, Adasum, Min, Max, Product
    prescale_factor, postscale_factor  what the tensor is multiplied by before, and the result after
    average                            deprecated: True means op=Average, False op=Sum

    Raises ValueError or TypeError for a bad argument, also for a name in flight; HorovodInternalError after a failure.
    """
    output = _empty_like(tensor)
    return _allreduce(tensor, output, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
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
    op: str | None = None,
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
    op: str,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    comm = communicator_of(process_set)
    target = writable_array(output)
    source = target if output is tensor else as_array(tensor)
    options = {"prescale": _scale(prescale), "postscale": _scale(postscale), "name": full_name(comm, "allreduce", name)}
    return _start(lambda: comm.allreduce_async(source, op, out=target, **options), lambda _: output)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """allreduce_async of several tensors as one operation; a list of results."""
    outputs = [_empty_like(tensor) for tensor in tensors]
    return _grouped(tensors, outputs, choose_op(op, average), name, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
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
    op: str | None = None,
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
    op: str,
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
    op: str,
    name: str | None,
    prescale: float,
    postscale: float,
    result: Any,
) -> Handle:
    options = {
        "prescale": _scale(prescale),
        "postscale": _scale(postscale),
        "name": full_name(comm, "grouped_allreduce", name),
    }
    return _start(lambda: comm.grouped_allreduce_async(sources, op, out=targets, **options), lambda _: result)


def combine_arrays_async(
    arrays: list[Any],
    name: str,
    op: str,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce_async_` of NumPy arrays."""
    comm = communicator_of(process_set)
    return _combine(comm, arrays, arrays, op, name, prescale_factor, postscale_factor, arrays)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to combine a sparse COO tensor by gathering all ranks' indices and values. Average and Sum only.

    Returns a function that waits for the result, a coalesced sparse tensor.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: sparse tensors can be combined by Average and Sum only")
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
    """Begin to concatenate all ranks' tensors along the first dimension, in which they may differ."""
    comm = communicator_of(process_set)
    source, label = as_array(tensor), full_name(comm, "allgather", name)
    return _start(lambda: comm.allgather_async(source, name=label), as_tensor)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """allgather_async of several tensors as one operation; a list of results."""
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
    """Begin to send the tensor of a rank of the world to all ranks of the set, into a new tensor."""
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

    splits   rows for each rank; by default equal parts

    `synchronize` gives the tensor of what came; with splits, that and how many rows came from each rank.
    Raises ValueError for splits that do not fit.
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
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to combine `tensor` over the ranks and give each its rows of the result. Average and Sum only."""
    comm = communicator_of(process_set)
    source = as_array(tensor)
    options = _scattering(op, prescale_factor, postscale_factor, full_name(comm, "reducescatter", name))
    return _start(lambda: comm.reduce_scatter_async(source, op, **options), as_tensor)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handles:
    """reducescatter_async of several tensors; a handle whose result is the list of results."""
    comm = communicator_of(process_set)
    label = full_name(comm, "grouped_reducescatter", name)
    return Handles(
        [
            reducescatter_async(tensor, f"{label}.{index}", op, process_set, prescale_factor, postscale_factor)
            for index, tensor in enumerate(tensors)
        ]
    )


def _scattering(op: str, prescale: float, postscale: float, name: str) -> dict[str, Any]:
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: reducescatter takes Average and Sum only")
    return {"prescale": _scale(prescale), "postscale": _scale(postscale), "name": name}
