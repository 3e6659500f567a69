"""Broadcast of variables, also when a MonitoredSession begins, and collectives on objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from collectives import ProcessSet, global_process_set
from frontends import horovod
from frontends.horovod import check_root, check_variables, in_order
from frontends.tensorflow.reducing import source_names, told_apart
from frontends.tensorflow_ops import agreement, broadcast_, no_autograph


@no_autograph
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = True
) -> Any:
    """Assign the values of `root_rank`'s variables on all ranks. Accepts TensorFlow's and Keras variables.

    All ranks pass the variables in the same order; if their names show that they do not, all ranks raise ValueError.
    Eager and in functions, the broadcast happens at once; in a graph of `tf.compat.v1` the operation is returned.
    `inplace` is accepted for Horovod's sake and ignored. Raises as allreduce.
    """
    given = check_variables(variables)
    names = told_apart(given, source_names(given))
    with agreement("variables", in_order(names), process_set):
        updates = broadcast_(given, root_rank, None, process_set)
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*updates)


@no_autograph
def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that broadcasts the global variables of `root_rank`, in a graph of `tf.compat.v1`.

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
    """Return the object of `root_rank` on all ranks; on that rank, `obj` itself. `session` is ignored."""
    return horovod.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return `broadcast_object` as a function of the object."""
    return lambda obj: horovod.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in rank order. `session` is ignored."""
    return horovod.allgather_object(obj, name, process_set)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts the global variables of `root_rank` when a session begins, after their initialisation or
    restoration."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` is accepted for Horovod's sake and ignored."""
        super().__init__()
        self.root_rank = check_root(root_rank)
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph, once."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast. Collective: all ranks begin their sessions."""
        session.run(self.bcast_op)
