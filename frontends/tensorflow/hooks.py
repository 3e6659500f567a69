"""Hooks for `tf.compat.v1.train.MonitoredTrainingSession`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from frontends.tensorflow.functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the global variables of `root_rank` when the session begins, whether that has initialised them
    or restored them from a checkpoint."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` is there for Horovod's scripts."""
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph, once."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Collective: all ranks begin their sessions."""
        session.run(self.bcast_op)
