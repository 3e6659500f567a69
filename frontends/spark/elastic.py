"""`run_elastic`: ranks that are replaced when they are lost.

The tasks are those of an ordinary stage: Spark starts a lost one again, and leaves the others alone. So the ranks that
are left go on, and the new task joins them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import cloudpickle
from pyspark import SparkContext

from collectives.launch import (
    ElasticOutcomes,
    Failure,
    GuestJob,
    Seat,
    WorkerLost,
    call_of,
    count_of,
    load,
    own_settings,
    pickled_call,
    seconds_of,
    show_line,
    variables_of,
)
from frontends.spark.desk import Arrival, Desk, Gone, Joined, Line, Result
from frontends.spark.job import (
    check,
    collect_arrivals,
    events_of,
    open_desk,
    submitted,
    take_seats,
    wait_for_slots,
)

log: Final = logging.getLogger("ronde.spark")


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
    lost; the error of a new task that cannot join, if the others wait for it; and otherwise as `run`. No rank runs
    then.
    """
    called = pickled_call("function", call_of("function", function, args, kwargs), cloudpickle.dumps)
    seconds = seconds_of("start_timeout", start_timeout)
    variables = variables_of("env", env)
    context, count = check(num_proc, spark_context)
    minimum = count if min_num_proc is None else count_of("min_num_proc", min_num_proc)
    maximum = count if max_num_proc is None else count_of("max_num_proc", max_num_proc)
    if not minimum <= count <= maximum:
        raise ValueError(f"min_num_proc={minimum!r}, num_proc={count!r}, max_num_proc={maximum!r}: must ascend")
    if reset_limit is not None and reset_limit < 0:
        raise ValueError(f"reset_limit={reset_limit!r}: must be 0 or more, or None")
    until = time.monotonic() + seconds
    wait_for_slots(context, minimum, until)
    with (
        GuestJob({**own_settings(), **variables}) as job,
        open_desk(context) as desk,
        submitted(context, maximum, desk, called, barrier=False) as cancel,
    ):
        arrivals = collect_arrivals(desk, count, minimum, until)
        seats = take_seats(job, desk, arrivals, bounds=(minimum, maximum))
        outcomes = ElasticOutcomes(seats, reset_limit, minimum)
        numbers = _serve(job, desk, arrivals, seats, outcomes)
        values = outcomes.values()
        if len(values) < maximum:  # some tasks got no slot, or were not admitted
            cancel()
    return [values[task] for task in sorted(values, key=numbers.__getitem__)]


def _serve(
    job: GuestJob, desk: Desk, arrivals: dict[int, Arrival], seats: dict[int, Seat], outcomes: ElasticOutcomes
) -> dict[Hashable, int]:
    """Serve the tasks until the outcome is known. Returns the ranks of those that have ended."""
    numbers: dict[Hashable, int] = {}
    coming: set[int] = set()
    for task, message in events_of(desk, outcomes):
        member = task in outcomes.members
        match message:
            case Arrival():
                arrivals[task] = message
                seats[task] = job.newcomer(message.place)
                desk.send(task, seats[task])
                coming.add(task)
            case Joined():
                outcomes.members.add(task)
                coming.discard(task)
            case Line():
                show_line(seats[task].rank, message.text)
            case Result():
                desk.hang_up(task)
                numbers[task] = message.rank
                outcome = load(seats[task].rank, message.outcome)
                if member:
                    outcomes.add(task, outcome, time.monotonic())
                elif isinstance(outcome, Failure):  # Spark does not start it again: the task has ended well
                    coming.discard(task)
                    if outcomes.refuse(outcome, len(coming), time.monotonic()):
                        log.warning("rank %d (%s) could not join: %s", outcome.rank, arrivals[task], outcome.error)
            case Gone() if member:
                rank = seats[task].rank
                outcomes.lose(task, Failure(rank, WorkerLost(f"rank {rank} ({arrivals[task]}) was lost")))
            case Gone():  # if it has been lost, Spark starts it again
                coming.discard(task)
    return numbers
