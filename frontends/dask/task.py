"""A rank as a task of Dask's, in a thread of the worker process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final

import cloudpickle
from distributed import get_worker

from collectives.launch import Failure, Seat, WorkerLost, call_as_rank, dump
from collectives.world_communicator import is_initialized, world

_JOB: Final = "RONDE_JOB"
"""The variable by which a rank knows its job."""

Event = tuple[str, int, Any]
"""Sort, rank and content of a message to the client: ("joined", 1, None), ("line", 1, "text"),
("progress", 1, (3, 10)), ("end", 1, None)."""


def locate() -> tuple[str, int]:
    """The node's name and the process of this worker."""
    return socket.gethostname(), os.getpid()


def topic_of(job: str) -> str:
    """The topic of the messages to the client of a job."""
    return f"ronde-{job}"


def report_progress(done: float, total: float) -> None:
    """Tell the caller of `run` how far this rank is: its `on_progress` gets the rank and these two numbers.

    Raises RuntimeError outside a function that `run` calls, TypeError for something that is no number.
    """
    if _JOB not in os.environ or not is_initialized():
        raise RuntimeError("report_progress: this process is not a rank of ronde.dask.run")
    numbers = _plain("done", done), _plain("total", total)
    get_worker().log_event(topic_of(os.environ[_JOB]), ("progress", world().rank, numbers))


def _plain(name: str, value: Any) -> float:
    """A number as Dask can send it, which loses the worker otherwise. Raises TypeError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"report_progress: {name}={value!r}: must be a number") from error
    return int(number) if isinstance(value, Integral) and abs(number) < 2**53 else number


def call(seat: Seat, pid: int, fn: bytes, parts: Sequence[Any] | None) -> bytes:
    """Be the rank of the seat and call the function; the dumped outcome. Raises nothing, so Dask does not repeat it.

    pid    the process of the worker. Dask repeats the task of one that was lost in the next with its address
    fn     the function with its arguments, pickled
    parts  the partitions for the rank, its first argument; None if the job has no data
    """
    worker, rank, topic = get_worker(), seat.rank, topic_of(seat.job.name)
    if os.getpid() != pid:
        lost = WorkerLost(f"rank {rank} (worker {worker.address}, pid {pid}) was lost")
        return dump(Failure(rank, lost), cloudpickle.dumps)

    def send(line: str) -> None:
        worker.log_event(topic, ("line", rank, line))

    outcome, _ = call_as_rank(
        seat,
        fn,
        send,
        cloudpickle.dumps,
        first=() if parts is None else [list(parts)],
        connected=lambda: worker.log_event(topic, ("joined", rank, None)),
    )
    worker.log_event(topic, ("end", rank, None))
    return outcome


def cancel(job: str) -> None:
    """End the calls of this job's rank, if this worker runs it now."""
    if os.environ.get(_JOB) == job and is_initialized():
        world().abort("the job was cancelled")
