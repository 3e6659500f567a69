"""A rank as a task of Spark's."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace

import cloudpickle
from pyspark import TaskContext

from collectives.launch import Place, Seat, call_as_rank, free_address
from collectives.world_communicator import is_initialized, world
from frontends.spark.desk import Arrival, Invitation, Joined, Line, Result
from frontends.spark.link import Link


def call(invitation: Invitation, fn: bytes, _: Iterable[int]) -> Iterable[None]:
    """Be the rank of this task and call the function; the driver gets its outcome over the connection.

    fn  the function with its arguments, pickled

    An error of the function is an outcome, so Spark does not see a failed task.
    """
    context = TaskContext.get()
    assert context is not None
    with invitation.accept() as driver:
        address = driver.own_address
        place = Place(socket.gethostname(), address)
        driver.send(Arrival(context.taskAttemptId(), place, os.getpid(), free_address(address)))
        try:
            seat: Seat = driver.receive()
        except OSError:  # the driver has ended the job
            return ()
        gpus = context.resources().get("gpu")
        if gpus is not None:
            seat = replace(seat, variables={**seat.variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)})
        left = threading.Event()
        watch = threading.Thread(target=_abort_with_driver, args=(driver, left), name="ronde-spark-watch", daemon=True)
        watch.start()
        outcome, rank = call_as_rank(
            seat,
            fn,
            lambda line: _send(driver, Line(line)),
            cloudpickle.dumps,
            connected=lambda: _send(driver, Joined()),
        )
        left.set()
        _send(driver, Result(outcome, rank))
        watch.join()  # the driver ends the connection when it has the result
    return ()


def _send(driver: Link, message: Joined | Line | Result) -> None:
    with contextlib.suppress(OSError):  # the driver has ended the job
        driver.send(message)


def _abort_with_driver(driver: Link, left: threading.Event) -> None:
    """Wait until the driver ends the connection; abort the world unless this rank has left it."""
    with contextlib.suppress(OSError):
        driver.receive()
    if not left.is_set() and is_initialized():
        world().abort("the job was cancelled")
