"""The functions of the package: the methods of `Communicator`, on the world communicator.

Every function has the signature of its method, for type checkers and at run time; the method's docstring explains the
arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_overloads, overload

from collectives.communicator import Communicator
from collectives.operations import Persistent, Repeated
from collectives.world_communicator import world

P = ParamSpec("P")
R = TypeVar("R")


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
    """This rank's number among the ranks that have the same local rank, one on each host."""
    return world().cross_rank


def cross_size() -> int:
    """The number of ranks that have the same local rank as this one, itself included."""
    return world().cross_size


def of_world(method: Callable[Concatenate[Communicator, P], R]) -> Callable[P, R]:
    """The function that calls a method on the world communicator. Its docstring is the first paragraph of the method's.

    docs/_tools/griffe_tables.py says the same to the reference.
    """
    function = _function(method)
    function.__doc__ = f"{inspect.getdoc(method)}".partition("\n\n")[0] + f" See Communicator.{function.__name__}."
    for form in get_overloads(method):
        overload(_function(form))
    return cast(Callable[P, R], function)


def _function(method: Any) -> Any:
    """The code of a function that calls a method on the world communicator.

    It is made of the method's parameters, as that of a dataclass is: a function of `*arguments, **options` takes 0.4 us
    longer. Its line is that of the method, so that `inspect` finds the source of the method.
    """
    code = method.__code__
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names, options = code.co_varnames[1:first], code.co_varnames[first:last]
    rest = [f"**{code.co_varnames[last]}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    parameters = [*names, *(["*", *options] if options else []), *rest]
    given = [*names, *(f"{option}={option}" for option in options), *rest]
    text = f" def {method.__name__}({', '.join(parameters)}): return method(world(), {', '.join(given)})"
    found: dict[str, Any] = {}
    exec(f"def make(method, world):\n{text}\n return {method.__name__}", method.__globals__, found)
    function = found["make"](method, world)
    function.__code__ = function.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    function.__module__, function.__qualname__ = __name__, method.__name__
    function.__defaults__, function.__kwdefaults__ = method.__defaults__, method.__kwdefaults__
    function.__annotations__ = method.__annotations__
    return function


def plan(collective: str, /, *arguments: Any, **options: Any) -> Persistent:
    """Check and plan a call once, to make it many times on the same arrays. See Communicator.plan."""
    return world().plan(collective, *arguments, **options)


def repeated(collective: str, /, *arguments: Any, in_bytes: bool = False, **options: Any) -> Repeated[Any]:
    """Keep the arguments of a call, to make it many times on other arrays. See Communicator.repeated."""
    return world().repeated(collective, *arguments, in_bytes=in_bytes, **options)


allreduce = of_world(Communicator.allreduce)
allreduce_async = of_world(Communicator.allreduce_async)
reduce = of_world(Communicator.reduce)
reduce_async = of_world(Communicator.reduce_async)
reduce_scatter = of_world(Communicator.reduce_scatter)
reduce_scatter_async = of_world(Communicator.reduce_scatter_async)
broadcast = of_world(Communicator.broadcast)
broadcast_async = of_world(Communicator.broadcast_async)
allgather = of_world(Communicator.allgather)
allgather_async = of_world(Communicator.allgather_async)
gather = of_world(Communicator.gather)
gather_async = of_world(Communicator.gather_async)
scatter = of_world(Communicator.scatter)
scatter_async = of_world(Communicator.scatter_async)
alltoall = of_world(Communicator.alltoall)
alltoall_async = of_world(Communicator.alltoall_async)
scan = of_world(Communicator.scan)
scan_async = of_world(Communicator.scan_async)
exscan = of_world(Communicator.exscan)
exscan_async = of_world(Communicator.exscan_async)
barrier = of_world(Communicator.barrier)
barrier_async = of_world(Communicator.barrier_async)
grouped_allreduce = of_world(Communicator.grouped_allreduce)
grouped_allreduce_async = of_world(Communicator.grouped_allreduce_async)
grouped_allgather = of_world(Communicator.grouped_allgather)
grouped_allgather_async = of_world(Communicator.grouped_allgather_async)
compose = of_world(Communicator.compose)
compose_async = of_world(Communicator.compose_async)
broadcast_object = of_world(Communicator.broadcast_object)
broadcast_object_async = of_world(Communicator.broadcast_object_async)
allgather_object = of_world(Communicator.allgather_object)
allgather_object_async = of_world(Communicator.allgather_object_async)
gather_object = of_world(Communicator.gather_object)
gather_object_async = of_world(Communicator.gather_object_async)
scatter_object = of_world(Communicator.scatter_object)
scatter_object_async = of_world(Communicator.scatter_object_async)
send = of_world(Communicator.send)
send_async = of_world(Communicator.send_async)
recv = of_world(Communicator.recv)
recv_async = of_world(Communicator.recv_async)
probe = of_world(Communicator.probe)
iprobe = of_world(Communicator.iprobe)
send_object = of_world(Communicator.send_object)
send_object_async = of_world(Communicator.send_object_async)
recv_object = of_world(Communicator.recv_object)
recv_object_async = of_world(Communicator.recv_object_async)
sendrecv = of_world(Communicator.sendrecv)
sendrecv_async = of_world(Communicator.sendrecv_async)
join = of_world(Communicator.join)
join_async = of_world(Communicator.join_async)
empty = of_world(Communicator.empty)
metrics = of_world(Communicator.metrics)
reset_metrics = of_world(Communicator.reset_metrics)
metrics_text = of_world(Communicator.metrics_text)
serve_metrics = of_world(Communicator.serve_metrics)
save_flight_record = of_world(Communicator.save_flight_record)
start_timeline = of_world(Communicator.start_timeline)
stop_timeline = of_world(Communicator.stop_timeline)
split = of_world(Communicator.split)
subset = of_world(Communicator.subset)
channel = of_world(Communicator.channel)
shrink = of_world(Communicator.shrink)
abort = of_world(Communicator.abort)
regroup = of_world(Communicator.regroup)
changes_pending = of_world(Communicator.changes_pending)
leave = of_world(Communicator.leave)
