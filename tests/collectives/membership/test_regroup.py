"""regroup on threads: who comes, who leaves, in which order; the fence; newcomers that fail."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, ConfigError, DeadlineExceeded, RendezvousError, RondeError
from collectives.membership import History, ask_to_leave, set_bounds
from tests.collectives.membership.changes import SECONDS, job
from tests.collectives.membership.shrinks import THREADS, compute, fail

def numbers(comm: Communicator) -> list[int]:
    return list(comm.transport.group.numbers)


@pytest.mark.parametrize("transport", THREADS)
def test_newcomers_come_at_a_boundary_and_are_the_last_ranks(transport: str) -> None:
    def rank(comm: Communicator) -> tuple[int, int, list[int]]:
        compute(comm, [0, 1])
        while not comm.changes_pending():
            assert comm.allreduce(1) == 2
        new = comm.regroup()
        assert new is ronde.world()
        return end(new)

    def end(new: Communicator) -> tuple[int, int, list[int]]:
        compute(new, [0, 1, 7])
        return new.rank, new.size, numbers(new)

    with job(transport) as here:
        ranks = here.start(2, rank)
        came = here.come(end, number=7)
        assert [future.result(SECONDS) for future in [*ranks, came]] == [(n, 3, [0, 1, 7]) for n in range(3)]
