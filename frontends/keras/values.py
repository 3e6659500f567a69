"""Collectives outside of training, on numbers, arrays, Keras variables and tensors of any backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import keras
import numpy as np

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import (
    ARRAYS,
    Average,
    Reduction,
    agree,
    as_horovod,
    check_variables,
    choose_op,
    communicator_of,
    full_name,
    in_order,
    is_lossy,
    names_of,
    root_in,
)
from frontends.keras.compression import AnyCompression, Compression

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "broadcast_variables", "reducescatter"]


def _array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(_tensor(value)))


def _tensor(value: Any) -> Any:
    try:
        return keras.ops.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"value={value!r:.60}: must be what keras.ops.convert_to_tensor accepts") from error


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: OpName | None = None,
    compression: AnyCompression = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value over the ranks and return a tensor of Keras's backend.

    value     anything that keras.ops.convert_to_tensor accepts, with the same shape and type on all ranks
    op        Average by default, Sum, Adasum, Min, Max, Product
    average   deprecated: True means op=Average, False op=Sum

    Raises ValueError for a bad argument, HorovodInternalError if the ranks disagree or a rank is lost.
    """
    how = Reduction(choose_op(op, average), name, prescale_factor, postscale_factor, process_set)
    tensor = _tensor(value)
    if is_lossy(compression):
        compression.check(how.op, prescale_factor, postscale_factor)
        return _tensor(ARRAYS.compressed([_array(tensor)], None, how, names_of(name, 1), compression).synchronize()[0])
    small, ctx = compression.compress(tensor)
    return compression.decompress(_tensor(ARRAYS.allreduce(_array(small), None, how).synchronize()), ctx)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the values of all ranks along the first dimension, which may differ. Raises as `allreduce`."""
    return _tensor(ARRAYS.allgather(_array(value), name, process_set).synchronize())


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the value of `root_rank`, a rank of the world; all ranks pass the same shape and type. Raises as
    `allreduce`."""
    return _tensor(ARRAYS.broadcast(_array(value), None, root_rank, name, process_set).synchronize())


def reducescatter(
    value: Any, name: str | None = None, op: OpName = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduce a value over the ranks and return this rank's rows of the result. Average and Sum only. Raises as
    `allreduce`."""
    return _tensor(ARRAYS.reducescatter(_array(value), Reduction(op, name, 1.0, 1.0, process_set)).synchronize())


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Assign the values of `root_rank`'s variables on all ranks, e.g. of model.weights and model.optimizer.variables.

    All ranks pass the same number of variables in the same order. Raises ValueError on every rank if their names show
    another order, HorovodInternalError if shapes or types differ.
    """
    variables = check_variables(variables, "name")
    comm, root = communicator_of(process_set), root_in(process_set, root_rank)
    arrays = [_array(variable) for variable in variables]
    label = full_name(comm, "broadcast_variables", None)
    with as_horovod():
        agree(comm, "variables", in_order(str(getattr(one, "path", one.name)) for one in variables))
    begun = [
        ARRAYS.broadcast(array, None, root_rank, f"{label}.{index}", process_set) for index, array in enumerate(arrays)
    ]
    for variable, handle in zip(variables, begun, strict=True):
        value = handle.synchronize()
        if comm.rank != root:
            variable.assign(value)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raises RuntimeError, as Horovod does on TensorFlow 2: Keras 3 has no global variables."""
    raise RuntimeError(
        f"broadcast_global_variables({root_rank}): Keras 3 keeps no list of all variables; give fit "
        "callbacks.BroadcastGlobalVariablesCallback, or call broadcast_variables(model.weights, root_rank) and "
        "broadcast_variables(model.optimizer.variables, root_rank)"
    )
