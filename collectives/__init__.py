"""Ronde: collective communication in pure Python.

    import numpy as np
    import collectives as ronde

    ronde.init()
    total = ronde.allreduce(np.ones(3) * ronde.rank())
    ronde.shutdown()

The functions here act on the world communicator; `Communicator` has the same as methods. What their arguments have in
common, and what they raise, is told in `collectives.communicator`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from collectives.communicator import Communicator
from collectives.config import Config
from collectives.launch.function import run
from collectives.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from collectives.progress import Work
from collectives.reductions import OPS
from collectives.world import connect, init, is_initialized, shutdown, world, world_scope
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    RendezvousError,
    RondeError,
    TransportError,
)

P = ParamSpec("P")
T = TypeVar("T")

__version__ = "0.1.0"


def rank() -> int:
    """This process's number in the world, 0 to size() - 1."""
    return world().rank


def size() -> int:
    """The number of ranks in the world."""
    return world().size


def local_rank() -> int:
    """This rank's number among the ranks on its host."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this rank's host."""
    return world().local_size


def cross_rank() -> int:
    """This rank's number among the ranks that have its local rank on their hosts."""
    return world().cross_rank


def cross_size() -> int:
    """The number of ranks that have this rank's local rank on their hosts, itself included."""
    return world().cross_size


def _on_world(method: Callable[Concatenate[Communicator, P], T]) -> Callable[P, T]:
    """The function that calls a method of the world communicator."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return method(world(), *args, **kwargs)

    signature = inspect.signature(method)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    call.__module__, call.__qualname__ = __name__, method.__name__
    return call


allreduce, allreduce_async = _on_world(Communicator.allreduce), _on_world(Communicator.allreduce_async)
reduce, reduce_async = _on_world(Communicator.reduce), _on_world(Communicator.reduce_async)
reduce_scatter = _on_world(Communicator.reduce_scatter)
reduce_scatter_async = _on_world(Communicator.reduce_scatter_async)
broadcast, broadcast_async = _on_world(Communicator.broadcast), _on_world(Communicator.broadcast_async)
allgather, allgather_async = _on_world(Communicator.allgather), _on_world(Communicator.allgather_async)
gather, gather_async = _on_world(Communicator.gather), _on_world(Communicator.gather_async)
scatter, scatter_async = _on_world(Communicator.scatter), _on_world(Communicator.scatter_async)
alltoall, alltoall_async = _on_world(Communicator.alltoall), _on_world(Communicator.alltoall_async)
barrier, barrier_async = _on_world(Communicator.barrier), _on_world(Communicator.barrier_async)
send, send_async = _on_world(Communicator.send), _on_world(Communicator.send_async)
recv, recv_async = _on_world(Communicator.recv), _on_world(Communicator.recv_async)
sendrecv, sendrecv_async = _on_world(Communicator.sendrecv), _on_world(Communicator.sendrecv_async)
grouped_allreduce = _on_world(Communicator.grouped_allreduce)
grouped_allreduce_async = _on_world(Communicator.grouped_allreduce_async)
grouped_allgather = _on_world(Communicator.grouped_allgather)
grouped_allgather_async = _on_world(Communicator.grouped_allgather_async)
broadcast_object = _on_world(Communicator.broadcast_object)
broadcast_object_async = _on_world(Communicator.broadcast_object_async)
allgather_object = _on_world(Communicator.allgather_object)
allgather_object_async = _on_world(Communicator.allgather_object_async)
join, join_async = _on_world(Communicator.join), _on_world(Communicator.join_async)
empty, plan = _on_world(Communicator.empty), _on_world(Communicator.plan)
split = _on_world(Communicator.split)
compose, compose_async = _on_world(Communicator.compose), _on_world(Communicator.compose_async)
metrics, metrics_text = _on_world(Communicator.metrics), _on_world(Communicator.metrics_text)
reset_metrics = _on_world(Communicator.reset_metrics)
start_timeline, stop_timeline = _on_world(Communicator.start_timeline), _on_world(Communicator.stop_timeline)
shrink = _on_world(Communicator.shrink)
abort = _on_world(Communicator.abort)

__all__ = [
    "OPS",
    "AbortedError",
    "ClosedError",
    "Communicator",
    "Config",
    "ConfigError",
    "ConnectError",
    "DeadlineExceeded",
    "MismatchError",
    "PeerLost",
    "ProcessSet",
    "RendezvousError",
    "RondeError",
    "TransportError",
    "Work",
    "abort",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allgather_object_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_object_async",
    "compose",
    "compose_async",
    "connect",
    "cross_rank",
    "cross_size",
    "empty",
    "gather",
    "gather_async",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_initialized",
    "join",
    "join_async",
    "local_rank",
    "local_size",
    "metrics",
    "metrics_text",
    "plan",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reduce_scatter",
    "reduce_scatter_async",
    "remove_process_set",
    "reset_metrics",
    "run",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "sendrecv",
    "sendrecv_async",
    "shrink",
    "shutdown",
    "size",
    "split",
    "start_timeline",
    "stop_timeline",
    "world",
    "world_scope",
]
