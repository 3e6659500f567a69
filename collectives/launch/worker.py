"""What a process of `run` does: find the others, call the function, send home what came of it."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import pickle
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Final

from collectives.launch.outcome import Outcome, Success, dump, failure
from collectives.world import init, is_initialized, shutdown, world
from transports.errors import RondeError

PIECE: Final = 1 << 14
"""Bytes of a message: small, so that the parent never waits long in the middle of one."""


def work(rank: int, environment: Mapping[str, str], transport: str | None, payload: bytes, results: Connection) -> None:
    """The process of one rank. `payload` is the pickled (fn, args, kwargs)."""
    threading.Thread(target=_end_with_parent, name="ronde-parent", daemon=True).start()
    os.environ.update(environment)
    outcome: Outcome
    try:
        fn, args, kwargs = pickle.loads(payload)
        init(transport=transport)
        value = fn(*args, **kwargs)
        shutdown()
        outcome = Success(rank, value)
    except BaseException as error:  # noqa: BLE001  whatever it is, the caller of run must learn of it
        outcome = failure(rank, error)
    _send(results, dump(outcome))  # before the others hear of it, so that the cause arrives before its consequences
    if is_initialized() and not isinstance(outcome, Success):
        world().abort(f"{type(outcome.error).__name__}: {outcome.error}")
        with contextlib.suppress(RondeError):  # the failure has been told
            shutdown()
    sys.exit(0 if isinstance(outcome, Success) else 1)


def _send(results: Connection, data: bytes) -> None:
    """In pieces, ended by an empty one. If the parent does not listen any more, nobody needs it."""
    with contextlib.suppress(BrokenPipeError):
        for start in range(0, len(data), PIECE):
            results.send_bytes(data, start, min(PIECE, len(data) - start))
        results.send_bytes(b"")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
