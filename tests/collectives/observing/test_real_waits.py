"""Waits of real ranks: the charges name the rank that sleeps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from collectives import Communicator
from collectives.flight import read, records, worlds
from collectives.observing import Charges, Comparison, Kind, Snapshot, judge
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.usefixtures("own_folder")]
LATE = 1
NAP = 0.1
X = np.ones(3, np.float32)


def comparison() -> Comparison:
    return Comparison(read(path, time.perf_counter_ns()) for path in records(worlds()[0]))


def is_always_late(comm: Communicator) -> None:
    for _ in range(8):
        time.sleep(NAP if comm.rank == LATE else 0)
        comm.allreduce(X)


def sleeps_at_random(comm: Communicator) -> None:
    dice = random.Random(1)
    for _ in range(20):
        time.sleep(NAP if comm.rank == LATE and dice.random() < 0.4 else 0)
        comm.allreduce(X)


def makes_rooted_calls(comm: Communicator) -> None:
    for _ in range(4):
        time.sleep(NAP if comm.rank == LATE else 0)
        comm.broadcast(X, LATE)
        time.sleep(NAP if comm.rank == LATE else 0)
        comm.reduce(X, root=0)


def waits_in_another_communicator(comm: Communicator) -> None:
    """Ranks 0 and 2 are late to each other, since rank 0 waits for rank 1 in a communicator of both."""
    one = comm.split(0 if comm.rank < 2 else None)
    two = comm.split(0 if comm.rank != LATE else None)
    for _ in range(8):
        time.sleep(NAP if comm.rank == LATE else 0)
        for each in (one, two):
            if each is not None:
                each.barrier()


def names_its_calls(comm: Communicator) -> None:
    for _ in range(8):
        time.sleep(NAP if comm.rank == LATE else 0)
        works = [comm.allreduce_async(X, name=f"layer{number}") for number in range(3)]
        for work in works:
            work.wait()


def sends_late(comm: Communicator) -> None:
    """Receives that wait for long enough to be in the record."""
    for _ in range(3):
        if comm.rank == LATE:
            time.sleep(0.5)
            comm.send(X, 0)
        elif comm.rank == 0:
            comm.recv(X, LATE)


PROGRAMS: list[Callable[[Communicator], None]] = [
    is_always_late,
    sleeps_at_random,
    makes_rooted_calls,
    waits_in_another_communicator,
    names_its_calls,
    sends_late,
]


def plays(rank: int, url: str, transport: str, number: int) -> None:
    with member(rank, 3, url, transport=transport) as comm:
        comm.barrier()
        PROGRAMS[number](comm)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=[program.__name__ for program in PROGRAMS])
def test_the_rank_that_sleeps_is_charged(number: int, transport: str) -> None:
    with meeting_place() as url:
        run_processes(plays, 3, url, transport, number, timeout=120)
    charges = Charges.of(comparison())
    assert int(charges.caused.argmax()) == LATE
    assert charges.caused[LATE] > 0.4
    assert all(culprit.kind == Kind.LATE for culprit in judge(charges) if LATE in culprit.ranks)


def names(rank: int, url: str) -> list[str]:
    with member(rank, 2, url) as comm:
        for _ in range(3):
            works = [comm.allreduce_async(X, name=f"layer{number}.weight") for number in range(7)]
            for work in works:
                work.wait()
        comm.barrier()
        found = Snapshot.of(read(path, time.perf_counter_ns()) for path in records(worlds()[0]))
        comm.barrier()
        return [kind.description.call for kind in found.slowest]


def test_the_names_of_operations_are_told() -> None:
    with meeting_place() as url:
        for calls in run_processes(names, 2, url, timeout=60):
            assert any(call.startswith("allreduce 'layer0.weight'") for call in calls)
