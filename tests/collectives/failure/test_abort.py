"""The abort signal: the first cause reaches every rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from collectives import AbortedError, Communicator, Op, PeerLost
from collectives.failure import AbortSignal
from collectives.flight import FlightRecord
from tests.collectives.ranks import await_failure
from tests.counting import CountingStore
from tests.worlds import THERE, world_of
from transports.base import Group, Member
from transports.errors import RendezvousError
from transports.local import Options, create
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore


def test_cause_of_the_transport_wins_over_a_later_abort() -> None:
    """An interrupt may hit the transport first, and then the call that uses it."""

    def rank(comm: Communicator) -> str:
        if comm.rank == 0:
            comm.transport.abort(AbortedError("the first cause", rank=0))
            comm.abort("the second")
        failure = await_failure(comm)
        assert failure is not None
        told = Causes(comm.transport.group.store).fetch(1.0)
        assert told is not None
        return f"{failure.message}, {told.message}"

    for transport in ("local", "tcp", "shm"):
        with world_of(transport, 3) as world:
            assert set(world.run(rank)) == {"the first cause, the first cause"}


def fails(a: object, b: object) -> None:
    """An Op's function."""
    raise KeyboardInterrupt


def leave(comm: Communicator) -> None:
    """Calls in the first of which rank 1 is interrupted. It may have ended on rank 0."""
    function = fails if comm.rank == 1 else np.add
    comm.allreduce(np.ones(4), Op(function, name="some", trial=False))
    comm.barrier()


@pytest.mark.parametrize("transport", THERE)
def test_the_error_is_about_the_rank_that_was_interrupted_in_a_call(transport: str) -> None:
    def rank(comm: Communicator) -> int | None:
        with pytest.raises(KeyboardInterrupt if comm.rank == 1 else AbortedError):
            leave(comm)
        failure = await_failure(comm)
        assert failure is not None
        assert "rank 1 left allreduce" in failure.message
        return failure.peer

    with world_of(transport, 2) as world:
        assert world.run(rank) == [1, 1]


class SlowStore(CountingStore):
    """A store that does not answer while `slow`, but for what is waited for."""

    slow = False

    def get(self, key: str, deadline: float) -> bytes:
        self._answer()
        return super().get(key, deadline)

    def set_default(self, key: str, value: bytes) -> bytes:
        self._answer()
        return super().set_default(key, value)

    def _answer(self) -> None:
        if self.slow:
            raise RendezvousError("timed out")


@pytest.fixture
def store() -> Iterator[SlowStore]:
    store = SlowStore(MemoryStore())
    yield store
    store.close()


@pytest.fixture
def signals(store: SlowStore) -> Iterator[list[AbortSignal]]:
    members = tuple(Member(f"host {rank}", f"node{rank}", 1 + rank) for rank in range(2))
    signals = [AbortSignal(create(Group(rank, members, store), Options()), FlightRecord()) for rank in range(2)]
    yield signals
    for signal in signals:
        signal.stop_waiting()


def test_a_rank_hears_of_an_abort_after_its_store_was_slow(store: SlowStore, signals: list[AbortSignal]) -> None:
    signals[1].notify([0])
    assert signals[0].wait(10.0)
    store.slow = True
    signals[0].poll()
    store.slow = False
    signals[1].raise_abort(AbortedError("enough", rank=1))
    assert signals[0].wait(10.0)
    signals[0].poll()
    assert isinstance(signals[0].failure, AbortedError)


def test_a_failure_is_told_once_the_store_answers(store: SlowStore, signals: list[AbortSignal]) -> None:
    lost = PeerLost("rank 0 lost rank 1", rank=0, peer=1)
    store.slow = True
    assert signals[0].resolve(lost) is lost
    store.slow = False
    assert Causes(store).fetch(0.0) is None
    signals[0].resolve_again(lost)
    told = Causes(store).fetch(0.0)
    assert told is not None
    assert told.message == lost.message
