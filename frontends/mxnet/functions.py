"""Broadcast of parameters, so that all ranks begin alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectives import ProcessSet, global_process_set
from frontends.horovod import agree, agree_on_values, as_horovod, communicator_of, in_order, root_in
from frontends.mxnet.library import mx
from frontends.mxnet.tensors import LIBRARY


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Give the parameters of all ranks the values of `root_rank`, a rank of the world, in place.

    params   net.collect_params(), whose parameters are matched by their positions, as Gluon's names count the blocks
             that a process has made; or a dict of arrays or parameters such as those of Module.get_params(), which are
             matched by their keys. A parameter whose shape is not yet known is broadcast when it is initialized, in the
             first forward pass
    prefix   of the names by which ranks match the parameters

    Raises ValueError for another type or a bad root, and on every rank if the keys of a dict differ, a value of one
    rank cannot be sent, or the names show that ranks list the same parameters in different orders; RuntimeError for a
    parameter that is not initialized, HorovodInternalError if the ranks' parameters differ in shape or type.
    """
    pairs: list[tuple[Any, Any]]
    by_position = isinstance(params, mx.gluon.ParameterDict)
    if by_position:
        pairs = list(enumerate(params.values()))
    elif isinstance(params, Mapping):
        pairs = sorted(params.items(), key=lambda pair: str(pair[0]))
    else:
        raise ValueError(f"params: must be a dict or a ParameterDict, not {type(params).__name__}")
    root_in(process_set, root_rank)
    comm = communicator_of(process_set)
    with as_horovod():
        if by_position:
            agree(comm, "parameters", in_order(str(value.name) for _, value in pairs))
        else:
            agree_on_values(comm, "parameters", {str(key): _obstacle(value) for key, value in pairs}, "params")
    waiting = []
    for key, value in pairs:
        name = f"{prefix or ''}{key}"
        if isinstance(value, mx.gluon.Parameter):
            try:
                arrays = value.list_data()
            except mx.gluon.parameter.DeferredInitializationError:
                _broadcast_when_initialized(value, root_rank, name, process_set)
                continue
        else:
            arrays = [value]
        waiting.append((arrays, LIBRARY.broadcast(arrays[0], arrays[0], root_rank, name, process_set)))
    for arrays, handle in waiting:
        handle.synchronize()
        _copy_to_others(arrays)


def _obstacle(value: Any) -> str:
    """Return the reason why a value cannot be broadcast, empty if it can."""
    return "" if isinstance(value, mx.gluon.Parameter) else LIBRARY.obstacle(value)


def _broadcast_when_initialized(parameter: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Make a parameter broadcast its values once, right after MXNet has initialized it: from the root that was told
    last."""
    initialize = type(parameter)._init_impl

    def initialize_and_broadcast(*args: Any, **kwargs: Any) -> None:
        del parameter._init_impl  # the method of the class again
        initialize(parameter, *args, **kwargs)
        arrays = parameter.list_data()
        LIBRARY.broadcast(arrays[0], arrays[0], root_rank, name, process_set).synchronize()
        _copy_to_others(arrays)

    parameter._init_impl = initialize_and_broadcast


def _copy_to_others(arrays: list[Any]) -> None:
    """Copy the first array of a parameter to those on its other devices."""
    for other in arrays[1:]:
        other[:] = arrays[0].as_in_context(other.context)
