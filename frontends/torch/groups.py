"""Conversion of torch.distributed's arguments to those of the communicator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from frontends.torch.tensors import as_array, as_tensor, bits_of, form_of, sparse_sum, writable_array

_OPS: Final = {
    dist.ReduceOp.RedOpType.SUM: "sum",
    dist.ReduceOp.RedOpType.AVG: "average",
    dist.ReduceOp.RedOpType.PRODUCT: "prod",
    dist.ReduceOp.RedOpType.MIN: "min",
    dist.ReduceOp.RedOpType.MAX: "max",
    dist.ReduceOp.RedOpType.BAND: "band",
    dist.ReduceOp.RedOpType.BOR: "bor",
    dist.ReduceOp.RedOpType.BXOR: "bxor",
}
_LOGICAL_OPS: Final = {dist.ReduceOp.RedOpType.SUM: "bor", dist.ReduceOp.RedOpType.PRODUCT: "band"}
"""The ops on bool tensors: as in torch, where True + True is True."""
_COMBINE: Final[dict[Any, Callable[..., torch.Tensor]]] = {
    dist.ReduceOp.RedOpType.SUM: torch.add,
    dist.ReduceOp.RedOpType.PRODUCT: torch.mul,
    dist.ReduceOp.RedOpType.MIN: torch.minimum,
    dist.ReduceOp.RedOpType.MAX: torch.maximum,
    dist.ReduceOp.RedOpType.BAND: torch.bitwise_and,
    dist.ReduceOp.RedOpType.BOR: torch.bitwise_or,
    dist.ReduceOp.RedOpType.BXOR: torch.bitwise_xor,
}
"""For tensors of one rank."""


def single(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"tensors: has {len(tensors)}, must have one; a process has one device here")
    return tensors[0]


def combining(opts: Any, tensors: Iterable[torch.Tensor]) -> dict[str, Any]:
    """Return op and, for PREMUL_SUM, the scale factor as the communicator's arguments, to reduce these tensors.

    Raises RuntimeError, as gloo, for AVG of integers or bool on the CPU: the mean is no integer. NCCL truncates. See
    `whole_mean` for an allreduce of one tensor.
    """
    kind = opts.reduceOp.op
    if kind in _LOGICAL_OPS and all(tensor.dtype is torch.bool for tensor in tensors):
        return {"op": _LOGICAL_OPS[kind]}
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        return {"op": "sum", "prescale": float(opts.reduceOp.factor)}
    if kind == dist.ReduceOp.RedOpType.AVG:
        _refuse_integers(tensors)
    return {"op": _OPS[kind]}


def _refuse_integers(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if _has_integers(tensor):
            raise RuntimeError(
                f"op=AVG: is not for {tensor.dtype} on the CPU, whose mean is no integer; use SUM and divide"
            )


def _has_integers(tensor: torch.Tensor) -> bool:
    """True for integers and bool on the CPU."""
    return tensor.device.type == "cpu" and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def averages_integers(opts: Any, tensor: torch.Tensor) -> bool:
    """Return True for AVG of a tensor of integers, not bool, on the CPU."""
    is_mean = opts.reduceOp.op == dist.ReduceOp.RedOpType.AVG
    return bool(is_mean) and tensor.dtype is not torch.bool and _has_integers(tensor)


def whole_mean(
    tensor: torch.Tensor, array: Any, size: int
) -> tuple[list[tuple[tuple[Any, ...], dict[str, Any]]], Callable[[list[Any]], None]]:
    """Return the allreduces by which a tensor of integers gets its mean over the ranks, and a function that puts it
    there. Lightning averages its counters where the backend is not gloo.

    The function raises RuntimeError, with the tensor unchanged, on all ranks if a mean is no integer. The remainders of
    the ranks' numbers by `size` tell: their sum is divisible by it.
    """
    rest = np.asarray(array % size, np.int64)

    def finish(values: list[Any]) -> None:
        mean, rests = values
        if np.any(rests % size):
            raise RuntimeError(
                f"op=AVG: the mean of {tensor.dtype} on the CPU is no integer in {np.count_nonzero(rests % size)} of "
                f"{tensor.numel()} elements; use SUM and divide"
            )
        put(as_tensor(mean), tensor)

    return [((array,), {"op": "average"}), ((rest,), {"op": "sum"})], finish


def combined(tensors: Sequence[Any], opts: Any) -> tuple[Any, Callable[[list[Any]], None] | None]:
    """Combine a rank's tensors in the first of them, for an allreduce of it; return that one, and a function that then
    copies it into the others, None if there are none.
    """
    if len(tensors) == 1:
        return tensors[0], None
    combine = _COMBINE.get(opts.reduceOp.op)
    if not tensors or combine is None:
        allowed = ", ".join(kind.name for kind in _COMBINE)
        raise ValueError(f"op={opts.reduceOp.op.name}: {len(tensors)} tensors; must be one, or op one of {allowed}")
    _check_alike(tensors)
    first, *others = tensors
    with torch.no_grad():
        first.copy_(functools.reduce(combine, tensors))
    return first, functools.partial(_copy, first, others)


def shown(tensors: Sequence[Any], opts: Any) -> tuple[Any, Callable[[list[Any]], None] | None]:
    """Return the tensor of number opts.rootTensor, for a broadcast, and a function that then copies it into the others,
    None if there are none.
    """
    if not 0 <= opts.rootTensor < len(tensors):
        raise ValueError(f"rootTensor={opts.rootTensor}: must be the number of one of the {len(tensors)} tensors")
    _check_alike(tensors)
    root = tensors[opts.rootTensor]
    others = [tensor for tensor in tensors if tensor is not root]
    return root, functools.partial(_copy, root, others) if others else None


def _check_alike(tensors: Sequence[torch.Tensor]) -> None:
    kinds = [(list(tensor.shape), tensor.dtype) for tensor in tensors]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError(f"tensors: are of shapes and dtypes {kinds}; several must be alike")


def _copy(source: torch.Tensor, targets: Sequence[torch.Tensor], _: list[Any]) -> None:
    for target in targets:
        put(source, target)


def flat(tensor: torch.Tensor, name: str, *, moved: bool = False) -> Any:
    """Return the elements of a contiguous tensor as a writable array of one dimension; `moved` as for `as_array`."""
    return writable_array(tensor, name, moved=moved).reshape(-1)


def check_count(tensors: Sequence[torch.Tensor], size: int, name: str) -> None:
    if len(tensors) != size:
        raise ValueError(f"{name}: has {len(tensors)} tensors, must have {size}, one for each rank")


def check_lists(lists: Sequence[Sequence[torch.Tensor]], count: int, size: int, name: str) -> None:
    counts = [len(tensors) for tensors in lists]
    if counts != [count] * size:
        raise ValueError(f"{name}: are of lengths {counts}, must be {size}, one for each rank, of length {count}")


def check_shares(whole: torch.Tensor, share: torch.Tensor, size: int, name: str) -> None:
    if whole.numel() != size * share.numel():
        raise ValueError(f"{name}: has {whole.numel()} elements, must have {size} times {share.numel()}")
    if whole.dtype != share.dtype:
        raise TypeError(f"{name}: has dtype {whole.dtype}, must have {share.dtype}, as its shares have")


def check_dtypes(outputs: Sequence[torch.Tensor], given: torch.Tensor, name: str) -> None:
    for output in outputs:
        if output.dtype != given.dtype:
            raise TypeError(f"{name}: has dtype {output.dtype}, must have {given.dtype}, as the input has")


def check_part(output: torch.Tensor, own: torch.Tensor, name: str) -> None:
    check_dtypes([output], own, name)
    if output.numel() != own.numel():
        raise ValueError(f"{name}: has {output.numel()} elements, must have {own.numel()}, as this rank's input has")


def joined(tensors: Sequence[torch.Tensor], name: str, *, moved: bool = False) -> Any:
    """Return the elements of several tensors of one dtype in one new array; `moved` as for `as_array`."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(f"{name}: are of dtypes {tensors[0].dtype} and {tensor.dtype}; must have one")
    return as_array(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]), moved=moved)


def elements(tensor: torch.Tensor, rows: Iterable[int]) -> list[int]:
    """Return the numbers of elements of numbers of rows."""
    width = tensor.numel() // max(tensor.shape[0], 1)
    return [count * width for count in rows]


def contiguous(output: torch.Tensor) -> tuple[torch.Tensor, Callable[[list[Any]], None] | None]:
    """Return a contiguous tensor for the result of an operation, and a function that then copies it into `output`; that
    tensor itself, and None, if it is contiguous.
    """
    if output.is_contiguous():
        return output, None
    target = torch.empty_like(output, memory_format=torch.contiguous_format)
    return target, lambda _: put(target, output)


def sizes(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the number of elements of each tensor."""
    return [tensor.numel() for tensor in tensors]


def distribute(outputs: Sequence[torch.Tensor]) -> Callable[[list[Any]], None]:
    """Return a function that cuts an operation's result into the output tensors, which have its sizes."""

    def finish(values: list[Any]) -> None:
        if not outputs:
            return
        whole, kind = as_tensor(values[0]), outputs[0].dtype
        pieces = (whole if whole.dtype is kind else whole.view(kind)).split(sizes(outputs))
        for output, piece in zip(outputs, pieces, strict=True):
            put(piece, output)

    return finish


def distribute_each(outputs: Iterable[Sequence[torch.Tensor]]) -> Callable[[list[Any]], None]:
    """`distribute` for every result of a grouped operation."""
    each = [distribute(some) for some in outputs]

    def finish(values: list[Any]) -> None:
        for part, value in zip(each, values[0], strict=True):
            part([value])

    return finish


def sparse(tensor: torch.Tensor, opts: Any) -> tuple[list[Any], Callable[[list[Any]], None]]:
    """Return the arrays of a sparse COO tensor to gather from all ranks, and a function that makes their sum of the
    result, in place.
    """
    if opts.reduceOp.op != dist.ReduceOp.RedOpType.SUM:
        raise ValueError(f"op={opts.reduceOp.op.name}: sparse tensors can be combined by SUM only")
    mine = tensor.detach().coalesce()
    form = form_of(mine)

    def finish(values: list[Any]) -> None:
        _, where, what = (as_tensor(array) for array in values[0])
        total = sparse_sum(where, what, tensor.shape)
        # the result of `detach` shares the values of a sparse tensor, but not their number
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(total)

    return [as_array(form), as_array(mine.indices().t().contiguous()), as_array(mine.values())], finish


def put(piece: torch.Tensor, output: torch.Tensor) -> None:
    """Copy a part of the result into its output tensor."""
    target, piece = bits_of(output.detach()), bits_of(piece.view(output.shape))
    if output.is_inference():  # such a tensor can be written to in that mode only, and this may be another thread
        with torch.inference_mode():
            target.copy_(piece)
    else:
        target.copy_(piece)
