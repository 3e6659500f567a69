"""Starting alike: variables and objects of one rank for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod import objects
from frontends.tensorflow.ops import as_it_is, broadcast_


@as_it_is
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = True
) -> Any:
    """Give all ranks the values that variables have on `root_rank`: TensorFlow's variables or Keras's, in the same
    order everywhere.

    Eager and in functions it is done at once; in a graph of `tf.compat.v1`, by the operation that is returned.
    `inplace` is there for Horovod's scripts. Raises as allreduce.
    """
    updates = broadcast_(list(variables), root_rank, None, process_set)
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*updates)


@as_it_is
def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all ranks the global variables of `root_rank`, in a graph of `tf.compat.v1`.

    Raises RuntimeError in eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables: there are none in eager mode; call broadcast_variables(model.variables, ...)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of `root_rank`, pickled; on that rank, `obj` itself. `session` is there for Horovod's scripts."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """broadcast_object as a function of the object."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """All ranks' objects, in rank order. `session` is there for Horovod's scripts."""
    return objects.allgather_object(obj, name, process_set)
