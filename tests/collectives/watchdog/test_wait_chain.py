"""Wait chains: the error of a call that runs out of time names the rank that holds the others up."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from collectives import Communicator, DeadlineExceeded
from collectives.watchdog.wait_chain import Wait, find_wait_chain
from tests.worlds import world_of

SECONDS = 0.5
LONG = 20.0


def waits(peer: int | None, number: int = 7, step: int = 3, key: str = "world", phase: int = 0) -> list[Wait]:
    return [Wait(key, number, number - 1, phase, step, peer)]


def chain(answers: Mapping[int, Sequence[Wait] | None]) -> tuple[str, int]:
    found = find_wait_chain(0, answers[0][0], answers.__getitem__)  # type: ignore[index]
    return found.describe(lambda rank: f"rank {rank}"), found.culprit


@pytest.mark.parametrize(
    ("answers", "text", "culprit"),
    [
        ({0: waits(1), 1: []}, "rank 0 waits for rank 1, which is in no call", 1),
        ({0: waits(1), 1: waits(2), 2: []}, "rank 0 waits for rank 1, which waits for rank 2, which is in no call", 2),
        (
            {0: waits(1), 1: waits(2), 2: None},
            "rank 0 waits for rank 1, which waits for rank 2, which does not answer",
            2,
        ),
        ({0: waits(1), 1: waits(None)}, "rank 0 waits for rank 1, which waits for no rank", 1),
        (
            {0: waits(1), 1: waits(2), 2: waits(0, number=8)},
            "rank 0 waits for rank 1, which waits for rank 2, which has completed call 7 and is in call 8",
            2,
        ),
        (
            {0: waits(1), 1: waits(2, number=6), 2: waits(1)},
            "rank 0 waits for rank 1, which waits for rank 2, which has completed call 6 and is in call 7",
            2,
        ),
        (
            {0: waits(1, number=8), 1: waits(2), 2: waits(1, number=8)},
            "rank 0 waits for rank 1, which waits for rank 2, which has completed call 7 and is in call 8",
            2,
        ),
        (
            {0: waits(1, number=8), 1: waits(0)},
            "rank 0 waits for rank 1, which waits for rank 0, which has completed call 7 and is in call 8",
            0,
        ),
        (
            {0: waits(1), 1: [Wait("world", 0, 7, 0, 1, 0)]},
            "rank 0 waits for rank 1, which has completed call 7 and is in a message",
            1,
        ),
        (
            {0: waits(1), 1: waits(2, step=5), 2: waits(3, step=1), 3: waits(1, step=4)},
            "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 3, which waits for rank 1, "
            "which closes a cycle",
            3,
        ),
        (
            {0: [Wait("world", 0, 6, 0, 9, 1)], 1: waits(2, step=1), 2: [Wait("world", 0, 6, 0, 8, 0)]},
            "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0, which closes a cycle",
            0,
        ),
        (
            {0: [Wait("world", 0, 6, 0, 9, 1)], 1: waits(2, step=1), 2: waits(0, step=2)},
            "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0, which closes a cycle",
            1,
        ),
        (
            {0: waits(1, phase=2, step=4), 1: waits(0, phase=3, step=2)},  # the program of rank 1 is shorter
            "rank 0 waits for rank 1, which waits for rank 0, which closes a cycle",
            1,
        ),
        (
            {0: waits(1), 1: [*waits(3, key="group"), *waits(2)], 2: waits(3, key="group"), 3: []},
            "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 3, which is in no call",
            3,
        ),
    ],
)
def test_chain_ends_at_the_culprit(answers: Mapping[int, Sequence[Wait] | None], text: str, culprit: int) -> None:
    assert chain(answers) == (text, culprit)


def test_description_of_a_long_chain_names_its_ends() -> None:
    text, culprit = chain({**{rank: waits(rank + 1) for rank in range(99)}, 99: []})
    assert culprit == 99
    assert "rank 0 waits for rank 1, " in text
    assert ", which ... (91 more) ..., which waits for rank 96, " in text


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("late", range(4))
def test_timeout_in_broadcast_names_the_late_rank_on_every_rank(transport: str, late: int) -> None:
    over = threading.Event()
    raised = threading.Barrier(3, over.set)

    def body(comm: Communicator) -> DeadlineExceeded | None:
        comm.barrier()
        if comm.rank == late:
            assert over.wait(LONG)
            return None
        with pytest.raises(DeadlineExceeded) as caught:
            comm.broadcast(np.zeros(5), root=late, algorithm="chain", timeout=SECONDS)
        raised.wait(LONG)
        return caught.value

    with world_of(transport, 4) as world:
        errors = world.run(body)
    for error in errors[:late] + errors[late + 1 :]:
        assert error.peer == late
        assert f"for rank {late} (" in str(error)
        assert "in no call" in str(error)


@pytest.mark.long
def test_timeout_in_recv_names_the_rank_that_its_peer_waits_for() -> None:
    over = threading.Event()
    raised = threading.Barrier(2, over.set)

    def body(comm: Communicator) -> DeadlineExceeded | None:
        if comm.rank == 2:
            assert over.wait(LONG)
            return None
        with pytest.raises(DeadlineExceeded) as caught:
            comm.recv(np.zeros(1), comm.rank + 1, timeout=SECONDS)
        raised.wait(LONG)
        return caught.value

    with world_of("local", 3) as world:
        errors = world.run(body)
    assert [error.peer for error in errors[:2]] == [2, 2]
