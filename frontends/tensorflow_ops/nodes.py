"""Collectives on tensors, executed at once or as nodes of a graph, with Horovod's gradients: see docs/jax.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from frontends.horovod import Average, Sum, root_in
from frontends.tensorflow_ops import kernel
from frontends.tensorflow_ops.calls import Call

_STATEFUL: Final = {"agree", "barrier", "join", "rank", "members", "size", "local_rank", "local_size", "included"}


def run(
    call: Call,
    tensors: Sequence[tf.Tensor],
    kinds: Sequence[tf.DType] | None = None,
    ignore_scope: bool = False,
    reserved: bool = False,
) -> list[Any]:
    """Return the results of a call, of the types `kinds`, by default the types of the tensors.

    ignore_scope   use the call's exact name in a graph, not its name in the current name scope
    reserved       the call's name is one of `reserve`

    In a graph, a name that the graph has already is numbered. A call without a name is called after its node: by kind,
    first tensor, and the functions and loops around it. Raises TypeError for a tensor that cannot travel, otherwise as
    kernel.apply.
    """
    if ignore_scope and _in_graph():
        with tf.name_scope("/"):
            return run(call, tensors, kinds, reserved=reserved)
    for tensor in tensors:
        if tensor.dtype.as_datatype_enum not in kernel.DTYPES:
            raise TypeError(f"tensor: is of type {tensor.dtype.name}; must be of numbers or bool")
    name = call.name or f"Ronde{call.kind.capitalize()}" + _suffix(tensors)
    name = _node_name(name)
    if _in_graph():
        graph = tf.compat.v1.get_default_graph()
        known = all(tensor.shape.is_fully_defined() for tensor in tensors)
        call = replace(
            call,
            name=call.name if reserved else graph.unique_name(name, mark_as_used=False) if call.name else "",
            shapes=tuple(tuple(tensor.shape.as_list()) for tensor in tensors) if known else None,
        )
    results = kernel.apply(
        call.text(),
        tensors,
        [tensor.dtype for tensor in tensors] if kinds is None else kinds,
        name,
        stateful=call.kind in _STATEFUL,
    )
    if call.kind in ("allreduce", "broadcast", "compressed") and _in_graph():
        for tensor, result in zip(tensors, results, strict=True):
            result.set_shape(tensor.shape)
    return results


def reserve(name: str) -> str:
    """Return the name that a call would have here, for a call in a branch of a tf.cond that follows: there its name
    would have the scope of the tf.cond, which other ranks may not have."""
    return tf.compat.v1.get_default_graph().unique_name(_node_name(name)) if _in_graph() else name


def _node_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\\/]", "_", name).lstrip("_\\/.") or "Ronde"


def number_of_ranks(call: Call) -> Any:
    """Return the number of ranks of the call's process set; in a graph, that of the world in which it runs."""
    if not _in_graph():
        return call.process_set.size() or 1
    return run(Call("members", None, call.ranks), [], [tf.int32])[0]


def _suffix(tensors: Sequence[tf.Tensor]) -> str:
    """Return the part of a node's name that its first tensor gives, in a graph.

    A constant of the program that a function captures is named by TensorFlow with a number that counts all tensors of
    the process. Ranks differ in it, so it gives no part.
    """
    if not (tensors and _in_graph()) or tensors[0].op.name.isdecimal():
        return ""
    return f"_{tensors[0].name}"


def _in_graph() -> bool:
    return not tf.executing_eagerly()


def _dense(gradients: Sequence[Any], results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the gradients with zeros in place of None."""
    return [
        tf.zeros_like(result) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, result in zip(gradients, results, strict=True)
    ]


@tf.RegisterGradient("RondeCall")  # type: ignore[untyped-decorator]
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _gradient(operation: Any, *gradients: Any) -> list[Any]:
    call = replace(Call.read(operation.get_attr("what")), name=None, shapes=None)
    tensors = list(operation.inputs)[: len(operation.get_attr("T"))]
    back = _BACK[call.kind](call, tensors, list(operation.outputs), gradients)
    return [*back, *[None] * (len(operation.inputs) - len(back))]


def _through_allreduce(call: Call, _: Any, results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    return run(call, _dense(gradients, results))


def _through_compressed(call: Call, _: Any, results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    return run(replace(call, kind="allreduce"), _dense(gradients, results))


def _through_allgather(call: Call, tensors: list[Any], results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    reduced = run(replace(call, kind="allreduce", op=Average), _dense(gradients, results))
    rows = tf.stack([tf.shape(tensor)[0] for tensor in tensors])
    (table,) = run(call, [rows[None]])
    (rank,) = run(replace(call, kind="rank"), [], [tf.int32])
    before = tf.reduce_sum(table[:rank], 0)
    return [
        tf.ensure_shape(whole[before[index] : before[index] + rows[index]], tensor.shape)
        for index, (whole, tensor) in enumerate(zip(reduced, tensors, strict=True))
    ]


def _through_broadcast(call: Call, _: Any, results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    reduced = run(replace(call, kind="allreduce", op=Average), _dense(gradients, results))
    (rank,) = run(replace(call, kind="rank"), [], [tf.int32])  # with a constant the allreduce could be optimised away
    mine = tf.equal(rank, root_in(call.process_set, call.root))
    return [tf.where(mine, one, tf.zeros_like(one)) for one in reduced]


def _through_alltoall(call: Call, tensors: list[Any], results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    gradient = _dense(gradients[:1], results[:1])[0]
    back = run(call, [gradient, results[1]], [gradient.dtype, tf.int32])[0]
    return [tf.ensure_shape(back, tensors[0].shape), *[None] * (len(tensors) - 1)]


def _through_reducescatter(call: Call, tensors: list[Any], results: list[Any], gradients: Sequence[Any]) -> list[Any]:
    factor, ranks = call.prescale * call.postscale, number_of_ranks(call) if call.op == Sum else 1
    gathered = run(replace(call, kind="allgather"), _dense(gradients, results))
    return [
        tf.ensure_shape(whole * (tf.cast(factor, whole.dtype) * tf.cast(ranks, whole.dtype)), tensor.shape)
        for whole, tensor in zip(gathered, tensors, strict=True)
    ]


_BACK: Final = {
    "allreduce": _through_allreduce,
    "compressed": _through_compressed,
    "allgather": _through_allgather,
    "broadcast": _through_broadcast,
    "alltoall": _through_alltoall,
    "reducescatter": _through_reducescatter,
}
