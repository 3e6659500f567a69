"""Elastic training in a Ray cluster: after a lost worker the job starts again with the nodes that there are.

The ranks are started anew, so the function continues from a checkpoint of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from collectives.launch import WorkerLost
from frontends.ray.executor import RayExecutor, RaySettings, resources_of
from frontends.ray.placement import capacity

T = TypeVar("T")
log: Final = logging.getLogger("ronde.ray")


class ElasticRayExecutor:
    """As RayExecutor, with as many ranks as the cluster has room for; a call is repeated after a worker was lost.

    settings         limits of time, see RayExecutor
    min_workers      the smallest number of ranks
    max_workers      the largest; None for no limit
    cpus_per_worker  CPUs that Ray reserves for a rank
    use_gpu          True to reserve gpus_per_worker GPUs for a rank
    gpus_per_worker  by default 1 with use_gpu
    reset_limit      how often the ranks may be started again; None for no limit
    env_vars         variables for the ranks

    All ranks are processes of their own that are started again together: the function must load its last checkpoint.
    An error that the function raises is not repeated. `start`, then any of the calls, and `shutdown` in the end.

    Raises ValueError for bad arguments.
    """

    def __init__(
        self,
        settings: RaySettings | None = None,
        *,
        min_workers: int = 1,
        max_workers: int | None = None,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        reset_limit: int | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        if min_workers < 1:
            raise ValueError(f"min_workers={min_workers!r}: must be 1 or more")
        if max_workers is not None and max_workers < min_workers:
            raise ValueError(f"max_workers={max_workers!r}: must be min_workers ({min_workers}) or more")
        if reset_limit is not None and reset_limit < 0:
            raise ValueError(f"reset_limit={reset_limit!r}: must be 0 or more, or None")
        self._resources = resources_of(cpus_per_worker, use_gpu, gpus_per_worker)
        self._settings = settings
        self._min, self._max, self._resets_left = min_workers, max_workers, reset_limit
        self._options: dict[str, Any] = {
            "cpus_per_worker": cpus_per_worker,
            "use_gpu": use_gpu,
            "gpus_per_worker": gpus_per_worker,
        }
        self._variables = dict(env_vars or {})
        self._executable: tuple[Any, Any, Any] = (None, None, None)
        self._executor: RayExecutor | None = None

    @property
    def num_workers(self) -> int:
        """The number of ranks now; 0 before `start`."""
        return 0 if self._executor is None else self._executor.num_workers

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks: as RayExecutor.start. Raises as that; ValueError if min_workers never fit."""
        if self._executor is not None:
            raise RuntimeError("start: the executor was started before; call shutdown first")
        self._variables |= extra_env_vars or {}
        self._executable = (executable_cls, executable_args, executable_kwargs)
        self._start()

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; the results of the call that no lost worker ended, in rank order.

        Raises the error that the function raised; WorkerLost beyond reset_limit. All ranks are ended then.
        """
        return self._repeat(lambda executor: executor.run(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As RayExecutor.run_remote: Ray's references. Such a call is not repeated."""
        return self._started().run_remote(fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on every rank; repeated as `run`."""
        return self._repeat(lambda executor: executor.execute(fn))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """As `execute`, on rank 0 alone."""
        return self._repeat(lambda executor: executor.execute_single(fn))

    def shutdown(self) -> None:
        """End the ranks and give the resources back. Idempotent."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _repeat(self, call: Callable[[RayExecutor], T]) -> T:
        while True:
            try:
                return call(self._started())
            except WorkerLost as error:
                self._executor = None
                if self._resets_left == 0:
                    raise
                if self._resets_left is not None:
                    self._resets_left -= 1
                log.warning("%s; starting again", error)
                self._start()
            except BaseException:
                self._executor = None
                raise

    def _started(self) -> RayExecutor:
        if self._executor is None:
            raise RuntimeError("the executor has no ranks: call start first")
        return self._executor

    def _start(self) -> None:
        room = capacity(self._resources)
        count = room if self._max is None else min(room, self._max)
        executor = RayExecutor(self._settings, max(count, self._min), **self._options)
        executor.start(*self._executable, extra_env_vars=self._variables)
        self._executor = executor
