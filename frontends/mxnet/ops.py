"""Horovod's operations on MXNet's arrays.

Every public operation waits until MXNet's engine has computed its tensor, and returns when the result is there, so an
error is raised by the call itself. Horovod queues operations in the engine: `priority`, which orders that queue, is
accepted here and ignored. Results are not part of a recorded graph, as in Horovod. Training begins several operations
before it waits for one: see `begin_allreduce`.

Ranks match calls by name. Calls without a name are numbered, with one count for each kind and process set, so all ranks
must make them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives import OpName, ProcessSet, global_process_set
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
from frontends.mxnet.library import mx
from frontends.mxnet.tensors import as_array, as_tensor, empty_like


def _start(begin: Callable[[], Any], finish: Callable[[Any], Any]) -> Handle:
    with as_horovod():
        return Handle(begin(), finish)


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
    op, output = choose_op(op, average), empty_like(tensor)
    begin_allreduce([tensor], [output], op, name, prescale_factor, postscale_factor, process_set).synchronize()
    return output


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
    op = choose_op(op, average)
    begin_allreduce([tensor], [tensor], op, name, prescale_factor, postscale_factor, process_set).synchronize()
    return tensor


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
    op, outputs = choose_op(op, average), [empty_like(tensor, f"tensors[{i}]") for i, tensor in enumerate(tensors)]
    begin_grouped(tensors, outputs, op, name, prescale_factor, postscale_factor, process_set).synchronize()
    return outputs


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
    op, outputs = choose_op(op, average), list(tensors)
    begin_grouped(outputs, outputs, op, name, prescale_factor, postscale_factor, process_set).synchronize()
    return outputs


def _arrays(tensors: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the arrays of inputs and outputs. Waits until the engine has computed all tensors."""
    several = len(tensors) > 1
    names = [f"tensors[{index}]" if several else "tensor" for index in range(len(tensors))]
    targets = [as_array(output, name, write=True) for output, name in zip(outputs, names, strict=True)]
    sources = [
        target if output is tensor else as_array(tensor, name)
        for tensor, output, target, name in zip(tensors, outputs, targets, names, strict=True)
    ]
    return sources, targets


def begin_allreduce(
    tensors: Sequence[Any],
    outputs: Sequence[Any],
    op: OpName,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    """Begin to reduce one tensor into one output, which may be the tensor, when the engine has computed the tensor."""
    comm = communicator_of(process_set)
    (source,), (target,) = _arrays(tensors, outputs)
    scales, label = scale_options(prescale, postscale), full_name(comm, "allreduce", name)
    return _start(lambda: comm.allreduce_async(source, op, out=target, name=label, **scales), lambda _: outputs)


def begin_grouped(
    tensors: Sequence[Any],
    outputs: Sequence[Any],
    op: OpName,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    """`begin_allreduce` of several tensors as one operation."""
    comm = communicator_of(process_set)
    sources, targets = _arrays(tensors, outputs)
    scales, label = scale_options(prescale, postscale), full_name(comm, "grouped_allreduce", name)
    return _start(
        lambda: comm.grouped_allreduce_async(sources, op, out=targets, name=label, **scales), lambda _: outputs
    )


def begin_compressed(
    tensors: Sequence[Any],
    op: OpName,
    name: str,
    memory: Sequence[str],
    feedback: ErrorFeedback,
    process_set: ProcessSet,
) -> Handle:
    """Begin to reduce tensors in place as one operation, with a lossy compression.

    memory  names of the tensors in the memory of the compression
    """
    comm = communicator_of(process_set)
    _, targets = _arrays(tensors, tensors)
    label = full_name(comm, "compressed", name)
    return _start(lambda: feedback.begin(comm, targets, targets, op, label, memory), lambda _: tensors)


# allgather


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the tensors of all ranks, concatenated along the first dimension, which may differ. Raises as
    `allreduce`; `priority` is ignored."""
    comm = communicator_of(process_set)
    source, label = as_array(tensor), full_name(comm, "allgather", name)
    return _start(
        lambda: comm.allgather_async(source, name=label), lambda array: as_tensor(array, tensor)
    ).synchronize()


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of several tensors as one operation; returns a list."""
    comm = communicator_of(process_set)
    sources = [as_array(tensor, f"tensors[{index}]") for index, tensor in enumerate(tensors)]
    label = full_name(comm, "grouped_allgather", name)

    def finish(arrays: Any) -> list[Any]:
        return [as_tensor(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]

    found: list[Any] = _start(lambda: comm.grouped_allgather_async(sources, name=label), finish).synchronize()
    return found


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
    output = empty_like(tensor)
    begin_broadcast(tensor, output, root_rank, name, process_set).synchronize()
    return output


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`broadcast` in place; returns `tensor`."""
    begin_broadcast(tensor, tensor, root_rank, name, process_set).synchronize()
    return tensor


def begin_broadcast(tensor: Any, output: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Handle:
    """Begin to send a tensor into an output, which may be the tensor, when the engine has computed the tensor."""
    comm = communicator_of(process_set)
    root = root_in(process_set, root_rank)
    (source,), (target,) = _arrays([tensor], [output])
    label = full_name(comm, "broadcast", name)
    return _start(lambda: comm.broadcast_async(source, root, out=target, name=label), lambda _: output)


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
    comm = communicator_of(process_set)
    # always with splits: ranks may have different numbers of rows
    given = rows_for(tensor.shape, None if splits is None else _counts(splits), comm.size)
    source, label = as_array(tensor), full_name(comm, "alltoall", name)

    def finish(both: Any) -> Any:
        came = as_tensor(both[0], tensor)
        return came if splits is None else (came, as_tensor(np.asarray(both[1], np.int32), tensor))

    return _start(lambda: comm.alltoall_async(source, given, return_splits=True, name=label), finish).synchronize()


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
    return _begin_reducescatter(
        tensor, op, name, process_set, prescale_factor, postscale_factor, "tensor"
    ).synchronize()


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
    label = full_name(communicator_of(process_set), "grouped_reducescatter", name)
    handles = [
        _begin_reducescatter(
            tensor, op, f"{label}.{index}", process_set, prescale_factor, postscale_factor, f"tensors[{index}]"
        )
        for index, tensor in enumerate(tensors)
    ]
    return Handles(handles).synchronize()


def _begin_reducescatter(
    tensor: Any,
    op: OpName,
    name: str | None,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    argument: str,
) -> Handle:
    comm = communicator_of(process_set)
    source = as_array(tensor, argument)
    check_linear(op, "reducescatter")
    scales, label = scale_options(prescale, postscale), full_name(comm, "reducescatter", name)
    return _start(
        lambda: comm.reduce_scatter_async(source, op, name=label, **scales), lambda array: as_tensor(array, tensor)
    )
