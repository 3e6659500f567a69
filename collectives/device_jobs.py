"""Jobs on arrays of GPUs: found among all calls, placed on a stream, done natively or by way of the host.

A call's work goes to the current stream of the library that its array is of. A job that another thread runs (an
asynchronous one) does its work beside that stream, so that what the caller enqueues next need not wait for it; whoever
waits for its Work has his current stream wait for it, not himself.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from collectives.arguments import JobMaker
from collectives.config import Config
from collectives.devices import Place, cuda, is_device_array, wait_until_done
from collectives.enqueue import Enqueuer
from collectives.execute import Executor
from collectives.fusion import Packable
from collectives.native_jobs import NativeJobs
from collectives.plan import Call
from collectives.progress import Claim, Job
from collectives.reductions import ADASUM
from collectives.select import Selector
from collectives.staged_jobs import StagedJobs

P = ParamSpec("P")
J = TypeVar("J", bound="DeviceAware")

_METHODS: Final = (
    "allreduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
    "grouped_allreduce",
    "grouped_allgather",
)
"""The methods that take arrays."""


class DeviceJobs:
    """Makes the jobs on arrays of GPUs for one maker of jobs on arrays in the host's memory."""

    def __init__(self, rank: int, size: int, executor: Executor, selector: Selector, config: Config) -> None:
        self._executor = executor
        self._timeout = config.timeout
        self._enqueuer = Enqueuer(executor)
        self._native = NativeJobs(rank, size, executor, selector, config, self._enqueuer)
        self._staged = StagedJobs(executor, config.reproducible)
        self._beside: dict[int, Place] = {}

    def job(
        self,
        make: Callable[..., Job[Any]],
        maker: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        place: Place,
        like: Any,
        blocking: bool,
    ) -> Job[Any]:
        """What `make(maker, *args, **kwargs)` is for arrays in the host's memory.

        like      one of the arrays
        blocking  the job is done when the GPU is, not when the work has been enqueued
        """
        with place:
            op = kwargs.get("op", args[1] if len(args) > 1 else None)
            staged = self._enqueuer.refused(maker.deadline()) or (isinstance(op, str) and op == ADASUM)
            if staged:
                inner = self._staged.job(make, maker, args, kwargs)
            else:
                inner = getattr(self._native, make.__name__)(*args, **kwargs)

        def by_whichever_way(deadline: float) -> Any:
            if staged or self._enqueuer.join(place, deadline):
                return inner.run(deadline)
            return self._staged.job(make, maker, args, kwargs).run(deadline)

        here = threading.get_ident()

        def run(deadline: float) -> Any:
            there = place if threading.get_ident() == here else self._aside(place)
            with there:
                result = by_whichever_way(deadline)
                done = None if there is place and not blocking else there.mark()
                if blocking:
                    wait_until_done(done, deadline, self._staged.attend, inner.terms.describe())
                if there is place:
                    return place.cuda.like(result, like)
            return Claim(partial(_take, result, done, like))

        pack = inner.packable
        return Job(run, inner.timeout, inner.terms, None if pack is None else _claimed(pack, like))

    def bare_allreduce(self, x: Any, out: Any, op: str) -> Callable[[], None] | None:
        """The transport's own allreduce of flat arrays in the current place; see Enqueuer.bare."""
        return self._enqueuer.bare(Call("allreduce", x.dtype, (x.size,), op), x, out, cuda().here())

    def close(self, deadline: float) -> None:
        """Release what is held for GPUs. Raises DeadlineExceeded."""
        self._staged.release()
        self._beside.clear()
        self._enqueuer.close(deadline)

    def _aside(self, place: Place) -> Place:
        """A place beside this one, which begins behind what has been enqueued there."""
        aside = self._beside.get(place.device)
        if aside is None:
            aside = self._beside[place.device] = place.beside()
        aside.after(place.mark())
        return aside


def _claimed(pack: Packable, like: Any) -> Packable:
    """A Packable whose result is one to be claimed."""
    return Packable(pack.parts, lambda: Claim(partial(_take, pack.finish(), None, like)))


def _take(result: Any, event: Any, like: Any) -> Any:
    """A result that the GPU is at work on, for the calling thread: in the library of `like`, whose current stream waits
    for the event, if there is one."""
    with cuda().place(like) as place:
        if event is not None:
            place.after(event)
        return place.cuda.like(result, like)


class DeviceAware(JobMaker):
    """A maker of jobs that takes arrays of GPUs too, where a class of it is decorated with `takes_devices`."""

    _devices: DeviceJobs | None = None
    _making = threading.Lock()

    @property
    def devices(self) -> DeviceJobs:
        """What makes the jobs on arrays of GPUs; made when there is the first."""
        if self._devices is None:
            with self._making:
                if self._devices is None:
                    self._devices = DeviceJobs(self.rank, self.size, self._executor, self._selector, self._config)
        return self._devices

    def close_devices(self, deadline: float) -> None:
        """Release what is held for GPUs. Collective if anything is. Raises DeadlineExceeded."""
        devices, self._devices = self._devices, None
        if devices is not None:
            devices.close(deadline)


class OnDevices:
    """A communicator, as far as arrays of GPUs go."""

    _jobs: Any

    @property
    def devices(self) -> DeviceJobs:
        """What makes its jobs on arrays of GPUs."""
        found: DeviceJobs = self._jobs.devices
        return found


def takes_devices(maker: type[J]) -> type[J]:
    """Decorates a class of jobs: its methods take arrays of GPUs, too, and for those two arguments more.

    stream     where the work is to be done, instead of the current stream of the arrays' library: an object with
               `__cuda_stream__`, or the handle of a CUDA stream
    blocking   True: return (or complete the Work) when the GPU is done, not when the work has been enqueued
    """
    for name in _METHODS:
        setattr(maker, name, _routed(getattr(maker, name)))
    return maker


def _routed(make: Callable[Concatenate[J, P], Job[Any]]) -> Callable[Concatenate[J, P], Job[Any]]:
    @functools.wraps(make)
    def route(self: J, /, *args: Any, **kwargs: Any) -> Job[Any]:
        x = args[0] if args else kwargs.get("x", kwargs.get("xs"))
        if type(x) is np.ndarray and "stream" not in kwargs and "blocking" not in kwargs:
            return make(self, *args, **kwargs)
        stream, blocking = kwargs.pop("stream", None), kwargs.pop("blocking", False)
        found = _on_device(x, kwargs.get("out"))
        if found is None:
            if stream is not None:
                raise ValueError(f"stream={stream!r}: is for arrays on GPUs, and x is none")
            return make(self, *args, **kwargs)
        return self.devices.job(make, self, args, kwargs, cuda().place(found, stream), found, bool(blocking))

    signature = inspect.signature(make)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in (("stream", None, "Any"), ("blocking", False, "bool"))
    ]
    route.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *own])  # type: ignore[attr-defined]
    return route


def _on_device(x: Any, out: Any) -> Any:
    """The array that says where the call's work is to be done; None for arrays in the host's memory."""
    if is_device_array(x):
        return x
    if isinstance(x, (list, tuple)):  # the others must be where the first is
        return x[0] if x and is_device_array(x[0]) else None
    return out if x is None and is_device_array(out) else None
