"""A rank as a task of Spark's."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from multiprocessing.connection import Client, Connection
from typing import Any

import cloudpickle
from pyspark import TaskContext

from collectives.launch import Failure, Lines, Occupant, Place, Seat, Success, dump, free_address
from collectives.world import is_initialized, world
from frontends.spark.desk import Arrival, Invitation, Joined, Line, Result


def call(invitation: Invitation, fn: bytes, _: Iterable[int]) -> Iterable[None]:
    """Be the rank of this task and call the function; the driver gets its outcome over the connection.

    fn  the function with its arguments, pickled

    An error of the function is an outcome, so Spark does not see a failed task.
    """
    context = TaskContext.get()
    assert context is not None
    with Client(invitation.address, authkey=invitation.key) as driver:
        address = _own_address(driver)
        place = Place(socket.gethostname(), address)
        driver.send(Arrival(context.taskAttemptId(), place, os.getpid(), free_address(address)))
        try:
            seat: Seat = driver.recv()
        except (EOFError, OSError):  # the driver has ended the job
            return ()
        gpus = context.resources().get("gpu")
        if gpus is not None:
            seat = replace(seat, variables={**seat.variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)})
        left = threading.Event()
        watch = threading.Thread(target=_abort_with_driver, args=(driver, left), name="ronde-spark-watch", daemon=True)
        watch.start()
        result = _result(seat, fn, lambda message: _send(driver, message))
        left.set()
        _send(driver, result)
        watch.join()  # the driver ends the connection when it has the result
    return ()


def _result(seat: Seat, fn: bytes, send: Callable[[Line | Joined], None]) -> Result:
    outcome: Success | Failure
    rank = seat.rank
    out, err = [Lines(own, lambda line: send(Line(line))) for own in (sys.stdout, sys.stderr)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            function: Callable[..., Any]
            args: Sequence[Any]
            kwargs: Mapping[str, Any]
            function, args, kwargs = cloudpickle.loads(fn)
            with Occupant(seat) as occupant:
                occupant.connect()
                send(Joined())
                value = occupant.call(function, args, kwargs)
                if is_initialized():
                    rank = world().rank
        outcome = Success(seat.rank, value)
    except Exception as error:  # noqa: BLE001  the caller must learn of any error
        outcome = Failure(seat.rank, error)
    for stream in (out, err):
        stream.finish()
    return Result(dump(outcome, cloudpickle.dumps), rank)


def _own_address(driver: Connection) -> str:
    """The address of this node on the way to the driver."""
    with socket.socket(fileno=os.dup(driver.fileno())) as copy:
        return str(copy.getsockname()[0])


def _send(driver: Connection, message: Joined | Line | Result) -> None:
    with contextlib.suppress(OSError):  # the driver has ended the job
        driver.send(message)


def _abort_with_driver(driver: Connection, left: threading.Event) -> None:
    """Wait until the driver ends the connection; abort the world unless this rank has left it."""
    with contextlib.suppress(EOFError, OSError):
        driver.recv()
    if not left.is_set() and is_initialized():
        world().abort("the job was cancelled")
