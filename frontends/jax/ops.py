"""Collectives on trees of arrays: eager, and within jit, grad, scan and cond.

All arrays of a tree travel as one operation. If the tree has keys, the ranks compare them in a small exchange before.
All ranks must make the same calls in the same order; programs traced from the same function do. A call without a name
is numbered when it runs. An error is raised where the result is used, as jax.errors.JaxRuntimeError with the text of
Ronde's error; call `settle` to continue after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import collectives
from collectives import OpName, ProcessSet, global_process_set
from collectives.arrays import check_op
from collectives.operations import check_list
from frontends.horovod import (
    VALUE,
    Fact,
    check_linear,
    choose_op,
    communicator_of,
    is_lossy,
    listed,
    names_of,
    number_of,
    root_in,
    set_ranks,
)
from frontends.jax.compression import AnyCompression, Compression
from frontends.jax.primitive import bind, settle
from frontends.jax.requests import Request

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allreduce",
    "reduce_scatter",
    "shutdown",
]

_LEAF: Final = jax.tree_util.tree_structure(0)
_PARTS: Final = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})
"""Types whose elements are less than a byte: XLA packs them in programs."""


def allreduce(
    x: Any,
    op: OpName | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> Any:
    """Reduce the arrays of `x` over the ranks of a process set, element by element; bit-identical on all ranks.

    x                                  a tree of arrays and numbers
    op                                 Average by default, Sum, Adasum, Min, Max, Product
    name                               name by which ranks match the call; numbered by default
    prescale_factor, postscale_factor  factors of the arrays before and of the results after the reduction
    compression                        Compression.none, .fp16, .bf16: type in which floats travel; or an object that
                                       Compression.int8, .topk or .powersgd has made

    Differentiable for Sum and Average: the gradient is reduced in the same way. Raises TypeError or ValueError for a
    bad argument; JaxRuntimeError on every rank if they disagree about types, shapes, op or the keys of the tree, or a
    rank is lost.
    """
    op = choose_op(op)
    request = _request("allreduce", process_set, name, op=op, prescale=prescale_factor, postscale=postscale_factor)
    arrays, tree = _arrays(x)
    return jax.tree_util.tree_unflatten(tree, _reduced(_with_keys(request, x), arrays, compression))


def grouped_allreduce(
    tensors: Sequence[Any],
    op: OpName | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> list[Any]:
    """`allreduce` of a sequence; returns a list."""
    return allreduce(listed(tensors), op, name, prescale_factor, postscale_factor, process_set, compression)  # type: ignore[no-any-return]


def allreduce_gradients(
    arrays: Sequence[Any],
    facts: Sequence[Fact],
    memory: Sequence[str],
    label: str,
    op: OpName | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> list[Any]:
    """`allreduce` of a list, before which all ranks agree that they have the same gradients.

    facts   about all gradients, those that are missing as well
    memory  names of the arrays in the memory of a lossy compression
    label   by which the ranks match the agreement

    Raises as `allreduce`; JaxRuntimeError on every rank, with the names of the parameters, if the facts differ.
    """
    op = choose_op(op)
    request = _request("allreduce", process_set, name, op=op, prescale=prescale_factor, postscale=postscale_factor)
    given, _ = _arrays(list(arrays))
    return _reduced(replace(request, label=label, facts=tuple(facts)), given, compression, memory)


def allgather(
    x: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    rows: Sequence[int] | None = None,
) -> Any:
    """Concatenate the arrays of all ranks along the first dimension in rank order; a number counts as one row.

    rows   number of rows of each rank, the same on all ranks; needed if they differ, because the result's shape must be
           known when a function is traced. allgather_object(len(x)) finds them

    The gradient is this rank's rows of the average of all ranks' gradients. Raises ValueError if `rows` does not fit
    this rank's array; JaxRuntimeError if the ranks pass different `rows`.
    """
    arrays, tree = _arrays(x)
    comm = communicator_of(process_set)
    if rows is not None:
        rows = _counts(rows, comm.size, "rows")
        for array in arrays:
            if (array.shape or (1,))[0] != rows[comm.rank]:
                raise ValueError(f"rows={list(rows)}: x has {(array.shape or (1,))[0]} on rank {comm.rank}")
    request = _with_keys(_request("allgather", process_set, name, rows=rows), x)
    return jax.tree_util.tree_unflatten(tree, bind(request, *arrays) if arrays else [])


def broadcast(x: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the arrays of `root_rank`, a rank of the world. All ranks pass arrays of the same shapes and types.

    The gradient is the average of all ranks' gradients on the root, zeros elsewhere.
    """
    arrays, tree = _arrays(x)
    request = _with_keys(_broadcast(process_set, root_rank, name), x)
    return jax.tree_util.tree_unflatten(tree, bind(request, *arrays) if arrays else [])


def broadcast_parts(arrays: Sequence[Any], facts: Sequence[Fact], root_rank: int, process_set: ProcessSet) -> list[Any]:
    """`broadcast` of a list, before which all ranks agree that they have the same facts about its arrays."""
    request = _broadcast(process_set, root_rank, None)
    given, _ = _arrays(list(arrays))
    return bind(replace(request, label="parameters", facts=tuple(facts)), *given)


def reduce_scatter(
    x: Any,
    op: OpName | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> Any:
    """Reduce arrays over the ranks and return this rank's rows; lower ranks get the larger parts. Average and Sum only.

    The gradient is the allgather of all ranks' gradients, times the number of ranks for Sum.
    """
    op = choose_op(op)
    check_linear(op, "reduce_scatter")
    request = _request("reducescatter", process_set, name, op=op, prescale=prescale_factor, postscale=postscale_factor)
    arrays, tree = _arrays(x, "has no axis to split; it must have at least one dimension")
    return jax.tree_util.tree_unflatten(tree, _reduced(_with_keys(request, x), arrays, compression))


def alltoall(
    x: Any,
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send parts of the arrays, cut along the first dimension, to all ranks; return the received parts in rank order.

    splits   splits[i][j] rows go from rank i to rank j: the whole table, the same on all ranks, because the result's
             shape must be known when a function is traced. Equal parts by default

    The gradient is the alltoall back. Raises ValueError for arrays that cannot be divided.
    """
    comm = communicator_of(process_set)
    arrays, tree = _arrays(x, "has no axis to split; it must have at least one dimension")
    table = None
    if splits is not None:
        check_list(splits, "splits", "rows of ints")
        table = tuple(_counts(row, comm.size, f"splits[{index}]") for index, row in enumerate(splits))
        if len(table) != comm.size:
            raise ValueError(f"splits: has {len(table)} rows, must have {comm.size}, one for each rank")
    for array in arrays:
        if table is None and array.shape[0] % comm.size:
            raise ValueError(
                f"x: its first dimension, {array.shape[0]}, is not divisible by {comm.size} ranks; give splits"
            )
        if table is not None and sum(table[comm.rank]) != array.shape[0]:
            raise ValueError(f"splits[{comm.rank}]={list(table[comm.rank])}: must be {array.shape[0]} rows together")
    request = _with_keys(_request("alltoall", process_set, name, table=table), x)
    return jax.tree_util.tree_unflatten(tree, bind(request, *arrays) if arrays else [])


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have called `barrier` and this thread's earlier calls are done.

    In a traced function it becomes part of the program.
    """
    bind(_request("barrier", process_set, None))
    settle()


def shutdown() -> None:
    """Wait for this thread's calls and leave the world.

    `init` may follow. Then call jax.clear_caches() if there are functions compiled for another rank or size. Errors of
    calls are raised where their results are used, not here.
    """
    if collectives.is_initialized():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            settle()
    collectives.shutdown()


def _request(kind: str, process_set: ProcessSet, name: str | None, **details: Any) -> Request:
    comm = communicator_of(process_set)
    return Request(kind, name, set_ranks(process_set), size=comm.size, rank=comm.rank, **details)


def _with_keys(request: Request, x: Any) -> Request:
    """The request for a tree. If that has keys, all ranks agree on them before: arrays are combined by their order."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(x, is_leaf=is_sparse)[0]]
    if all(isinstance(key, jax.tree_util.SequenceKey) for path in paths for key in path):
        return request
    names = [jax.tree_util.keystr(path) for path in paths]
    return replace(request, label=request.kind, facts=tuple(Fact(name, name, "", VALUE) for name in names))


def _broadcast(process_set: ProcessSet, root_rank: int, name: str | None) -> Request:
    root_in(process_set, root_rank)  # an error of the function, not of the program
    return _request("broadcast", process_set, name, root=int(root_rank))


def _reduced(
    request: Request, arrays: list[jax.Array], compression: AnyCompression, memory: Sequence[str] | None = None
) -> list[jax.Array]:
    if is_lossy(compression) and request.kind == "allreduce":
        compression.check(request.op, request.prescale, request.postscale)
        for array in arrays:
            check_op(request.op, np.dtype(array.dtype))
        kept = tuple(names_of(request.name, len(arrays)) if memory is None else memory)
        compressed = replace(request, kind="compressed", number=number_of(compression), memory=kept)
        return bind(compressed, *arrays) if arrays or request.facts else []
    packed = [compression.compress(array) for array in arrays]
    for array, _ in packed:
        check_op(request.op, np.dtype(array.dtype))
    results = bind(request, *(array for array, _ in packed)) if packed or request.facts else []
    return [compression.decompress(array, ctx) for array, (_, ctx) in zip(results, packed, strict=True)]


def _arrays(x: Any, otherwise: str = "") -> tuple[list[jax.Array], Any]:
    """Return a tree's arrays and its structure. Raises TypeError for leaves that cannot travel.

    otherwise   error text for arrays without dimensions, if they are not allowed
    """
    leaves, tree = jax.tree_util.tree_flatten(x, is_leaf=is_sparse)
    arrays = []
    for index, leaf in enumerate(leaves):
        where = "x" if tree == _LEAF else f"x, leaf {index}"
        if is_sparse(leaf):
            raise TypeError(f"{where}: is a sparse {type(leaf).__name__}; must be dense: x.todense()")
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            kind = f"{type(leaf).__name__} of {leaf.dtype}" if hasattr(leaf, "dtype") else type(leaf).__name__
            raise TypeError(f"{where}: must be an array or a number, not {kind}") from error
        _check_cut(leaf, array, where)
        if array.dtype == jax.dtypes.float0:
            raise TypeError(f"{where}: is a gradient of integers, of float0, which has no values; leave it out")
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise TypeError(f"{where}: arrays of {array.dtype} cannot be moved; convert a key by jax.random.key_data")
        if array.dtype.name in _PARTS:
            raise TypeError(f"{where}: arrays of {array.dtype} cannot be moved; their elements are less than a byte")
        if otherwise and not array.ndim:
            raise ValueError(f"{where}: {otherwise}")
        arrays.append(array)
    return arrays, tree


def _check_cut(leaf: Any, array: jax.Array, where: str) -> None:
    """Raise OverflowError for integers of NumPy that JAX cut to 32 bits, and which need more, as JAX does for those of
    Python."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "iu" and leaf.dtype != array.dtype:
        kept = np.iinfo(np.dtype(array.dtype))
        if leaf.size and not kept.min <= leaf.min() <= leaf.max() <= kept.max:
            raise OverflowError(
                f"{where}: has integers beyond {kept.dtype}, to which JAX cuts {leaf.dtype}; call "
                "jax.config.update('jax_enable_x64', True) first"
            )


def is_sparse(leaf: Any) -> bool:
    """True for a sparse array of JAX, whose parts the ranks cannot combine one by one."""
    return isinstance(leaf, sparse.JAXSparse)


def _counts(given: Sequence[int], size: int, name: str) -> tuple[int, ...]:
    numbers = np.asarray(given)
    if numbers.shape != (size,) or numbers.dtype.kind not in "iu" or (numbers < 0).any():
        raise ValueError(f"{name}={given!r}: must be {size} ints, 0 or more, one for each rank")
    return tuple(int(number) for number in numbers)
