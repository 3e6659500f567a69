"""Runs ranks as threads or processes, with a time limit, and with every rank's traceback in the raised error."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Literal, TypeVar

from transports.stacks import stack_of

T = TypeVar("T")

GRACE: Final = 5.0
"""Seconds in which the other ranks may report their errors after one has failed, or after they were released."""
DUMP_SECONDS: Final = 5.0


def run_threads(
    fn: Callable[[int], T], size: int, *, timeout: float, release: Callable[[], None] | None = None
) -> list[T]:
    """Run fn(rank) in `size` threads; the results by rank.

    timeout  seconds for all ranks together
    release  called if they do not end in time, to make them end (for example by an abort)

    Raises the first error, with notes that name its rank and the outcomes of the other ranks; TimeoutError, with the
    stacks of the ranks that still run, if none failed. Threads that do not end after `release` are left running.
    """
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []

    def body(rank: int) -> None:
        try:
            results[rank] = fn(rank)
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            failures.append((rank, error))

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    _join(threads, timeout)
    stuck = {rank: stack_of(thread.ident or 0) for rank, thread in enumerate(threads) if thread.is_alive()}
    if stuck and release is not None:
        release()
        _join(threads, GRACE)
    _raise_first(failures, stuck, size, timeout)
    return [results[rank] for rank in range(size)]


def run_processes(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    timeout: float,
    dying: Collection[int] = (),
    start: Literal["spawn", "forkserver"] = "spawn",
) -> list[Any]:
    """Run fn(rank, *args) in `size` fresh processes; the results by rank.

    fn, args  picklable, so fn is a function of a module; results and errors are returned pickled
    timeout   seconds for all ranks together, starting included; then they are killed
    dying     ranks that may end without an outcome; their result is None
    start     how processes start. Those of multiprocessing's fork server need not import what it has imported; the
              server stays until this process ends

    Raises as run_threads does; a rank that ends without an outcome is a RuntimeError with its exit code. No process of
    a rank is left when this returns or raises.
    """
    deadline = time.monotonic() + timeout
    context = multiprocessing.get_context(start)
    processes: list[BaseProcess] = []
    pipes: dict[Connection, int] = {}
    results: dict[int, Any] = {}
    failures: list[tuple[int, BaseException]] = []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            pipes[ours] = rank
            with theirs:
                process = context.Process(  # type: ignore[attr-defined]
                    target=_child, args=(theirs, fn, rank, args), name=f"rank {rank}", daemon=True
                )
                process.start()
                processes.append(process)
        silent = dict(pipes)
        while silent and (ready := wait(list(silent), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = silent.pop(pipe)
                try:
                    well, outcome = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    processes[rank].join()
                    code = processes[rank].exitcode
                    well, outcome = rank in dying, None
                    if not well:
                        outcome = RuntimeError(f"rank {rank} ended without a word, exit code {code}")
                if well:
                    results[rank] = outcome
                else:
                    failures.append((rank, outcome))
                    deadline = min(deadline, time.monotonic() + GRACE)
        stuck = {rank: _dump(processes[rank], pipe) for pipe, rank in silent.items()}
    finally:
        for started in processes:
            started.kill()
        for started in processes:
            started.join()
            started.close()
        for pipe in pipes:
            pipe.close()
    _raise_first(failures, stuck, size, timeout)
    return [results[rank] for rank in range(size)]


def _child(pipe: Connection, fn: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    """The body of a rank's process."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=pipe.fileno(), chain=True)  # to the default: the process ends
    try:
        report = pickle.dumps((True, fn(rank, *args)))
    except BaseException as error:  # noqa: BLE001 - carried to the parent
        report = pickle.dumps((False, _portable(error)))
    pipe.send_bytes(report)


def _portable(error: BaseException) -> BaseException:
    """`error` with its traceback as a note; a RuntimeError with its text if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling runs code of a foreign class
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(text)
    return copy


def _dump(process: BaseProcess, pipe: Connection) -> str:
    """The stacks of a process that does not end. It writes them into its pipe on SIGUSR1."""
    if not hasattr(faulthandler, "register") or process.pid is None:
        return "no stack is available on this platform\n"
    os.kill(process.pid, signal.SIGUSR1)
    text = b""
    while pipe.poll(DUMP_SECONDS) and (piece := os.read(pipe.fileno(), 1 << 16)):
        text += piece
    return text.decode(errors="replace") or "no answer\n"


def _join(threads: list[threading.Thread], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _raise_first(failures: list[tuple[int, BaseException]], stuck: dict[int, str], size: int, timeout: float) -> None:
    if not failures and not stuck:
        return
    if failures:
        rank, first = failures[0]
        first.add_note(f"raised by rank {rank} of {size}")
    else:
        first = TimeoutError(f"ranks {sorted(stuck)} of {size} did not end within {timeout} s")
    for rank, error in failures[1:]:
        first.add_note(f"rank {rank} raised too:\n{''.join(traceback.format_exception(error))}")
    for rank, stack in stuck.items():
        first.add_note(f"rank {rank} was still running after {timeout} s:\n{stack}")
    raise first
