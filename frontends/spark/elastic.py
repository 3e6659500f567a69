"""`run_elastic`: ranks that are replaced when they are lost.

The tasks are those of an ordinary stage: Spark starts a lost one again, and leaves the others alone. So the ranks that
are left go on, and the new task joins them.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
from pyspark import SparkContext

from collectives.launch import ElasticOutcomes, Failure, GuestJob, Seat, WorkerLost, load, own_settings
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
        seats = take_seats(job, desk, arrivals, bounds=(minimum, maximum))
        ranks = _Ranks(job, desk, arrivals, seats, ElasticOutcomes(seats, reset_limit))
        ranks.wait()
        values = ranks.outcomes.values()
        if len(values) < maximum:  # some tasks got no slot, or were not admitted
            cancel()
    return [values[task] for task in sorted(values, key=ranks.numbers.__getitem__)]


@dataclass
class _Ranks:
    """The ranks of an elastic job, as the driver knows them, by the numbers of their tasks.

    arrivals  the tasks that have come
    numbers   the ranks of those that have ended
    """

    job: GuestJob
    desk: Desk
    arrivals: dict[int, Arrival]
    seats: dict[int, Seat]
    outcomes: ElasticOutcomes
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def wait(self) -> None:
        """Serve the tasks until the outcome is known. Raises RuntimeError if Spark has ended the job."""
        outcomes = self.outcomes
        while not outcomes.decided:
            try:
                left = None if outcomes.until == math.inf else max(0.0, outcomes.until - time.monotonic())
                event = self.desk.events.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(event, JobEnded):
                if not outcomes.failed:
                    raise RuntimeError("run_elastic: Spark ended the job; was it cancelled?") from event.error
                break
            self._handle(*event)

    def _handle(self, task: int, message: Message) -> None:
        member = task in self.outcomes.members
        match message:
            case Arrival():
                self.arrivals[task] = message
                self.seats[task] = self.job.newcomer(message.place)
                self.desk.send(task, self.seats[task])
            case Joined():
                self.outcomes.members.add(task)
            case Line():
                show(self.seats[task].rank, message)
            case Result():
                self.desk.hang_up(task)
                self.numbers[task] = message.rank
                if member:
                    self.outcomes.add(task, load(self.seats[task].rank, message.outcome), time.monotonic())
            case Gone() if member:
                rank = self.seats[task].rank
                self.outcomes.lose(task, Failure(rank, WorkerLost(f"rank {rank} ({self.arrivals[task]}) was lost")))
