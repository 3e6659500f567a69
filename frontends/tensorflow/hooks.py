"""Hooks for `tf.compat.v1.train.MonitoredTrainingSession`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from frontends.tensorflow.functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts the global variables of `root_rank` when a session begins, after their initialisation or
    restoration."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` is accepted for Horovod's sake and ignored."""
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph, once."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast. Collective: all ranks begin their sessions."""
        session.run(self.bcast_op)
