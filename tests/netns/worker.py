"""The process of a rank: does what it is told over a pipe, until the other end is closed."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from transports.testing import Leaks

_PR_SET_PDEATHSIG = 1


class Link:
    """The messages between a job and the test."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def mark(self, mark: str) -> None:
        """Say that a point has been reached; see Run.await_mark."""
        self._pipe.send(("mark", mark))

    def hear(self, timeout: float) -> str:
        """Wait for a word of Run.tell. Raises TimeoutError."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"the test said nothing for {timeout} s")
        return str(self._pipe.recv())


def main() -> None:
    # A test run that is killed takes its ranks with it, also those that hang.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1)
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        if isinstance(order, str):  # a word for a job that has ended
            continue
        job, args = order
        report: tuple[str, Any]
        try:
            with Leaks():
                report = "done", job(Link(pipe), *args)
        except BaseException as error:
            report = "failed", (type(error).__name__, "".join(traceback.format_exception(error)))
        pipe.send(report)


if __name__ == "__main__":
    main()
