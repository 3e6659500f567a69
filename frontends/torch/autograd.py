"""Horovod's synchronous operations, which are differentiable.

| forward       | gradient, as Horovod defines it                                          |
| ------------- | ------------------------------------------------------------------------ |
| allreduce     | allreduce of the gradient                                                |
| allgather     | this rank's rows of the average of all ranks' gradients                  |
| broadcast     | the average of all ranks' gradients on the root, zeros elsewhere         |
| alltoall      | alltoall back                                                            |
| reducescatter | allgather of the gradients, times the number of ranks for Sum            |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import (
    Average,
    ErrorFeedback,
    Reduction,
    Sum,
    choose_op,
    is_lossy,
    listed,
    names_of,
    root_in,
    rows_for,
)
from frontends.torch import ops
from frontends.torch.compression import AnyCompression, Compression
from frontends.torch.tensors import LIBRARY, MOVING

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *how: Any) -> torch.Tensor:
        ctx.how = how
        return ops.allreduce_async(tensor, None, name, *how).synchronize()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _Allreduce.apply(gradient, None, *ctx.how), None, None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, name: str | None, how: tuple[Any, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.how = how
        return tuple(ops.grouped_allreduce_async(tensors, None, name, *how).synchronize())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *_GroupedAllreduce.apply(None, ctx.how, *gradients)


class _CompressedAllreduce(torch.autograd.Function):  # type: ignore[misc]
    """With a lossy compression; the gradient is not compressed."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, feedback: ErrorFeedback, op: OpName, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, 1.0, 1.0, process_set
        how, names = Reduction(op, name, 1.0, 1.0, process_set), names_of(name, len(tensors))
        return tuple(LIBRARY.compressed(tensors, None, how, names, feedback).synchronize())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, None, None, *_GroupedAllreduce.apply(None, ctx.how, *gradients)


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, argument: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        handle = MOVING.grouped_allgather(tensors, name, process_set, argument)
        ctx.rows = [tensor.shape[0] if tensor.ndim else 1 for tensor in tensors]
        ctx.process_set = process_set
        return tuple(handle.synchronize())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.process_set
        reduced = _GroupedAllreduce.apply(None, (Average, 1.0, 1.0, process_set), *gradients)
        own = torch.tensor(ctx.rows, device="cpu")
        table = ops.allgather_async(own, None, process_set).synchronize().reshape(-1, len(own))
        before = table[: process_set.rank()].sum(0).tolist()
        parts = zip(reduced, before, ctx.rows, strict=True)
        return None, None, None, *(whole.narrow(0, start, rows) for whole, start, rows in parts)


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.process_set, ctx.root = process_set, root_in(process_set, root_rank)
        return ops.broadcast_async(tensor, root_rank, name, process_set).synchronize()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        reduced = _Allreduce.apply(gradient, None, Average, 1.0, 1.0, ctx.process_set)
        if ctx.process_set.rank() != ctx.root:
            reduced = reduced.masked_fill(torch.ones((), dtype=torch.bool, device=reduced.device), 0)  # keeps the graph
        return reduced, None, None, None


class _Alltoall(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        ctx.process_set = process_set
        if splits is None:
            splits = rows_for(MOVING.as_array(tensor, "tensor").shape, None, process_set.size() or 1)
        result, received = ops.alltoall_async(tensor, splits, name, process_set).synchronize()
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
        back, _ = _Alltoall.apply(gradient, ctx.received, None, ctx.process_set)
        return back, None, None, None


class _Reducescatter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, name: str | None, how: tuple[Any, ...], argument: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, process_set, prescale, postscale = how
        reduction = Reduction(op, name, prescale, postscale, process_set)
        return tuple(LIBRARY.grouped_reducescatter(tensors, reduction, argument).synchronize())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, process_set, prescale, postscale = ctx.how
        factor = prescale * postscale * ((process_set.size() or 1) if op == Sum else 1)
        gathered = _Allgather.apply(None, process_set, "gradients[{}]", *gradients)
        return None, None, None, *(part if factor == 1 else part * factor for part in gathered)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` over the ranks of a process set into a new tensor; the result is bit-identical on all ranks.

    op            Average by default, Sum, Adasum, Min, Max, Product
    average       deprecated: True means op=Average, False op=Sum
    compression   Compression.none, .fp16, .bf16, or an object that Compression.int8, .topk or .powersgd has made

    Raises ValueError or TypeError for a bad argument; HorovodInternalError (a RuntimeError) on every rank if they
    disagree about type, shape or op, or a rank is lost.
    """
    if is_lossy(compression):
        factors = prescale_factor, postscale_factor
        return grouped_allreduce([tensor], average, name, compression, op, *factors, process_set)[0]
    small, ctx = compression.compress(tensor)
    how = choose_op(op, average), prescale_factor, postscale_factor, process_set
    return compression.decompress(_Allreduce.apply(small, name, *how), ctx)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allreduce of several tensors as one operation."""
    tensors = listed(tensors)
    if is_lossy(compression):
        chosen = choose_op(op, average)
        compression.check(chosen, prescale_factor, postscale_factor)
        return list(_CompressedAllreduce.apply(name, compression, chosen, process_set, *tensors))
    compressed = [compression.compress(tensor) for tensor in tensors]
    how = choose_op(op, average), prescale_factor, postscale_factor, process_set
    reduced = _GroupedAllreduce.apply(name, how, *(small for small, _ in compressed))
    return [compression.decompress(small, ctx) for small, (_, ctx) in zip(reduced, compressed, strict=True)]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, which may differ."""
    return _Allgather.apply(name, process_set, "tensor", tensor)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather of several tensors as one operation."""
    return list(_Allgather.apply(name, process_set, "tensors[{}]", *listed(tensors)))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensor of `root_rank`, a rank of the world, as a new tensor."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send parts of `tensor`, cut along the first dimension, to all ranks; return the received parts in rank order.

    splits   rows for each rank, equal parts by default. If given, the result is a pair: the tensor, and the number of
             rows received from each rank. Raises ValueError if they do not fit the tensor
    """
    result, received = _Alltoall.apply(tensor, splits, name, process_set)
    return result if splits is None else (result, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce `tensor` over the ranks and return this rank's rows; lower ranks get the larger parts. Average and Sum
    only."""
    how = op, process_set, prescale_factor, postscale_factor
    return _scattered([tensor], name, compression, how, "tensor")[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter of several tensors."""
    how = op, process_set, prescale_factor, postscale_factor
    return _scattered(listed(tensors), name, compression, how, "tensors[{}]")


def _scattered(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    compression: AnyCompression,
    how: tuple[Any, ...],
    argument: str,
) -> list[torch.Tensor]:
    compressed = [compression.compress(tensor) for tensor in tensors]
    reduced = _Reducescatter.apply(name, how, argument, *(small for small, _ in compressed))
    return [compression.decompress(small, ctx) for small, (_, ctx) in zip(reduced, compressed, strict=True)]
