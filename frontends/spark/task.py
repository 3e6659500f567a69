"""A rank as a task of a barrier stage."""

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
from pyspark import BarrierTaskContext

from collectives.launch import Failure, Lines, Occupant, Place, Seat, Success, dump, free_address
from collectives.world import is_initialized, world
from frontends.spark.desk import Arrival, Invitation, Line, Result


def call(invitation: Invitation, fn: bytes, _: Iterable[int]) -> Iterable[None]:
    """Be the rank of this task and call the function; the driver gets its outcome over the connection.

    fn  the function with its arguments, pickled

    An error of the function is an outcome, so Spark does not see a failed task.
    """
    context = BarrierTaskContext.get()
    number = context.partitionId()
    address = context.getTaskInfos()[number].address.rpartition(":")[0]
    with Client(invitation.address, authkey=invitation.key) as driver:
        place = Place(socket.gethostname(), address)
        driver.send(Arrival(number, place, os.getpid(), free_address(address)))
        seat: Seat = driver.recv()
        gpus = context.resources().get("gpu")
        if gpus is not None:
            seat = replace(seat, variables={**seat.variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)})
        left = threading.Event()
        watch = threading.Thread(target=_abort_with_driver, args=(driver, left), name="ronde-spark-watch", daemon=True)
        watch.start()
        outcome = _outcome(seat, fn, lambda line: _send(driver, Line(line)))
        left.set()
        _send(driver, Result(dump(outcome, cloudpickle.dumps)))
        watch.join()  # the driver ends the connection when it has the result
    return ()


def _outcome(seat: Seat, fn: bytes, send: Callable[[str], None]) -> Success | Failure:
    outcome: Success | Failure
    out, err = Lines(sys.stdout, send), Lines(sys.stderr, send)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            function: Callable[..., Any]
            args: Sequence[Any]
            kwargs: Mapping[str, Any]
            function, args, kwargs = cloudpickle.loads(fn)
            with Occupant(seat) as occupant:
                occupant.connect()
                value = occupant.call(function, args, kwargs)
        outcome = Success(seat.rank, value)
    except Exception as error:  # noqa: BLE001  the caller of run must learn of any error
        outcome = Failure(seat.rank, error)
    for stream in (out, err):
        stream.finish()
    return outcome


def _send(driver: Connection, message: Line | Result) -> None:
    with contextlib.suppress(OSError):  # the driver has ended the job
        driver.send(message)


def _abort_with_driver(driver: Connection, left: threading.Event) -> None:
    """Wait until the driver ends the connection; abort the world unless this rank has left it."""
    with contextlib.suppress(EOFError, OSError):
        driver.recv()
    if not left.is_set() and is_initialized():
        world().abort("the job was cancelled")
