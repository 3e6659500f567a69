"""torch.distributed's arguments -> the communicator's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from frontends.torch.tensors import writable_array

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


def single(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"tensors: has {len(tensors)}, must have one; a process has one device here")
    return tensors[0]


def combining(opts: Any) -> dict[str, Any]:
    """op, and the factor of a PREMUL_SUM, as the communicator's arguments."""
    kind = opts.reduceOp.op
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        return {"op": "sum", "prescale": float(opts.reduceOp.factor)}
    return {"op": _OPS[kind]}


def flat(tensor: torch.Tensor, name: str) -> Any:
    """The elements of a contiguous tensor, to be written to."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: must be contiguous")
    return writable_array(tensor, name).reshape(-1)


def distribute(outputs: Sequence[torch.Tensor]) -> Callable[[list[Any]], None]:
    """Cuts what came into the tensors that it is for."""

    def finish(values: list[Any]) -> None:
        if not outputs:
            return
        (whole,) = values
        wanted = sum(output.numel() for output in outputs)
        if whole.size != wanted:
            raise ValueError(f"output tensors: have {wanted} elements together, and {whole.size} came")
        start = 0
        for output in outputs:
            piece = whole[start : start + output.numel()]
            writable_array(output)[...] = piece.reshape(tuple(output.shape))
            start += output.numel()

    return finish
