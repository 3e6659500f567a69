"""Times staged against single-copy algorithms when a communicator is made; see planning/calibration.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from collectives.algorithms import algorithms
from collectives.arrays import Array
from collectives.execution.binder import NO_DATA
from collectives.execution.executor import Executor
from collectives.execution.peers import maximum
from collectives.planning import BUDGET, NEVER, SIZES, Calibration, Call, Plan, find_thresholds
from collectives.schedule import SPECS

log = logging.getLogger("ronde.calibration")

COLLECTIVES: Final = tuple(name for name in SPECS if any(known.single_copy for known in algorithms(name).values()))
_BLOCKS: Final = 2
"""Blocks of runs of each algorithm, which alternate, so that a disturbance does not hit one algorithm alone."""
_RUNS: Final = 2
"""Timed runs in each block."""
_UNTIMED: Final = 1 << 60
_DTYPE: Final = np.dtype(np.float32)
Clock = Callable[[], float]


def calibrate(
    trial: Executor, deadline: float, clock: Clock = time.perf_counter, budget: float = BUDGET
) -> Calibration:
    """Measure on all ranks of an executor that nothing else uses, and that has a window. Collective.

    It takes little more than `budget` seconds: when the slowest rank has used them up, all ranks stop before the next
    measurement, and the cost model decides what is left. All ranks get the same result. Raises as `Executor.run`.
    """
    comparison = _Comparison(trial, deadline, clock)
    comparison.barrier()  # the budget does not include the wait for late ranks
    began = clock()
    comparison.end = began + budget
    thresholds, measured = find_thresholds(COLLECTIVES, comparison.seconds)
    result = Calibration(thresholds, measured, clock() - began)
    if trial.rank == 0:
        log.info("calibrated %d ranks: %s", len(trial.ranks), result.describe())
    return result


class _Comparison:
    """Runs both algorithms of a call and agrees on their times with the other ranks."""

    def __init__(self, trial: Executor, deadline: float, clock: Clock) -> None:
        self._trial = trial
        self._deadline = deadline
        self._clock = clock
        self.end = np.inf
        """Absolute time, by `clock`, at which this rank's budget ends."""
        self._staged = trial.planner.calibrated(Calibration(dict.fromkeys(COLLECTIVES, NEVER)))
        self._single = trial.planner.calibrated(Calibration(dict.fromkeys(COLLECTIVES, 1)))
        # Not zeros: pages that were never written share one physical page, which stays in the cache.
        self._x: Array = np.ones(SIZES[0] // _DTYPE.itemsize, _DTYPE)
        self._out: Array = np.ones_like(self._x)

    def seconds(self, collective: str, nbytes: int) -> tuple[list[float], list[float]] | None:
        """Seconds of each run of the staged and of the single-copy algorithm on the slowest rank; None if there is
        nothing to compare, or no time left. See `planning.calibration.Compare`. Collective."""
        call, source, target = self._arguments(collective, nbytes // _DTYPE.itemsize)
        plans = self._staged.plan(call), self._single.plan(call)
        if plans[0].algorithm.single_copy or not plans[1].algorithm.single_copy or self._over():
            return None
        times = np.full((2, _BLOCKS * _RUNS), np.inf)
        for block in range(_BLOCKS):
            for way, plan in enumerate(plans):
                plan.tally.next = _UNTIMED  # exclude these runs from the user's metrics
                for _ in range(0 if block else plan.staging_slots):  # so that the pages of all slots exist
                    self._run(plan, source, target)
                for run in range(_RUNS):
                    times[way, block * _RUNS + run] = self._run(plan, source, target)
        staged, single = maximum(self._trial, times.reshape(-1), self._deadline).reshape(times.shape)
        return staged.tolist(), single.tolist()

    def _arguments(self, collective: str, count: int) -> tuple[Call, Array, Array]:
        """A call on `count` elements in total, with this rank's arrays."""
        rank, size, spec = self._trial.rank, len(self._trial.ranks), SPECS[collective]
        part = count // size
        whole = part * size
        in_place = collective in ("allreduce", "broadcast")  # as gradients and parameters are
        alias, op = 0 if in_place else None, "max" if spec.reduces else None  # sums would grow
        call = Call(collective, _DTYPE, (part if spec.by_rank else whole,), op, alias=alias)
        target = self._out[: part if collective == "reduce_scatter" else whole]
        source = target if in_place else self._x[: part if collective == "allgather" else whole]
        return call, NO_DATA if spec.rooted and rank else source, target

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._trial.run_call(Call("barrier", np.dtype(np.uint8), (0,)), None, None, self._deadline)

    def _run(self, plan: Plan, source: Array, target: Array) -> float:
        """Seconds of one run on this rank, beginning after a barrier."""
        self.barrier()
        began = self._clock()
        self._trial.run(plan, source, target, self._deadline)
        return self._clock() - began

    def _over(self) -> bool:
        """True if the budget of any rank is used up. Collective."""
        return bool(maximum(self._trial, [self._clock() >= self.end], self._deadline)[0])
