"""Horovod's RayExecutor: a function on ranks that Ray places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import ray

from collectives.launch import call_of, count_of, variables_of
from frontends.ray.placement import Demand
from frontends.ray.ranks import Executable, Ranks, RaySettings


class Executor(ABC):
    """The calls of an executor. `start`, then any of them, and `shutdown` in the end."""

    _ranks: Ranks | None = None

    @abstractmethod
    def start(self, *args: Any, **options: Any) -> None:
        """Start the ranks."""

    @abstractmethod
    def _on_all(self, submit: Callable[[Any], Any]) -> list[Any]:
        """Make a call by `submit` on every actor; the results in rank order. Ends all ranks if it raises."""

    def _started(self) -> Ranks:
        if self._ranks is None:
            raise RuntimeError("the executor has no ranks: call start first")
        return self._ranks

    def _end(self, *, wait: bool) -> None:
        """End all ranks. `wait`: let them leave the world by themselves. Idempotent."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.end(wait=wait)

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; the results in rank order.

        Raises the error of the rank that failed first, with a note of its rank and traceback; WorkerLost with rank,
        node and process if a worker died, or more than may be lost; RuntimeError before `start`. All ranks are ended
        first.
        """
        call = call_of("fn", fn, args, kwargs)
        return self._on_all(lambda actor: actor.attempt.remote("call", *call))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Start a run, and return Ray's object references of the results at once. `ray.get` of them raises the errors.

        After an error `shutdown` and `start` are needed. No lost rank is replaced.
        """
        call = call_of("fn", fn, args, kwargs)
        return self._started().submit(lambda actor: actor.call_for_user.remote(*call))

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on every rank, with the object of `executable_cls`; as `run`."""
        return self._on_all(lambda actor: actor.attempt.remote("call_executable", fn))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Run `execute` on rank 0 alone. It is not repeated."""
        ranks = self._started()
        try:
            return ranks.collect([ranks.actors[0].attempt.remote("call_executable", fn)])[0]
        except BaseException:
            self._end(wait=False)
            raise

    def shutdown(self) -> None:
        """End the ranks and give the resources back. Also cancels a call in another thread. Idempotent."""
        self._end(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(wait=kind is None)


class RayExecutor(Executor):
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
        if (num_workers is None) == (num_hosts is None):
            raise ValueError("num_workers, num_hosts: give one of them")
        per_node = None if num_hosts is None else count_of("num_workers_per_host", num_workers_per_host)
        count = (
            count_of("num_workers", num_workers) if per_node is None else per_node * count_of("num_hosts", num_hosts)
        )
        demand = Demand(count, resources_of(cpus_per_worker, use_gpu, gpus_per_worker), per_node)
        self._demand, self._settings = demand, settings or RaySettings()
        self._use_current = use_current_placement_group

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
        return list(ray.get([actor.pid.remote() for actor in self._started().actors]))

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
        if self._ranks:
            raise RuntimeError("start: the executor was started before; call shutdown first")
        refuse_ray_client()
        variables = variables_of("extra_env_vars", extra_env_vars)
        self._ranks = Ranks(self._demand, self._settings, use_current=self._use_current)
        self._ranks.start(Executable(executable_cls, executable_args, executable_kwargs), variables)

    def _on_all(self, submit: Callable[[Any], Any]) -> list[Any]:
        ranks = self._started()
        try:
            return ranks.collect(ranks.submit(submit))
        except BaseException:
            self._end(wait=False)
            raise


def refuse_ray_client() -> None:
    """Raise RuntimeError if this process is connected through Ray Client."""
    if ray.util.client.ray.is_connected():
        raise RuntimeError(
            "start: this process is connected through Ray Client, where the ranks cannot reach it; run the program "
            "in the cluster, for example by `ray job submit`"
        )


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
