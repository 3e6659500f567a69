"""`run`: a function on ranks in the tasks of a barrier stage."""

from __future__ import annotations

import math
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import cloudpickle
from pyspark import InheritableThread, SparkContext

from collectives.config import Config
from collectives.launch import (
    REPORT_SECONDS,
    ElasticOutcomes,
    Failure,
    GuestJob,
    Outcomes,
    Seat,
    WorkerLost,
    call_of,
    count_of,
    in_rank_order,
    load,
    own_settings,
    pickled_call,
    seconds_of,
    show_line,
    variables_of,
)
from frontends.spark.desk import Arrival, Desk, Gone, JobEnded, Line, Message, Result
from frontends.spark.task import call
from transports.errors import DeadlineExceeded

_TICK: Final = 0.1
"""Seconds between two looks at the slots of the cluster: Spark tells of no new executor."""


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    start_timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    spark_context: SparkContext | None = None,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `num_proc` ranks, the tasks of a barrier stage; the results in rank order.

    function       pickled by cloudpickle: it may be defined anywhere. The world communicator is there when it is called
    num_proc       number of ranks; by default Spark's default parallelism
    start_timeout  seconds until Spark runs all tasks. Jobs that use the slots are waited for
    env            variables for the ranks, besides Ronde's settings in this process's environment
    spark_context  by default the context of this process. Its driver must be reachable from the workers

    Spark starts all tasks at once. Ranks of a host have neighbouring numbers. A task with resources named `gpu` sees
    these GPUs alone. What a rank prints by Python appears here with its rank. After KeyboardInterrupt Spark's job is
    cancelled, and its ranks end.

    Raises the error of the rank that failed first, with a note of its rank and traceback; WorkerLost if a worker died;
    DeadlineExceeded after `start_timeout`; RuntimeError if Spark ended the job, as after its cancellation; ValueError
    for bad arguments. No rank runs then.
    """
    called = pickled_call("function", call_of("function", function, args, kwargs), cloudpickle.dumps)
    seconds = seconds_of("start_timeout", start_timeout)
    variables = variables_of("env", env)
    context, count = check(num_proc, spark_context)
    until = time.monotonic() + seconds
    wait_for_slots(context, count, until)
    with (
        GuestJob({**own_settings(), **variables}) as job,
        open_desk(context) as desk,
        submitted(context, count, desk, called, barrier=True),
    ):
        arrivals = collect_arrivals(desk, count, count, until)
        seats = take_seats(job, desk, arrivals)
        outcomes = _collect(desk, arrivals, seats)
    return outcomes.values()


def check(num_proc: int | None, spark_context: SparkContext | None) -> tuple[SparkContext, int]:
    """The context and the number of ranks. Raises TypeError and ValueError for bad arguments."""
    count = None if num_proc is None else count_of("num_proc", num_proc)
    if spark_context is not None and not isinstance(spark_context, SparkContext):
        raise TypeError(f"spark_context={spark_context!r}: must be a pyspark.SparkContext, or None")
    context = SparkContext.getOrCreate() if spark_context is None else spark_context
    return context, context.defaultParallelism if count is None else count


def wait_for_slots(context: SparkContext, count: int, until: float) -> None:
    """Wait until the executors have a slot for each rank, free or not. Raises DeadlineExceeded.

    Spark itself keeps a barrier stage that does not fit for minutes, and cancelling does not reach it there.
    """
    java = context._jsc.sc()  # PySpark has no method of its own for this
    profile = java.resourceProfileManager().resourceProfileFromId(0)
    while (slots := java.maxNumConcurrentTasks(profile)) < count:
        if time.monotonic() > until:
            raise DeadlineExceeded(f"run: num_proc={count}: the executors of Spark have room for {slots} tasks at once")
        time.sleep(_TICK)


def open_desk(context: SparkContext) -> Desk:
    """A desk at the address by which the executors reach the driver."""
    host = context.getConf().get("spark.driver.host")
    return Desk(host, context.getConf().get("spark.driver.bindAddress", host), Config.load())


@contextmanager
def submitted(
    context: SparkContext, count: int, desk: Desk, function: bytes, *, barrier: bool
) -> Iterator[Callable[[], None]]:
    """While it is open, Spark runs the tasks; the value cancels those that have not ended. On exit the connections end,
    and then the job, by its tag."""
    tag = f"ronde-{uuid.uuid4().hex}"

    def submit() -> None:
        context.addJobTag(tag)
        error: Exception | None = None
        try:
            parts = context.parallelize(range(count), count)
            (parts.barrier() if barrier else parts).mapPartitions(partial(call, desk.invitation, function)).collect()
        except Exception as raised:  # noqa: BLE001  the thread that waits must learn of any error
            error = raised
        desk.events.put(JobEnded(error))

    thread = InheritableThread(target=submit, name="ronde-spark-job", daemon=True)
    thread.start()
    finished = False
    try:
        yield partial(context.cancelJobsWithTag, tag)
        finished = True
    finally:
        desk.hang_up()
        if finished:
            thread.join(REPORT_SECONDS)
        if thread.is_alive():
            context.cancelJobsWithTag(tag)
            thread.join(REPORT_SECONDS)


def collect_arrivals(desk: Desk, count: int, minimum: int, until: float) -> dict[int, Arrival]:
    """The first messages of `count` tasks, or after `until` of `minimum` or more, by the numbers of the tasks."""
    arrivals: dict[int, Arrival] = {}
    while len(arrivals) < count:
        try:
            event = desk.events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            if len(arrivals) >= minimum:
                break
            raise DeadlineExceeded(
                f"run: Spark has not started {minimum - len(arrivals)} of {minimum} tasks within start_timeout; "
                f"each needs a free slot"
            ) from None
        if isinstance(event, JobEnded):
            raise RuntimeError("run: Spark ended the job before all ranks had started") from event.error
        task, message = event
        if isinstance(message, Arrival):
            arrivals[task] = message
        elif isinstance(message, Gone):  # Spark starts the task again, or ends the job
            del arrivals[task]
    return dict(sorted(arrivals.items()))


def take_seats(
    job: GuestJob, desk: Desk, arrivals: Mapping[int, Arrival], bounds: tuple[int, int] | None = None
) -> dict[int, Seat]:
    """Make a seat for each task and send it. `bounds`: smallest and largest number of ranks of an elastic job."""
    places = [arrival.place for arrival in arrivals.values()]
    first = list(arrivals.values())[in_rank_order(places)[0]]
    seats = dict(zip(arrivals, job.seats(places, first.torch), strict=True))
    if bounds is not None:
        job.let_ranks_come(*bounds)
    for task, seat in seats.items():
        desk.send(task, seat)
    return seats


def _collect(desk: Desk, arrivals: Mapping[int, Arrival], seats: Mapping[int, Seat]) -> Outcomes:
    """The outcomes of the ranks, as far as they are needed."""
    outcomes = Outcomes(seat.rank for seat in seats.values())
    for task, message in events_of(desk, outcomes):
        if task not in seats:
            continue  # Spark starts the stage again, whose loss the other messages tell
        rank = seats[task].rank
        if isinstance(message, Line):
            show_line(rank, message.text)
        elif rank in outcomes.waiting and isinstance(message, Result):
            outcomes.add(load(rank, message.outcome), time.monotonic())
            desk.hang_up(task)
        elif rank in outcomes.waiting and isinstance(message, Gone):
            lost = WorkerLost(f"rank {rank} ({arrivals[task]}) was lost")
            outcomes.add(Failure(rank, lost), time.monotonic())
    return outcomes


def events_of(desk: Desk, outcomes: Outcomes | ElasticOutcomes) -> Iterator[tuple[int, Message]]:
    """The messages of the tasks, by their numbers, until the outcome is known. Raises RuntimeError if Spark has ended
    the job for no known reason."""
    while not outcomes.decided:
        try:
            left = None if outcomes.until == math.inf else max(0.0, outcomes.until - time.monotonic())
            event = desk.events.get(timeout=left)
        except queue.Empty:
            return
        if isinstance(event, JobEnded):
            if outcomes.failed:
                return
            raise RuntimeError("run: Spark ended the job; was it cancelled?") from event.error
        yield event
