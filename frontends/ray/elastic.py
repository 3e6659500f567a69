"""Elastic training in a Ray cluster: the other ranks go on when one is lost, and a new one joins them.

Ranks whose function does not regroup are all started again, with as many as the nodes have room for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collectives.launch import WorkerLost, variables_of
from frontends.ray.executor import Executor, refuse_ray_client, resources_of
from frontends.ray.placement import Demand, capacity
from frontends.ray.ranks import Executable, Ranks, RaySettings

log: Final = logging.getLogger("ronde.ray")


class ElasticRayExecutor(Executor):
    """A RayExecutor with as many ranks as the cluster has room for, which may be lost.

    settings         limits of time, see RayExecutor
    min_workers      the smallest number of ranks
    max_workers      the largest; None for no limit
    cpus_per_worker  CPUs that Ray reserves for a rank
    use_gpu          True to reserve gpus_per_worker GPUs for a rank
    gpus_per_worker  by default 1 with use_gpu
    reset_limit      how many ranks may be lost; None for no limit
    env_vars         variables for the ranks

    A function that uses `ronde.elastic.run`, or that of a frontend, goes on after a lost rank: the others regroup, and
    a new one joins them, if Ray has room for it, with the function called from the start. With fewer than min_workers
    they wait for it. If the function does not regroup, all ranks are started again and the call is repeated: it must
    load its last checkpoint. An error that the function raises is not repeated. `start`, then any of the calls, and
    `shutdown` in the end.

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
        self._settings = settings or RaySettings()
        self._min, self._max, self._losses_left = min_workers, max_workers, reset_limit
        self._variables = variables_of("env_vars", env_vars)
        self._executable = Executable(None, None, None)

    @property
    def num_workers(self) -> int:
        """The number of ranks now; 0 before `start`."""
        return 0 if self._ranks is None else len(self._ranks)

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks: as RayExecutor.start. Raises as that; ValueError if min_workers never fit."""
        if self._ranks is not None:
            raise RuntimeError("start: the executor was started before; call shutdown first")
        self._variables |= variables_of("extra_env_vars", extra_env_vars)
        self._executable = Executable(executable_cls, executable_args, executable_kwargs)
        self._start()

    def _on_all(self, submit: Callable[[Any], Any]) -> list[Any]:
        while True:
            ranks = self._started()
            if not ranks:
                self._start()  # the call before has closed the world
                continue
            try:
                return ranks.call_elastic(submit, self._losses_left)
            except WorkerLost as error:
                if self._losses_left is not None and ranks.lost > self._losses_left:
                    self._end(wait=False)
                    raise
                log.warning("%s; starting again", error)
                self._start()
            except BaseException:
                self._end(wait=False)
                raise

    def _start(self) -> None:
        """Start ranks, in place of those that there are."""
        refuse_ray_client()
        if self._ranks is not None and self._losses_left is not None:
            self._losses_left -= self._ranks.lost
        self._end(wait=False)
        room = capacity(self._resources)
        count = max(room if self._max is None else min(room, self._max), self._min)
        bounds = (self._min, count if self._max is None else self._max)
        ranks = Ranks(Demand(count, self._resources), self._settings, use_current=False, bounds=bounds)
        ranks.start(self._executable, self._variables)
        self._ranks = ranks
