"""Operations of a group as torch's dispatcher sees them: the operators c10d::*.

torch calls the methods of a group that is written in Python without its dispatcher. So what hears of operators there
would miss them: dispatch modes (CommDebugMode, FakeTensorMode, MemTracker), tracers (make_fx), tensor subclasses, meta
tensors, and the profiler. While one of these is there, a call takes the way that the calls of torch's own backends
always take:

    ProcessGroup.allreduce             calls.py asks `passes`; without any of these, the operation runs at once
      Seen.allreduce                   torch's C++ method, which calls the operator
        c10d::allreduce_               modes, tracers and subclasses see it; fake and meta tensors end here
          kernel                       that of this module, for tensors on the CPU and on GPUs
            ProcessGroup.allreduce     without asking

The kernels stand before torch's, whose backends are C++ objects, from a group's first call of this kind on: at the
dispatch key BackendSelect. Calls of other groups go on to torch's kernels without Python's lock, which gloo's threads
take while they have a lock for which such a call waits.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled
from torch.distributed.distributed_c10d import AllgatherOptions

from frontends.torch.described import Described
from frontends.torch.works import eager

_KEPT: Final = 64
"""Number of works that are kept alive for graphs, which call the operators: an operator returns the C++ part of a Work,
which has no methods once the Python object is gone."""
PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
"""torch's own classes of tensors. Subclasses of the user's are told of calls by the dispatcher."""
_modes: Final = torch._C._len_torch_dispatch_stack


class _Operator(NamedTuple):
    """An operator: the method of a group that does it, and the type of the method's options (None: it has none)."""

    method: str
    options: type[Any] | None


_OPERATORS: Final = {
    "allreduce_": _Operator("allreduce", dist.AllreduceOptions),
    "allreduce_coalesced_": _Operator("allreduce_coalesced", dist.AllreduceCoalescedOptions),
    "broadcast_": _Operator("broadcast", dist.BroadcastOptions),
    "reduce_": _Operator("reduce", dist.ReduceOptions),
    "allgather_": _Operator("allgather", AllgatherOptions),
    "allgather_coalesced_": _Operator("allgather_coalesced", AllgatherOptions),
    "_allgather_base_": _Operator("all_gather_single", AllgatherOptions),
    "allgather_into_tensor_coalesced_": _Operator("all_gather_single_coalesced", AllgatherOptions),
    "reduce_scatter_": _Operator("reduce_scatter", dist.ReduceScatterOptions),
    "_reduce_scatter_base_": _Operator("reduce_scatter_single", dist.ReduceScatterOptions),
    "reduce_scatter_tensor_coalesced_": _Operator("reduce_scatter_single_coalesced", dist.ReduceScatterOptions),
    "alltoall_": _Operator("alltoall", dist.AllToAllOptions),
    "alltoall_base_": _Operator("all_to_all_single", dist.AllToAllOptions),
    "gather_": _Operator("gather", dist.GatherOptions),
    "scatter_": _Operator("scatter", dist.ScatterOptions),
    "barrier": _Operator("barrier", dist.BarrierOptions),
    "send": _Operator("send", None),
    "recv_": _Operator("recv", None),
    "recv_any_source_": _Operator("recv_anysource", None),
}
_FIELDS: Final = {"root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp"}
"""Arguments of operators, and the fields of options that have their values."""
_POSSIBLE: Final = hasattr(dist.ProcessGroup, "all_gather_single")
"""False for torch before 2.13. Calls do not pass the dispatcher there."""


class _Call(NamedTuple):
    """A call that a thread makes by way of the dispatcher: its options, and the works that its operators have begun."""

    options: Any
    works: list[dist.Work]


@eager
class Seen(Described):
    """A group as the dispatcher sees it: its methods are torch's, which call the operators."""

    def __init__(self, group: Described) -> None:
        super().__init__(group.rank(), group.size(), group.get_group_store())
        self._set_group_name(group.group_name)
        self._set_group_desc(group.group_desc)
        self._group = weakref.ref(group)
        self._thread = threading.local()
        self._works: deque[dist.Work] = deque(maxlen=_KEPT)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Make a call of a method, whose last argument has its options, by way of the operator."""
        outer, self._thread.call = self._call, _Call(args[-1], [])
        try:
            return getattr(self, method)(*args)  # the Python object of the Work, which the caller keeps
        finally:
            self._thread.call = outer

    @property
    def _call(self) -> _Call | None:
        """The call that this thread makes; None if a graph calls the operator."""
        return getattr(self._thread, "call", None)

    def run(self, method: str, args: tuple[Any, ...]) -> Any:
        """Make the same call, from the operator; returns its boxed Work."""
        group, call = self._group(), self._call
        if group is None:
            raise dist.DistBackendError("the process group of this operation is gone")
        work = getattr(type(group), method).direct(group, *args)
        (self._works if call is None else call.works).append(work)
        return work.boxed()

    def factor(self, kind: Any) -> Any:
        """The ReduceOp of a kind; that of PREMUL_SUM with its factor, which the operator's argument does not show."""
        if kind != dist.ReduceOp.RedOpType.PREMUL_SUM:
            return dist.ReduceOp(kind)
        call = self._call
        if call is None:
            raise ValueError("op=PREMUL_SUM: its factor is not known in a graph; scale the tensor and use SUM")
        return call.options.reduceOp


def passes(args: tuple[Any, ...]) -> bool:
    """True if a call with these tensors, or lists of them, takes the way of the dispatcher."""
    if _profiler_enabled() or _modes():
        return _POSSIBLE
    return not all(map(_plain, args)) and _POSSIBLE


def _plain(given: Any) -> bool:
    """True for tensors of which nobody but the group needs to hear. Other things are left to the group's checks."""
    kind = type(given)
    if kind is list or kind is tuple:
        return all(map(_plain, given))
    return not given.is_meta if kind in PLAIN else not isinstance(given, torch.Tensor)


def seen(group: Described) -> Seen:
    """Make the group that the dispatcher sees, with the kernels of its operators."""
    _register()
    return Seen(group)


@functools.cache
def _register() -> list[torch.library.Library]:
    """Put the kernels in their place. Returns their owner: they are gone when it is."""
    library = torch.library.Library("c10d", "IMPL")
    for name, operator in _OPERATORS.items():
        library.impl(name, _kernel(getattr(torch.ops.c10d, name).default, operator), "BackendSelect", with_keyset=True)
    return [library]


def _kernel(overload: Any, operator: _Operator) -> Callable[..., Any]:
    """A kernel of an operator, which passes on what is not for it."""
    schema = overload._schema
    names = [argument.name for argument in schema.arguments]
    defaults = [argument.default_value for argument in schema.arguments]

    def kernel(keys: Any, *given: Any) -> Any:
        args = (*given, *defaults[len(given) :])  # arguments that have their default values are left out
        values = dict(zip(names, args, strict=True))
        group = dist.ProcessGroup.unbox(values.pop("process_group"))
        if not isinstance(group, Seen) or keys.has(torch._C.DispatchKey.Meta):
            return overload.redispatch(keys.remove(torch._C.DispatchKey.BackendSelect), *args)  # without Python's lock
        work = group.run(operator.method, tuple(_arguments(values, operator.options, group)))
        return work if len(schema.returns) == 1 else (args[0], work)

    return kernel


def _arguments(values: dict[str, Any], options: type[Any] | None, group: Seen) -> Iterator[Any]:
    """The arguments of a group's method, made of those of the operator."""
    if options is None:
        yield from values.values()
        return
    made = options()
    for name, value in values.items():
        if name in _FIELDS:
            setattr(made, _FIELDS[name], value)
        elif name == "reduce_op":
            made.reduceOp = group.factor(dist.ReduceOp.RedOpType(value.op()))
        elif name == "timeout":
            if value >= 0:
                made.timeout = timedelta(milliseconds=value)
        elif name not in ("sparse_indices", "device_ids", "tensor"):
            yield value
    yield made
