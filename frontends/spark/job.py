"""`run`: a function on ranks in the tasks of a barrier stage."""

from __future__ import annotations

import queue
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import cloudpickle
from pyspark import InheritableThread, SparkContext

from collectives.failure import is_consequence
from collectives.launch import (
    Failure,
    GuestJob,
    Seat,
    Success,
    WorkerLost,
    in_rank_order,
    load,
    own_settings,
    root_cause,
)
from frontends.spark.desk import Arrival, Desk, Gone, JobEnded, Line, Result
from frontends.spark.task import call
from transports.errors import DeadlineExceeded

REPORT_SECONDS: Final = 5.0
"""Time to wait for the root cause after a failure that looks like a consequence, and for Spark's job to end."""
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
    _check(function, num_proc, start_timeout, spark_context)
    context = SparkContext.getOrCreate() if spark_context is None else spark_context
    count = context.defaultParallelism if num_proc is None else num_proc
    call_bytes = cloudpickle.dumps((function, list(args), dict(kwargs or {})))
    until = time.monotonic() + start_timeout
    _wait_for_slots(context, count, until)
    host = context.getConf().get("spark.driver.host")
    bind = context.getConf().get("spark.driver.bindAddress", host)
    with (
        GuestJob({**own_settings(), **(env or {})}) as job,
        Desk(host, bind) as desk,
        _submitted(context, count, partial(call, desk.invitation, call_bytes), desk),
    ):
        arrivals = _arrivals(desk, count, until)
        places = [arrival.place for arrival in arrivals]
        seats = job.seats(places, arrivals[in_rank_order(places)[0]].torch)
        for task, seat in enumerate(seats):
            desk.send(task, seat)
        outcomes = _collect(desk, arrivals, seats)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        root_cause(failures).reraise()
    values = {outcome.rank: outcome.value for outcome in outcomes if isinstance(outcome, Success)}
    return [values[rank] for rank in range(count)]


def _check(function: object, num_proc: object, start_timeout: float, spark_context: object) -> None:
    if not callable(function):
        raise TypeError(f"function={function!r}: must be callable")
    if num_proc is not None and (not isinstance(num_proc, int) or isinstance(num_proc, bool) or num_proc < 1):
        raise ValueError(f"num_proc={num_proc!r}: must be an integer, 1 or more, or None")
    if not start_timeout > 0:
        raise ValueError(f"start_timeout={start_timeout!r}: must be a positive number of seconds")
    if spark_context is not None and not isinstance(spark_context, SparkContext):
        raise TypeError(f"spark_context={spark_context!r}: must be a pyspark.SparkContext, or None")


def _wait_for_slots(context: SparkContext, count: int, until: float) -> None:
    """Wait until the executors have a slot for each rank, free or not. Raises DeadlineExceeded.

    Spark itself keeps a barrier stage that does not fit for minutes, and cancelling does not reach it there.
    """
    java = context._jsc.sc()  # PySpark has no method of its own for this
    profile = java.resourceProfileManager().resourceProfileFromId(0)
    while (slots := java.maxNumConcurrentTasks(profile)) < count:
        if time.monotonic() > until:
            raise DeadlineExceeded(f"run: num_proc={count}: the executors of Spark have room for {slots} tasks at once")
        time.sleep(_TICK)


@contextmanager
def _submitted(context: SparkContext, count: int, task: Callable[..., Any], desk: Desk) -> Iterator[None]:
    """While it is open, Spark runs the tasks. On exit the connections end, and then the job, by its tag."""
    tag = f"ronde-{uuid.uuid4().hex}"

    def submit() -> None:
        context.addJobTag(tag)
        error: Exception | None = None
        try:
            context.parallelize(range(count), count).barrier().mapPartitions(task).collect()
        except Exception as raised:  # noqa: BLE001  the thread that waits must learn of any error
            error = raised
        desk.events.put(JobEnded(error))

    thread = InheritableThread(target=submit, name="ronde-spark-job", daemon=True)
    thread.start()
    finished = False
    try:
        yield
        finished = True
    finally:
        desk.hang_up()
        if finished:
            thread.join(REPORT_SECONDS)
        if thread.is_alive():
            context.cancelJobsWithTag(tag)
            thread.join(REPORT_SECONDS)


def _arrivals(desk: Desk, count: int, until: float) -> list[Arrival]:
    """The first messages of all tasks, by their numbers."""
    arrivals: dict[int, Arrival] = {}
    while len(arrivals) < count:
        try:
            event = desk.events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise DeadlineExceeded(
                f"run: Spark has not started {count - len(arrivals)} of {count} tasks within start_timeout; "
                f"each needs a free slot"
            ) from None
        if isinstance(event, JobEnded):
            raise RuntimeError("run: Spark ended the job before all ranks had started") from event.error
        task, message = event
        if isinstance(message, Arrival):
            arrivals[task] = message
        elif isinstance(message, Gone):
            raise WorkerLost(f"task {task} (host {arrivals[task].place.address}, pid {arrivals[task].pid}) was lost")
    return [arrivals[task] for task in range(count)]


def _collect(desk: Desk, arrivals: Sequence[Arrival], seats: Sequence[Seat]) -> list[Success | Failure]:
    """The outcomes until all have arrived, a failure is a root cause, or none comes after a consequence."""
    outcomes: list[Success | Failure] = []
    waiting, until = set(range(len(seats))), float("inf")
    while waiting:
        try:
            event = desk.events.get(timeout=None if until == float("inf") else max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(event, JobEnded):
            if outcomes and any(isinstance(outcome, Failure) for outcome in outcomes):
                break
            raise RuntimeError("run: Spark ended the job; was it cancelled?") from event.error
        task, message = event
        rank = seats[task].rank
        if isinstance(message, Line):
            sys.stdout.write(f"[rank {rank}] {message.text}\n")
        elif task in waiting and isinstance(message, Result | Gone):
            waiting.discard(task)
            if isinstance(message, Result):
                outcomes.append(load(rank, message.outcome))
                desk.hang_up(task)
            else:
                where = f"host {arrivals[task].place.address}, pid {arrivals[task].pid}"
                outcomes.append(Failure(rank, WorkerLost(f"rank {rank} ({where}) was lost")))
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures and not is_consequence(root_cause(failures).error):
            break
        if failures and until == float("inf"):
            until = time.monotonic() + REPORT_SECONDS
    return outcomes
