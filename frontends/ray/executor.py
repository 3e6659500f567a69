"""Horovod's RayExecutor: a function on ranks that Ray places."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from collectives.failure import is_consequence
from collectives.launch import Failure, GuestJob, Success, WorkerLost, own_settings, root_cause
from frontends.ray.placement import Demand, Placement
from frontends.ray.worker import Worker
from transports.errors import DeadlineExceeded

REPORT_SECONDS: Final = 5.0
"""Time to wait for the root cause after a failure that looks like a consequence: Ray tells of a dead worker later than
the other ranks notice it."""
CLOSE_SECONDS: Final = 10.0
"""Time for the ranks to leave the world by themselves, and then for Ray to end their processes."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Ray colours its tracebacks."""


@dataclass(frozen=True)
class RaySettings:
    """Limits of time.

    timeout_s                   seconds for the workers to start and to connect
    placement_group_timeout_s   seconds for Ray to reserve their resources
    """

    timeout_s: float = 300.0
    placement_group_timeout_s: float = 100.0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "placement_group_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a positive number of seconds")


class RayExecutor:
    """Ranks on the nodes of a Ray cluster, which call functions until `shutdown`.

    settings                     limits of time, see `create_settings`
    num_workers                  number of ranks, on as few nodes as possible
    num_hosts                    instead of num_workers: number of nodes with num_workers_per_host ranks each
    num_workers_per_host         see num_hosts
    cpus_per_worker              CPUs that Ray reserves for a rank
    use_gpu                      True to reserve gpus_per_worker GPUs for a rank; Ray sets CUDA_VISIBLE_DEVICES
    gpus_per_worker              by default 1 with use_gpu
    use_current_placement_group  True: inside a placement group, as in a trial of Ray Tune, use its bundles

    The ranks of a node have neighbouring numbers. Ray carries the functions, which cloudpickle pickles: they may be
    defined anywhere, also in a notebook. Ray shows the output of a rank as '(rank 1 pid=..., ip=...)'. The store in
    which the ranks meet is served by this process, so it must be in the cluster: Ray Client is refused.

    After an error of a rank, and after KeyboardInterrupt, all ranks are ended; `start` makes new ones. If this process
    ends, Ray ends the ranks. `with RayExecutor(...) as executor` starts it and shuts it down.

    Raises ValueError for bad arguments.
    """

    def __init__(
        self,
        settings: RaySettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
    ) -> None:
        self._settings = settings or RaySettings()
        if (num_workers is None) == (num_hosts is None):
            raise ValueError("num_workers, num_hosts: give one of them")
        per_node = None if num_hosts is None else _at_least_one("num_workers_per_host", num_workers_per_host)
        count = (
            _at_least_one("num_workers", num_workers)
            if per_node is None
            else per_node * _at_least_one("num_hosts", num_hosts)
        )
        self._demand = Demand(count, resources_of(cpus_per_worker, use_gpu, gpus_per_worker), per_node)
        self._use_current = use_current_placement_group
        self._workers: list[Any] = []
        self._names: list[str] = []
        self._resources = contextlib.ExitStack()

    @classmethod
    def create_settings(cls, timeout_s: float = 300, placement_group_timeout_s: float = 100) -> RaySettings:
        """The limits of time: see RaySettings."""
        return RaySettings(timeout_s, placement_group_timeout_s)

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return self._demand.count

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks, each on its node. Raises RuntimeError before `start`."""
        return list(ray.get([worker.pid.remote() for worker in self._started()]))

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks, all or none, and connect them: the world communicator is there in every function.

        executable_cls         called on each rank with these arguments; `execute` hands over its result
        executable_args
        executable_kwargs
        extra_env_vars         variables for the ranks, besides Ronde's settings in this process's environment

        Raises DeadlineExceeded if Ray does not place or start the ranks in time, the error of the rank that failed
        first, RuntimeError if they are there already or through Ray Client. Nothing is left then.
        """
        if self._workers:
            raise RuntimeError("start: the executor was started before; call shutdown first")
        if ray.util.client.ray.is_connected():
            raise RuntimeError(
                "start: this process is connected through Ray Client, where the ranks cannot reach it; run the program "
                "in the cluster, for example by `ray job submit`"
            )
        variables = {**own_settings(), **{name: str(value) for name, value in (extra_env_vars or {}).items()}}
        settings = self._settings
        try:
            placement = Placement(self._demand, settings.placement_group_timeout_s, use_current=self._use_current)
            self._resources.callback(placement.close)
            job = self._resources.enter_context(GuestJob(variables))
            self._names = [f"node {place.address}" for place in placement.places]
            self._workers = [self._actor(placement, rank) for rank in range(self.num_workers)]
            until = time.monotonic() + settings.timeout_s
            pids = self._collect([worker.pid.remote() for worker in self._workers], until)
            self._names = [f"{name}, pid {pid}" for name, pid in zip(self._names, pids, strict=True)]
            address = placement.places[0].address
            torch = self._collect([self._workers[0].free_address.remote(address)], until)[0]
            call = (executable_cls, list(executable_args or ()), dict(executable_kwargs or {}))
            seats = job.seats(placement.places, torch)
            self._collect([w.connect.remote(seat, *call) for w, seat in zip(self._workers, seats, strict=True)], until)
        except BaseException:
            self._end(wait=False)
            raise

    def _actor(self, placement: Placement, rank: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            placement.group, placement_group_bundle_index=placement.bundles[rank]
        )
        resources = self._demand.resources
        options = {"num_cpus": resources["CPU"], "num_gpus": resources["GPU"], "scheduling_strategy": strategy}
        return ray.remote(Worker).options(**options).remote(rank)

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; the results in rank order.

        Raises the error of the rank that failed first, with a note of its rank and traceback; WorkerLost with rank,
        node and process if a worker died; RuntimeError before `start`. All ranks are ended first.
        """
        return self._all(self.run_remote(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, but returns Ray's object references of the results at once. `ray.get` of them raises the errors.

        After an error `shutdown` and `start` are needed.
        """
        call = (fn, list(args or ()), dict(kwargs or {}))
        return [worker.call.remote(*call) for worker in self._started()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on every rank, with the object of `executable_cls`; the results in rank order.

        Raises as `run`.
        """
        return self._all([worker.call_executable.remote(fn) for worker in self._started()])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """As `execute`, on rank 0 alone."""
        return self._all([self._started()[0].call_executable.remote(fn)])[0]

    def shutdown(self) -> None:
        """End the ranks and give the resources back. Also cancels a call in another thread. Idempotent."""
        self._end(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(wait=kind is None)

    def _started(self) -> list[Any]:
        if not self._workers:
            raise RuntimeError("the executor has no ranks: call start first")
        return self._workers

    def _all(self, references: Sequence[Any]) -> list[Any]:
        try:
            return self._collect(references)
        except BaseException:
            self._end(wait=False)
            raise

    def _collect(self, references: Sequence[Any], until: float | None = None) -> list[Any]:
        """The values of the ranks from 0 on. Raises the root cause; DeadlineExceeded that names the ranks."""
        rank_of = {reference: rank for rank, reference in enumerate(references)}
        waiting, limit = list(references), until
        values: dict[int, Any] = {}
        failures: list[Failure] = []
        while waiting:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            if not done:
                break
            outcome = self._outcome(rank_of[done[0]], done[0])
            if isinstance(outcome, Success):
                values[outcome.rank] = outcome.value
                continue
            failures.append(outcome)
            if not is_consequence(outcome.error):
                break
            if len(failures) == 1:
                limit = time.monotonic() + REPORT_SECONDS
        if failures:
            root_cause(failures).reraise()
        if waiting:
            late = ", ".join(str(rank_of[reference]) for reference in waiting)
            raise DeadlineExceeded(f"start: not within timeout_s={self._settings.timeout_s:g} s: rank {late}")
        return [values[rank] for rank in range(len(references))]

    def _outcome(self, rank: int, reference: Any) -> Success | Failure:
        try:
            return Success(rank, ray.get(reference))
        except RayTaskError as error:
            if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
                return Failure(rank, error.cause, _plain(error))
            return Failure(rank, RuntimeError(f"rank {rank} raised an error that cannot be pickled"), _plain(error))
        except RayActorError as error:
            reason = str(error).partition("\n")[0].rstrip(". ")
            return Failure(rank, WorkerLost(f"rank {rank} ({self._names[rank]}) was lost: {reason}"))
        except RayError as error:
            return Failure(rank, RuntimeError(f"rank {rank}: Ray cannot fetch the result"), _plain(error))

    def _end(self, *, wait: bool) -> None:
        """End all ranks. `wait`: let them leave the world by themselves."""
        workers, self._workers = self._workers, []
        resources, self._resources = self._resources, contextlib.ExitStack()
        with resources:
            if wait and workers:
                with contextlib.suppress(RayError, GetTimeoutError):
                    ray.get([worker.leave.remote() for worker in workers], timeout=CLOSE_SECONDS)
            for worker in workers:
                ray.kill(worker)
            # A call to an actor fails once Ray has ended its process.
            ray.wait(
                [w.pid.remote() for w in workers], num_returns=len(workers), timeout=CLOSE_SECONDS
            ) if workers else 0


def _plain(error: RayError) -> str:
    return _COLOURS.sub("", str(error)).rstrip()


def resources_of(cpus: float, use_gpu: bool, gpus: float | None) -> dict[str, float]:
    """The resources of a worker, by Ray's names. Raises ValueError."""
    if cpus < 0:
        raise ValueError(f"cpus_per_worker={cpus!r}: must be 0 or more")
    if gpus is not None and not use_gpu:
        raise ValueError(f"gpus_per_worker={gpus!r}: needs use_gpu=True")
    if gpus is not None and not gpus > 0:
        raise ValueError(f"gpus_per_worker={gpus!r}: must be more than 0")
    found = {"CPU": float(cpus), "GPU": float(gpus or 1) if use_gpu else 0.0}
    if not any(found.values()):
        raise ValueError(f"cpus_per_worker={cpus!r}: must be more than 0 without GPUs")
    return found


def _at_least_one(name: str, value: int | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}: must be an integer, 1 or more")
    return value
