"""regroup and init(join=True) in processes."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest

import collectives as ronde
from collectives import Communicator, Config, membership
from tests.collectives.membership.shrinks import PROCESSES, compute, linux, soon
from tests.collectives.ranks import SECONDS, SECRET, meeting_place, member
from tests.processes import run_processes
from transports.rendezvous import open_store


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def process(number: int, url: str, transport: str) -> list[list[int]]:
    """Processes 0 to 2 are the first ranks, and 2 is killed. 3 is killed when it has been admitted. 4 comes, computes
    with the others and leaves. Returns the worlds in which this process has computed."""
    if number == 3:
        with contextlib.closing(open_store(url, SECRET, soon())) as store:
            terms = Config.load({"transport": transport, "calibrate": False}, environment={}).terms
            membership.wait_to_join(store, 3, terms, SECRET, soon(), die)
    if number == 4:
        config = {"calibrate": False, "tcp": {"interface": "lo"}}
        os.environ.update(RONDE_JOIN="4", RONDE_STORE=url, RONDE_SECRET=SECRET.hex(), RONDE_JOB="a job")
        with ronde.init(transport=transport, config=config) as comm:
            assert ronde.world() is comm
            comm.leave("it has seen enough")
            worlds = go_on(comm, contextlib.ExitStack())
        ronde.shutdown()
        return worlds
    with member(number, 3, url, transport=transport) as comm, contextlib.ExitStack() as stack:
        return go_on(comm, stack)


def go_on(comm: Communicator, stack: contextlib.ExitStack) -> list[list[int]]:
    worlds: list[list[int]] = []
    came = False
    while True:
        numbers = list(comm.transport.group.numbers)
        worlds.append(numbers)
        with contextlib.suppress(ronde.TransportError):
            compute(comm, numbers)
            if numbers[comm.rank] == 2:
                die()
            if came and len(numbers) == 2:
                return worlds
            came |= len(numbers) > 2 and 2 not in numbers
            while not comm.changes_pending():
                assert comm.allreduce(1) == comm.size
        new = comm.regroup()
        if new is None:
            return worlds
        stack.callback(new.close)
        comm = new


@pytest.mark.processes
@linux
@pytest.mark.parametrize("transport", PROCESSES)
def test_processes_come_and_go(transport: str) -> None:
    with meeting_place() as url:
        results = run_processes(process, 5, url, transport, timeout=2 * SECONDS, dying={2, 3})
    assert results[0] == results[1]
    assert results[0][-1] == [0, 1]
    assert all(world[:2] == [0, 1] and 3 not in world for world in results[0])
    assert results[4]
    assert results[4] == [world for world in results[0] if 4 in world]
