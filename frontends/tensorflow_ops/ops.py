"""Horovod's operations on TensorFlow tensors: eager, in functions and in graphs of `tf.compat.v1`, with gradients.

Ranks match calls by name, in any order of execution. In a graph, a call without a name is called after its first
tensor, so equally built graphs match. In eager mode, calls without a name are numbered, with one count for each kind
and process set, so all ranks must make them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from collectives import OpName, ProcessSet, global_process_set
from collectives.numeric import is_integer
from frontends.horovod import (
    Average,
    Fact,
    Reduction,
    Sum,
    alone_in,
    check_linear,
    check_root,
    check_variables,
    choose_op,
    is_lossy,
    listed,
    names_of,
    number_of,
    ranks_may_change,
    set_ranks,
)
from frontends.tensorflow_ops.calls import Call
from frontends.tensorflow_ops.compression import AnyCompression, Compression
from frontends.tensorflow_ops.nodes import number_of_ranks, run

F = TypeVar("F", bound=Callable[..., Any])


def no_autograph(function: F) -> F:
    """Decorator for functions that AutoGraph must not convert."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


@no_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor, variable or tf.IndexedSlices over the ranks of a process set; bit-identical on all ranks.

    op                                 Average by default, Sum, Adasum, Min, Max, Product
    prescale_factor, postscale_factor  factors of the tensor before and of the result after the reduction
    compression                        Compression.none, .fp16, .bf16, or an object that Compression.int8, .topk or
                                       .powersgd has made: for dense tensors, and not for gradients of the result
    average                            deprecated: True means op=Average, False op=Sum
    ignore_name_scope                  use `name` in a graph without the current name scope
    device_dense, device_sparse        accepted for Horovod's sake and ignored

    IndexedSlices, which may have different numbers of rows, are reduced by an allgather of values and indices: Average,
    which makes floats of integers, and Sum; others raise NotImplementedError. Raises ValueError or TypeError for a bad
    argument; HorovodInternalError on every rank if they disagree about type, shape or op, or a rank is lost. These are
    also the classes that a running graph raises: tf.errors.InvalidArgumentError, FailedPreconditionError (ranks that
    disagree) and UnknownError. After a disagreement the ranks can continue with other operations.
    """
    chosen = choose_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        factor = prescale_factor * postscale_factor
        return _sparse(tensor, chosen, factor, compression, name, process_set, ignore_name_scope)
    how = compression, chosen, prescale_factor, postscale_factor, process_set, ignore_name_scope, name
    return grouped_allreduce([tensor], None, "", "", *how)[0]


@no_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: OpName | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce of several tensors as one operation; IndexedSlices among them are reduced one by one."""
    tensors = listed(tensors)
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return reduce_together(tensors, how, compression, names_of(name, len(tensors)), ignore_name_scope)


@no_autograph
def reduce_together(
    tensors: Sequence[Any],
    how: Reduction,
    compression: AnyCompression,
    memory: Sequence[str],
    ignore_name_scope: bool = False,
) -> list[Any]:
    """`grouped_allreduce` of tensors with names in the memory of a lossy compression."""
    chosen, name, prescale_factor, postscale_factor, process_set = how
    lossy = compression if is_lossy(compression) else None
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if len(dense) < len(tensors):
        _check_sparse(chosen)
    results: list[Any] = list(tensors)
    if dense and lossy is not None:
        lossy.check(chosen, prescale_factor, postscale_factor)
        kept = tuple(memory[index] for index in dense)
        call = Call("compressed", name, set_ranks(process_set), chosen, number=number_of(lossy), memory=kept)
        reduced = run(call, [_dense(tensors[index]) for index in dense], None, ignore_name_scope)
        for index, tensor in zip(dense, reduced, strict=True):
            results[index] = tensor
    elif dense:
        compressed = [compression.compress(_dense(tensors[index])) for index in dense]
        call = Call("allreduce", name, set_ranks(process_set), chosen, prescale_factor, postscale_factor)
        reduced = run(call, [small for small, _ in compressed], None, ignore_name_scope)
        for index, small, (_, ctx) in zip(dense, reduced, compressed, strict=True):
            results[index] = compression.decompress(small, ctx)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            label = None if name is None else f"{name}.{index}"
            factor = prescale_factor * postscale_factor
            cast = Compression.none if lossy is not None else compression
            results[index] = _sparse(tensor, chosen, factor, cast, label, process_set, ignore_name_scope)
    return results


def _sparse(
    slices: tf.IndexedSlices,
    op: OpName,
    factor: float,
    compression: AnyCompression,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> tf.IndexedSlices:
    _check_sparse(op)
    small, ctx = compression.compress(slices.values)
    parts = [_form_of(slices, op), small, slices.indices]
    _, values, indices = grouped_allgather(parts, name, ignore_name_scope, process_set)
    values = compression.decompress(values, ctx)
    if op == Average:
        values = tf.truediv(values, tf.cast(members(process_set), values.dtype))
    if factor != 1.0:
        wide = values if values.dtype.is_floating or values.dtype.is_complex else tf.cast(values, tf.float64)
        values = tf.cast(wide * tf.cast(factor, wide.dtype), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _form_of(slices: tf.IndexedSlices, op: OpName) -> tf.Tensor:
    """Return a tensor without rows, whose allgather shows if the dense shape is the same on all ranks, and the op, as
    the last dimension."""
    lengths = [] if slices.dense_shape is None else tf.cast(slices.dense_shape, tf.int64)
    first, last = tf.constant([0], tf.int64), tf.constant([1 + (op == Average)], tf.int64)
    return tf.zeros(tf.concat([first, lengths, last], 0), tf.uint8)


def _check_sparse(op: OpName) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError(f"op={op!r}: IndexedSlices can be combined by Average and Sum only; make them dense")


@no_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, which may differ."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@no_autograph
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather of several tensors as one operation."""
    given = [_dense(tensor) for tensor in listed(tensors)]
    given = [tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor for tensor in given]
    results = run(Call("allgather", name, set_ranks(process_set)), given, None, ignore_name_scope)
    if not tf.executing_eagerly():
        for tensor, result in zip(given, results, strict=True):
            if tensor.shape.rank is not None:
                result.set_shape([None, *tensor.shape[1:]])
    return results


@no_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the tensor of `root_rank`, a rank of the world, as a new tensor."""
    call = Call("broadcast", name, set_ranks(process_set), root=check_root(root_rank))
    return run(call, [_dense(tensor)], None, ignore_name_scope)[0]


@no_autograph
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Assign the values of `root_rank`'s variables, in place.

    Returns the results of `assign`: the variables, or in a graph of `tf.compat.v1` the operations.
    """
    variables = check_variables(variables)
    if not variables:
        return []
    call = Call("broadcast", name, set_ranks(process_set), root=check_root(root_rank))
    values = run(call, [tf.convert_to_tensor(variable) for variable in variables])
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


@no_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send parts of `tensor`, cut along the first dimension, to all ranks; return the received parts in rank order.

    splits   rows for each rank, by default equal parts. If given, the result is a pair: the tensor, and the number of
             rows received from each rank, an int32 tensor. Splits that do not fit raise a ValueError that is also
             tf.errors.InvalidArgumentError; TypeError if they are no integers
    """
    given = [_dense(tensor)]
    if splits is not None:
        rows = tf.convert_to_tensor(splits)
        if not rows.dtype.is_integer:
            raise TypeError(f"splits: are of type {rows.dtype.name}; must be integers")
        given.append(rows)
    call, kinds = Call("alltoall", name, set_ranks(process_set)), [given[0].dtype, tf.int32]
    result, received = run(call, given, kinds, ignore_name_scope)
    if not tf.executing_eagerly() and given[0].shape.rank:
        result.set_shape([None, *given[0].shape[1:]])
    return result if splits is None else (result, received)


@no_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: OpName = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over the ranks and return this rank's rows; lower ranks get the larger parts. Average and Sum
    only."""
    how = op, process_set, prescale_factor, postscale_factor, ignore_name_scope, name
    return grouped_reducescatter([tensor], device_dense, compression, *how)[0]


@no_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: OpName = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """reducescatter of several tensors."""
    check_linear(op, "reducescatter")
    given = [_dense(tensor) for tensor in listed(tensors)]
    if is_lossy(compression):
        compression.compress(given)  # raises: it is for allreduce
    compressed = [compression.compress(tensor) for tensor in given]
    call = Call("reducescatter", name, set_ranks(process_set), op, prescale_factor, postscale_factor)
    results = run(call, [small for small, _ in compressed], None, ignore_name_scope)
    if not tf.executing_eagerly():
        for result, (small, _) in zip(results, compressed, strict=True):
            if small.shape.rank:
                result.set_shape([None, *small.shape[1:]])
    return [compression.decompress(small, ctx) for small, (_, ctx) in zip(results, compressed, strict=True)]


def _dense(tensor: Any) -> tf.Tensor:
    """Return a tensor of a value, also of IndexedSlices. Raises TypeError for those of other forms."""
    if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor):
        raise TypeError(f"tensor: must be dense, or IndexedSlices, not a {type(tensor).__name__}")
    try:
        return tf.convert_to_tensor(tensor)
    except (TypeError, ValueError) as error:
        raise TypeError(f"tensor={tensor!r:.60}: must be a tensor, or what tf.convert_to_tensor accepts") from error


@no_autograph
def members(process_set: ProcessSet) -> Any:
    """Return the number of ranks of a process set; in a graph, that of the world in which it runs."""
    return number_of_ranks(Call("members", None, set_ranks(process_set)))


@no_autograph
def stays_alone(process_set: ProcessSet) -> bool:
    """True if this rank has no other rank to combine with: now, and in a graph, whenever it runs."""
    if not alone_in(process_set):
        return False
    return tf.executing_eagerly() or not process_set.included() or not ranks_may_change()


@no_autograph
def agreement(name: str, facts: Sequence[Fact], process_set: ProcessSet, reserved: bool = False) -> Any:
    """Return a context for operations that need all ranks to have equal `facts`, eager or in a graph.

    reserved   the name is one of `reserve`

    Raises ValueError on every rank, with the names of the parameters, if they differ: see horovod.agreement.
    """
    done = run(Call("agree", name, set_ranks(process_set), facts=tuple(facts)), [], [], reserved=reserved)
    return tf.control_dependencies([] if tf.executing_eagerly() else done)


@no_autograph
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Wait until all ranks of the set have called `barrier`. In a graph of `tf.compat.v1`, return the operation."""
    done = run(Call("barrier", name, set_ranks(process_set)), [], [])
    return None if tf.compat.v1.executing_eagerly_outside_functions() else done[0]


@no_autograph
def join() -> Any:
    """Announce that this rank has no more data. Until all ranks have joined, it contributes zeros to their allreduces.

    Returns the last rank that joined, an int32 tensor.
    """
    return run(Call("join"), [], [tf.int32])[0]


@no_autograph
def rank_op(name: str | None = None) -> tf.Tensor:
    """The rank, read when the graph runs."""
    return run(Call("rank", name), [], [tf.int32])[0]


@no_autograph
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The size of a process set, read when the graph runs; UNKNOWN_SET for a number that no set has."""
    return run(Call("size", name, number=_set_number(process_set_id)), [], [tf.int32])[0]


def _set_number(process_set_id: Any) -> int:
    if not is_integer(process_set_id):
        raise TypeError(f"process_set_id={process_set_id!r}: must be an int")
    return int(process_set_id)


@no_autograph
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 on the ranks of a process set, 0 on others, read when the graph runs; UNKNOWN_SET for a number that no set
    has."""
    return run(Call("included", name, number=_set_number(process_set_id)), [], [tf.int32])[0]


@no_autograph
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """The local rank, read when the graph runs."""
    return run(Call("local_rank", name), [], [tf.int32])[0]


@no_autograph
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The local size, read when the graph runs."""
    return run(Call("local_size", name), [], [tf.int32])[0]
