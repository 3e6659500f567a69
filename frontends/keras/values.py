"""Operations on values outside of training: numbers, arrays and tensors of any backend, and Keras variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import keras
import numpy as np

from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import Average, Sum, choose_op, communicator_of, full_name, root_in
from frontends.keras.compression import Compression, Compressor


def _array(tensor: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine a value over the ranks; a tensor of Keras's backend.

    value     anything that keras.ops.convert_to_tensor takes, of one shape and type on all ranks
    op        Average by default, Sum, Adasum, Min, Max, Product
    average   deprecated: True means op=Average, False op=Sum

    Raises ValueError for a bad argument, HorovodInternalError if the ranks disagree or one is lost.
    """
    chosen = choose_op(op, average)
    comm = communicator_of(process_set)
    small, ctx = compression.compress(keras.ops.convert_to_tensor(value))
    scales = {
        "prescale": None if prescale_factor == 1.0 else prescale_factor,
        "postscale": None if postscale_factor == 1.0 else postscale_factor,
    }
    with as_horovod():
        work = comm.allreduce_async(_array(small), chosen, name=full_name(comm, "allreduce", name), **scales)
        return compression.decompress(keras.ops.convert_to_tensor(work.wait()), ctx)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' values, concatenated along the first dimension, in which they may differ. Raises as `allreduce`."""
    comm = communicator_of(process_set)
    array = _array(keras.ops.convert_to_tensor(value))
    with as_horovod():
        work = comm.allgather_async(array, name=full_name(comm, "allgather", name))
        return keras.ops.convert_to_tensor(work.wait())


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The value of a rank of the world; the others give one of the same shape and type. Raises as `allreduce`."""
    comm, root = communicator_of(process_set), root_in(process_set, root_rank)
    array = _array(keras.ops.convert_to_tensor(value))
    with as_horovod():
        work = comm.broadcast_async(array, root, name=full_name(comm, "broadcast", name))
        return keras.ops.convert_to_tensor(work.wait())


def reducescatter(
    value: Any, name: str | None = None, op: str = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Combine a value over the ranks and give each its rows of the result. Average and Sum. Raises as `allreduce`."""
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: must be Average or Sum")
    comm = communicator_of(process_set)
    array = _array(keras.ops.convert_to_tensor(value))
    with as_horovod():
        work = comm.reduce_scatter_async(array, op, name=full_name(comm, "reducescatter", name))
        return keras.ops.convert_to_tensor(work.wait())


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Give all ranks the values of `root_rank`'s variables, such as model.weights and model.optimizer.variables.

    All ranks give as many variables, in the same order. Raises HorovodInternalError if shapes or types differ.
    """
    comm, root = communicator_of(process_set), root_in(process_set, root_rank)
    label = full_name(comm, "broadcast_variables", None)
    with as_horovod():
        begun = [
            (variable, comm.broadcast_async(_array(variable), root, name=f"{label}.{index}"))
            for index, variable in enumerate(variables)
        ]
        for variable, work in begun:
            value = work.wait()
            if comm.rank != root:
                variable.assign(value)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raises RuntimeError, as Horovod does on TensorFlow 2: there are no global variables in Keras 3."""
    raise RuntimeError(
        f"broadcast_global_variables({root_rank}): Keras 3 keeps no list of all variables; give fit "
        "callbacks.BroadcastGlobalVariablesCallback, or call broadcast_variables(model.weights, root_rank) and "
        "broadcast_variables(model.optimizer.variables, root_rank)"
    )
