"""The program of a process started by `run`: join the world, call the function, send the outcome to the parent."""

from __future__ import annotations

import contextlib
import io
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Final

from collectives.launch.calls.outcome import Outcome, Success, dump, failure
from collectives.startup import init
from collectives.world_communicator import is_initialized, shutdown, world
from transports import launchers
from transports.errors import RondeError, described

PIECE: Final = 1 << 14
"""Bytes. Calls and outcomes are sent in pieces of this size, so that the parent never waits long inside one."""


def work(
    rank: int,
    environment: Mapping[str, str],
    transport: str | None,
    call: Connection,
    pickler: Callable[[object], bytes],
    results: Connection,
    output: Connection | None,
) -> None:
    """The main function of a rank's process.

    call     brings the pickled (fn, args, kwargs)
    pickler  pickles the outcome
    results  takes the outcome
    output   takes the standard output and error of the rank; None if they stay
    """
    if output is not None:
        _redirect(output)
    threading.Thread(target=_exit_with_parent, name="ronde-parent", daemon=True).start()
    for name in os.environ.keys() - launchers.without_launchers(os.environ).keys():
        del os.environ[name]
    os.environ.pop(launchers.VARIABLE, None)
    os.environ.update(environment)
    process = os.getpid()
    outcome: Outcome
    try:
        _hear_interrupts()
        fn, args, kwargs = pickle.loads(_receive(call))
        init(transport=transport)
        value = fn(*args, **kwargs)
        shutdown()
        outcome = Success(rank, value)
    except BaseException as error:  # the caller of run must learn of any error
        if os.getpid() != process:
            raise
        outcome = failure(rank, error)
    if os.getpid() != process:  # a child that the function has forked, and that has returned from it too
        sys.exit(0)
    # Sent before the other ranks can fail in consequence, so that the cause arrives first.
    send(results, dump(outcome, pickler))
    if is_initialized() and not isinstance(outcome, Success):
        world().abort(described(outcome.error))
        with contextlib.suppress(RondeError):  # the failure has been sent
            shutdown()
    sys.exit(0 if isinstance(outcome, Success) else 1)


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Let the processes that the body starts hold interrupts back until `work` hears them: Ctrl-C in a terminal goes to
    all processes, and one that still imports modules would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear_interrupts() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def send(pipe: Connection, data: bytes) -> None:
    """Send in pieces, followed by an empty one. A process that has closed its end does not need the data."""
    with contextlib.suppress(BrokenPipeError):
        for start in range(0, len(data), PIECE):
            pipe.send_bytes(data, start, min(PIECE, len(data) - start))
        pipe.send_bytes(b"")


def _receive(pipe: Connection) -> bytearray:
    data = bytearray()
    with pipe:
        while piece := pipe.recv_bytes():
            data += piece
    return data


def _redirect(output: Connection) -> None:
    """Let standard output and error, those of C code included, go into the pipe; lines at once."""
    with output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
