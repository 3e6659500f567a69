"""Operations that are several exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives import AbortedError, Communicator, MismatchError
from collectives.execution import Peers, brief
from tests.worlds import Worlds, world_of


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_exchanges(worlds: Worlds, size: int) -> None:
    def body(peers: Peers) -> list[Any]:
        total = np.full((2, 3), peers.rank, np.int32)
        peers.allreduce(total)
        empty = np.empty((peers.size, 0))
        rows = np.arange(peers.size * 2).reshape(peers.size, 2) + 100 * peers.rank
        return [total, peers.allgather(np.array([peers.rank, 7])), peers.alltoall(rows), peers.alltoall(empty)]

    def run(comm: Communicator) -> tuple[list[Any], list[Any]]:
        return comm.compose(body, "a test"), comm.compose_async(body, "a test", name="a").wait()

    for rank, both in enumerate(worlds.get("local", size).run(run)):
        for total, gathered, mine, empty in both:
            np.testing.assert_array_equal(total, np.full((2, 3), sum(range(size))))
            np.testing.assert_array_equal(gathered, [[peer, 7] for peer in range(size)])
            np.testing.assert_array_equal(mine, [[2 * rank + 100 * p, 2 * rank + 1 + 100 * p] for p in range(size)])
            assert empty.shape == (size, 0)


def test_nothing_comes_between(worlds: Worlds) -> None:
    """Ten operations of three exchanges each, and other calls, all begun at once."""

    def body(peers: Peers) -> float:
        x = np.ones(1)
        for _ in range(3):
            peers.allreduce(x)
        return float(x[0])

    def run(comm: Communicator) -> list[Any]:
        works: list[Any] = []
        for number in range(10):
            works += [comm.compose_async(body, "a test"), comm.allreduce_async(float(number))]
        return [float(work.wait()) for work in works]

    for results in worlds.get("local", 2).run(run):
        assert results == [value for number in range(10) for value in (8.0, 2.0 * number)]


def test_overflow_is_no_warning(worlds: Worlds) -> None:
    def body(peers: Peers) -> float:
        return float(np.float32(1e38) * np.float32(1e38) + np.float32(0) / np.float32(0))

    worlds.get("local", 2).run(lambda comm: comm.compose(body, "a test"))


def test_ranks_that_do_different_things() -> None:
    def run(comm: Communicator) -> None:
        with pytest.raises(MismatchError, match=r"allgather\(int64, 2 elements\) within (this|that)"):
            comm.compose(lambda peers: peers.allgather(np.zeros(1, np.int64)), "that" if comm.rank else "this")

    with world_of("local", 2) as world:
        world.run(run)


def test_bad_arguments(worlds: Worlds) -> None:
    def run(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="body=5: must be a function"):
            comm.compose(5, "a test")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="what=None: must be a string"):
            comm.compose_async(lambda _: 0, None, name="a")  # type: ignore[arg-type]
        comm.barrier()

    worlds.get("local", 2).run(run)


def test_an_error_of_the_body_reaches_all() -> None:
    def run(comm: Communicator) -> None:
        def body(peers: Peers) -> None:
            if peers.rank == 1:
                raise KeyError("no such thing")
            peers.allreduce(np.ones(3))

        with pytest.raises(KeyError if comm.rank == 1 else AbortedError, match="no such thing"):
            comm.compose(body, "a test")

    with world_of("local", 3) as world:
        world.run(run)
        assert "rank 1 left a test" in str(world.communicators[2].failure)


def test_brief() -> None:
    assert brief([(3, 4)]) == "(3, 4)"
    assert brief([1, 2]) == brief([1, 2]) != brief([2, 1])
    assert brief([1, 2]).startswith("2 * ... #")
    assert brief([]).startswith("0 * ... #")
