"""The abort signal: the first cause reaches every rank."""

from __future__ import annotations

from collectives import AbortedError, Communicator
from tests.collectives.ranks import await_failure
from tests.worlds import world_of
from transports.rendezvous.causes import Causes


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
