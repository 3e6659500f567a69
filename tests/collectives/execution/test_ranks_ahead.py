"""A rank that only sends goes on without the others; they still find out if its calls are not theirs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, MismatchError
from tests.worlds import THERE, World
from transports.onesided import KEPT

BOUND = 60.0
EAGER = {"local": {"eager_bytes": 64}}
"""A send among threads ends at once."""
ONESIDED = [name for name in ("local", "shm") if name in THERE]


@pytest.mark.parametrize("transport", ONESIDED)
@pytest.mark.parametrize("calls", [20, KEPT, 20 * KEPT])
def test_a_wrong_call_of_a_rank_that_is_many_calls_ahead_is_found(transport: str, calls: int) -> None:
    """The others combine one-sidedly, without a message. Calls by messages have no check, so that none is lost."""
    ahead = threading.Event()

    def body(comm: Communicator) -> None:
        x = np.ones(4, np.float32)
        comm.allreduce(x)
        with pytest.raises(MismatchError, match="do not fit together"):
            send(comm, x) if comm.rank == 0 else combine(comm, x)

    def send(comm: Communicator, x: np.ndarray[Any, Any]) -> None:
        for _ in range(calls):
            comm.broadcast(x, 0, algorithm="binomial")
        ahead.set()
        comm.allreduce(x)

    def combine(comm: Communicator, x: np.ndarray[Any, Any]) -> None:
        assert ahead.wait(BOUND)
        comm.allreduce(x)

    world = World(transport, 3, **EAGER)
    try:
        world.run(body)
    finally:
        world.close()
