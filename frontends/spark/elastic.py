"""`run_elastic`: ranks that are replaced when they are lost.

The tasks are those of an ordinary stage: Spark starts a lost one again, and leaves the others alone. So the ranks that
are left go on, and the new task joins them.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
from pyspark import SparkContext

from collectives.launch import REPORT_SECONDS, Failure, GuestJob, Seat, WorkerLost, load, own_settings, root_cause
from frontends.spark.desk import Arrival, Desk, Gone, JobEnded, Joined, Line, Message, Result
from frontends.spark.job import (
    check,
    collect_arrivals,
    open_desk,
    show,
    submitted,
    take_seats,
    wait_for_slots,
)


def run_elastic(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float = 120.0,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    spark_context: SparkContext | None = None,
) -> list[Any]:
    """Call an elastic function on ranks in tasks of Spark. Returns the results of the ranks that there are in the end,
    in rank order.

    function       as in `run`. It uses `ronde.elastic.run`, which regroups after a loss and admits newcomers, or
                   that of a frontend
    num_proc       number of ranks to begin with; by default Spark's default parallelism
    min_num_proc   the smallest number: with fewer the ranks wait for newcomers. By default num_proc
    max_num_proc   the largest number; by default num_proc. Ranks are added when slots become free
    start_timeout  seconds until the first num_proc tasks run; after it the job begins with min_num_proc or more
    reset_limit    number of ranks that may be lost; None for no limit but Spark's (`spark.task.maxFailures`)
    env            variables for the ranks, besides Ronde's settings in this process's environment
    spark_context  as in `run`

    When a task dies, the other ranks go on from their last commit. Spark starts the task again, and it joins them with
    its function called from the start, where it gets the state.

    Raises the error of the first rank whose function raised one; WorkerLost beyond reset_limit, or if all ranks were
    lost; and otherwise as `run`. No rank runs then.
    """
    context, count = check(function, num_proc, start_timeout, spark_context)
    minimum = count if min_num_proc is None else min_num_proc
    maximum = count if max_num_proc is None else max_num_proc
    if not 1 <= minimum <= count <= maximum:
        raise ValueError(
            f"min_num_proc={minimum!r}, num_proc={count!r}, max_num_proc={maximum!r}: must be 1 or more and ascend"
        )
    if reset_limit is not None and reset_limit < 0:
        raise ValueError(f"reset_limit={reset_limit!r}: must be 0 or more, or None")
    until = time.monotonic() + start_timeout
    wait_for_slots(context, minimum, until)
    with (
        GuestJob({**own_settings(), **(env or {})}) as job,
        open_desk(context) as desk,
        submitted(
            context, maximum, desk, cloudpickle.dumps((function, list(args), dict(kwargs or {}))), barrier=False
        ) as cancel,
    ):
        arrivals = collect_arrivals(desk, count, minimum, until)
        ranks = _Ranks(job, desk, arrivals, reset_limit)
        ranks.begin(minimum, maximum)
        ranks.wait()
        if len(ranks.values) < maximum:  # some tasks got no slot, or were not admitted
            cancel()
    return [value for _, value in sorted(ranks.values, key=lambda item: item[0])]


@dataclass
class _Ranks:
    """The ranks of an elastic job, as the driver knows them.

    arrivals  the tasks that have come, by their numbers
    members   those in the world that have neither ended nor been lost
    values    rank and result of those that have ended
    """

    job: GuestJob
    desk: Desk
    arrivals: dict[int, Arrival]
    reset_limit: int | None
    seats: dict[int, Seat] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)
    values: list[tuple[int, Any]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    lost: list[Failure] = field(default_factory=list)

    def begin(self, minimum: int, maximum: int) -> None:
        """Give the first ranks their seats."""
        self.seats = take_seats(self.job, self.desk, self.arrivals, bounds=(minimum, maximum))
        self.members = set(self.seats)

    def wait(self) -> None:
        """Serve the tasks until all ranks have ended. Raises as `run_elastic`."""
        until = float("inf")
        while self.members:
            try:
                left = None if until == float("inf") else max(0.0, until - time.monotonic())
                event = self.desk.events.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(event, JobEnded):
                if not self.failures and not self.lost:
                    raise RuntimeError("run_elastic: Spark ended the job; was it cancelled?") from event.error
                break
            self._handle(*event)
            if self.failures and not root_cause(self.failures).consequence:
                break
            if self.reset_limit is not None and len(self.lost) > self.reset_limit:
                root_cause(self.lost).reraise()
            if self.failures and until == float("inf"):
                until = time.monotonic() + REPORT_SECONDS
        if self.failures:
            root_cause([*self.failures, *self.lost]).reraise()
        if self.members or not self.values:
            self.lost[-1].reraise()

    def _handle(self, task: int, message: Message) -> None:
        match message:
            case Arrival():
                self.arrivals[task] = message
                self.seats[task] = self.job.newcomer(message.place)
                self.desk.send(task, self.seats[task])
            case Joined():
                self.members.add(task)
            case Line():
                show(self.seats[task].rank, message)
            case Result():
                self._end(task, message)
            case Gone() if task in self.members:
                self.members.discard(task)
                rank = self.seats[task].rank
                self.lost.append(Failure(rank, WorkerLost(f"rank {rank} ({self.arrivals[task]}) was lost")))

    def _end(self, task: int, result: Result) -> None:
        joined = task in self.members
        self.members.discard(task)
        self.desk.hang_up(task)
        outcome = load(self.seats[task].rank, result.outcome)
        if isinstance(outcome, Failure):
            if joined:
                self.failures.append(outcome)
        else:
            self.values.append((result.rank, outcome.value))
