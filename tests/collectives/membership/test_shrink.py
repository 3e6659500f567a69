"""shrink on threads: the survivors, their results, and the separation from the old group."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import (
    AbortedError,
    ClosedError,
    Communicator,
    DeadlineExceeded,
    PeerLost,
    RendezvousError,
    RondeError,
    family,
)
from collectives.membership.agreement import ABSENT_SECONDS, SurvivorAgreement
from collectives.watchdog import Watchdog
from tests.collectives.membership.shrinks import THREADS, compute, fail, soon
from tests.collectives.ranks import SECONDS, SECRET, await_failure
from tests.transports.tcp_ranks import address_of
from tests.worlds import world_of
from transports.auth import CHALLENGE_BYTES, Client
from transports.base import Group, Member
from transports.rendezvous.bootstrap import join, open_store, this_member
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.server import TcpStoreServer
from transports.tcp.dialing import purpose
from transports.tcp.transport import TcpTransport

# ---- losses


def leave(comm: Communicator) -> None:
    comm.close(0.05)


def give_up(comm: Communicator) -> None:
    comm.abort("I have had enough")
    comm.close()


def break_down(comm: Communicator) -> None:
    """Break all connections of this rank."""
    comm.transport.close(time.monotonic())


def refuses_all(old: Communicator) -> None:
    for call in (
        lambda: old.allreduce(np.zeros(3)),
        lambda: old.allreduce(np.zeros(30000)),
        lambda: old.allreduce_async(1),
        lambda: old.allreduce_async(1, name="x"),
        lambda: old.allgather_object(1),
        lambda: old.send(1, 0),
        lambda: old.recv_async(np.zeros(1), 0),
        lambda: old.split(0),
        old.barrier,
    ):
        with pytest.raises(ClosedError):
            call()


LOSSES: dict[str, tuple[Callable[[Communicator], None], type[RondeError]]] = {
    "leaves": (leave, PeerLost),
    "aborts": (give_up, AbortedError),
    "breaks down": (break_down, PeerLost),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transport", THREADS)
def test_shrink_after_a_loss(transport: str, loss: str) -> None:
    lose, kind = LOSSES[loss]
    gate = threading.Barrier(3)  # so that no rank is in a collective when another one fails

    def rank(comm: Communicator) -> int | None:
        seat, part = comm.rank, comm.split(0)
        assert part is not None
        compute(comm, [0, 1, 2])
        gate.wait(SECONDS)
        if seat == 1:
            with contextlib.suppress(DeadlineExceeded):
                lose(comm)
            return None
        error = fail(comm)
        assert isinstance(error, kind), error
        assert error.peer == 1
        new = comm.shrink(timeout=10 * SECONDS)  # longer than the test may take
        assert (new.rank, new.size) == ([0, 2].index(seat), 2)
        assert new is ronde.world() is comm.current
        assert new.transport.group.generation == comm.transport.group.generation + 1
        assert new.failure is None
        compute(new, [0, 2])
        for old in (comm, part):
            refuses_all(old)
            with pytest.raises(ClosedError, match=r"rank . .*closed: .*shrink"):
                old.barrier()
        with pytest.raises(ClosedError, match=r"rank . .*closed: .*shrink"):
            comm.shrink()
        comm.close()
        compute(new, [0, 2])
        return new.rank

    with world_of(transport, 3) as world:
        assert world.run(rank) == [0, None, 1]


@pytest.mark.parametrize("inner", ["local", "tcp", "shm"])
def test_shrink_after_a_loss_within_a_call(inner: str) -> None:
    def rank(comm: Communicator) -> bool:
        error = fail(comm)
        assert isinstance(error, PeerLost | ClosedError), error
        if comm.rank == 2:
            comm.close()
            return False
        new = comm.shrink()
        compute(new, [0, 1])
        assert new.transport.name == "faulty"
        return True

    kill = {"inner": inner, "rules": ("kill send rank=2 nth=7 by=close", "kill publish rank=2 nth=7 by=close")}
    with world_of("faulty", 3, faulty=kill) as world:
        assert world.run(rank) == [True, True, False]


@pytest.mark.long
@pytest.mark.parametrize("transport", THREADS)
def test_shrink_repeatedly_down_to_one_rank(transport: str) -> None:
    def rank(comm: Communicator) -> int:
        original_ranks = list(range(4))
        while True:
            compute(comm, original_ranks)
            gates[comm.size].wait(SECONDS)
            if comm.rank == 1:
                with contextlib.suppress(DeadlineExceeded):
                    leave(comm)
                return comm.size
            if comm.size > 1:
                fail(comm)
            elif comm.transport.group.generation == 5:
                return 0
            comm = comm.shrink()
            del original_ranks[1:2]

    gates = [threading.Barrier(size or 1) for size in range(5)]
    with world_of(transport, 4) as world:
        assert world.run(rank) == [0, 4, 3, 2]


@pytest.mark.parametrize("transport", THREADS)
def test_shrink_without_a_failure(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        mine = comm.rank
        results = [comm.allreduce(np.arange(20_000.0)) for _ in range(5)]
        if mine == 1:
            time.sleep(0.1)  # the others are in shrink by then
        works = [comm.allreduce_async(np.arange(20_000.0)) for _ in range(5)]
        new = comm.shrink()
        for result in [*results, *(work.wait() for work in works)]:
            np.testing.assert_array_equal(result, 3 * np.arange(20_000.0))
        assert (new.rank, new.size) == (mine, 3)
        compute(new, [0, 1, 2])

    with world_of(transport, 3) as world:
        world.run(rank)


def test_shrink_of_a_single_rank() -> None:
    with ronde.init(transport="local", rank=0, size=1, store=MemoryStore()) as comm:
        new = ronde.shrink()
        assert new is ronde.world() is not comm
        assert (ronde.rank(), ronde.size(), ronde.allreduce(3)) == (0, 1, 3)
    with pytest.raises(ClosedError):
        new.barrier()
    ronde.shutdown()


def test_shrink_under_run() -> None:
    def rank() -> tuple[int, int, Any]:
        if ronde.rank() == 0:
            return ronde.rank(), ronde.size(), None
        while True:
            try:
                ronde.barrier()
            except PeerLost:
                break
        ronde.shrink()
        return ronde.rank(), ronde.size(), ronde.allreduce(1)

    assert ronde.run(rank, np=3, transport="local") == [(0, 3, None), (0, 2, 2), (1, 2, 2)]


def test_shrink_of_a_split_or_closed_communicator_is_refused() -> None:
    def rank(comm: Communicator) -> None:
        part = comm.split(0)
        assert part is not None
        with pytest.raises(RuntimeError, match=r"shrink: .*split"):
            part.shrink()
        with pytest.raises(ValueError, match="timeout=-1"):
            comm.shrink(timeout=-1)
        assert part.allreduce(1) == comm.allreduce(1) == 2
        comm.close()
        with pytest.raises(ClosedError):
            comm.shrink()

    with world_of("local", 2) as world:
        world.run(rank)


def test_shrink_of_ranks_that_did_not_meet_in_a_store_is_refused() -> None:
    group = Group(0, (Member("here", "localhost", os.getpid()),), MemoryStore())
    comm = ronde.connect(group, ronde.Config.load({"transport": "local"}, environment={}), soon())
    with pytest.raises(RendezvousError, match=r"shrink: .*store"):
        comm.shrink()
    assert comm.allreduce(1) == 1
    comm.close()


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_shrink_of_a_late_rank_is_refused(transport: str) -> None:
    gone_on = threading.Event()

    def rank(comm: Communicator) -> None:
        mine = comm.rank
        assert comm.allreduce(1) == 3
        if mine == 2:
            assert gone_on.wait(SECONDS)
            text = r"without rank 2 \(.*\): .*0\.3 s .*by rank [01] \("
            with pytest.raises(RendezvousError, match=text) as caught:
                comm.shrink()
            assert caught.value.peer in (0, 1)
            with pytest.raises(ClosedError):
                comm.barrier()
            with pytest.raises(ClosedError):
                comm.shrink()
            return
        new = comm.shrink(timeout=0.3)
        compute(new, [0, 1])
        gone_on.set()
        compute(new, [0, 1])

    with world_of(transport, 3) as world:
        world.run(rank)


def test_shrink_keeps_a_blamed_rank_that_comes_in_time() -> None:
    def rank(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.transport.abort(PeerLost("rank 0 lost rank 1, so it says", rank=0, peer=1))
        if comm.rank == 1:
            time.sleep(0.1)
        fail(comm)
        compute(comm.shrink(), [0, 1, 2])

    with world_of("local", 3) as world:
        world.run(rank)


@pytest.mark.long
def test_shrink_does_not_wait_for_ranks_of_a_silent_host(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_on = threading.Event()
    watchdogs: dict[int, Watchdog] = {}

    def made(group: Group, *rest: Any, **settings: Any) -> Watchdog:
        return watchdogs.setdefault(group.rank, Watchdog(group, *rest, **settings))

    monkeypatch.setattr(family, "Watchdog", made)

    def rank(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank in (2, 3):
            watchdogs[comm.rank].close()  # its host sends no heartbeat any more
            assert gone_on.wait(SECONDS)
            with pytest.raises(RendezvousError, match=rf"without rank {comm.rank} .*host for 0\.\d s .*heartbeat"):
                comm.shrink()
            return
        compute(comm.shrink(timeout=10 * SECONDS), [0, 1])
        gone_on.set()

    with world_of("local", 4, hosts="aabb", heartbeat=0.5) as world:
        world.run(rank)


@pytest.mark.long
def test_shrink_waits_for_late_ranks_of_a_live_host() -> None:
    gate = threading.Barrier(4)

    def rank(comm: Communicator) -> None:
        comm.barrier()
        gate.wait(SECONDS)  # no rank is in the barrier any more
        if comm.rank == 0:
            comm.abort("on purpose")
        assert await_failure(comm) is not None
        if comm.rank in (2, 3):
            time.sleep(1.5)  # three times the heartbeat, while its host sends heartbeats
        compute(comm.shrink(), [0, 1, 2, 3])

    with world_of("local", 4, hosts="aabb", heartbeat=0.5) as world:
        world.run(rank)


def test_shrink_does_not_wait_for_an_interrupted_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = SurvivorAgreement.arrive

    def interrupted(self: SurvivorAgreement) -> None:
        arrive(self)
        if self._rank == 1:
            monkeypatch.setattr(self, "decide", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))

    monkeypatch.setattr(SurvivorAgreement, "arrive", interrupted)

    def rank(comm: Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                comm.shrink()
        else:
            time.sleep(0.2)
            new = comm.shrink(timeout=10 * SECONDS)
            compute(new, [0, 2])
            assert new.transport.group.generation == 1  # they never tried to connect to it

    with world_of("local", 3) as world:
        world.run(rank)


def test_shrink_retries_a_failed_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, tries = Communicator.connect, []

    def fails(group: Group, *rest: Any) -> Communicator:
        tries.append(group.generation)
        if group.generation < 2:
            raise PeerLost("no luck")
        return connect(group, *rest)

    def rank(comm: Communicator) -> None:
        compute(comm.shrink(), [0, 1])

    with world_of("local", 2) as world:
        monkeypatch.setattr(Communicator, "connect", staticmethod(fails))
        world.run(rank)
        assert sorted(tries) == [1, 1, 2, 2]


def test_shrink_gives_up_after_repeatedly_failed_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(group: Group, *rest: Any) -> Communicator:
        raise PeerLost(f"no luck in generation {group.generation}")

    def rank(comm: Communicator) -> None:
        with pytest.raises(PeerLost, match="no luck in generation 3"):
            comm.shrink()

    with world_of("local", 2) as world:
        monkeypatch.setattr(Communicator, "connect", staticmethod(fails))
        world.run(rank)


def test_shrink_without_the_store_is_refused() -> None:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:

        def rank(number: int) -> None:
            with contextlib.closing(open_store(server.url, SECRET, soon())) as store:
                group = join(number, 2, store, secret=SECRET, deadline=soon())
                comm = ronde.connect(group, config, soon())
                assert comm.allreduce(1) == 2
                gate.wait(SECONDS)
                if number == 0:
                    server.close()
                gate.wait(SECONDS)
                text = rf"rank {number} .*survivors: .*{server.url}"
                with pytest.raises(RendezvousError, match=rf"{text}.* process"):
                    comm.shrink()

        gate = threading.Barrier(2)
        config = ronde.Config.load({"transport": "tcp", "tcp": {"interface": "lo"}}, environment={})
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(rank, range(2)))


# ---- separation of the old group and the new one


@pytest.mark.parametrize("transport", THREADS)
def test_messages_of_the_old_group_do_not_arrive_in_the_new_one(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        mine = comm.rank
        if mine == 0:
            for tag in range(3):
                comm.send_async(np.array([-1]), 1, tag=tag)
        comm.barrier()
        gate.wait(SECONDS)
        if mine == 2:
            comm.abort("enough")
        fail(comm)
        new = comm.shrink()
        if mine == 0:
            new.barrier()
            new.send(np.array([1]), 1)
            return
        if mine == 1:
            x = np.zeros(1, np.int64)
            works = [new.recv_async(x.copy(), 0, tag=tag) for tag in range(1, 3)]
            new.barrier()
            assert new.recv(x, 0)[0] == 1
            assert not any(work.test() for work in works)
            return
        new.barrier()

    gate = threading.Barrier(3)
    with world_of(transport, 3) as world:
        world.run(rank)


def test_connection_for_the_old_generation_is_refused() -> None:
    """A rank that has slept connects to the new listener with the key of the old generation."""
    knocked = threading.Event()

    def rank(comm: Communicator) -> list[bool]:
        new = comm.shrink()
        if new.rank == 1:
            assert knocked.wait(SECONDS)
            new.send(1, 0)
            return []
        answers = [pool.submit(knock, new.transport, comm_.transport.group) for comm_ in (comm, new)]
        for answer in answers:
            answer.add_done_callback(lambda _: knocked.set() if all(each.done() for each in answers) else None)
        new.recv(np.zeros((), np.int64), 1)  # while it waits it answers connections
        return [answer.result(SECONDS) for answer in answers]

    with ThreadPoolExecutor(2) as pool, world_of("tcp", 2) as world:
        assert world.run(rank)[0] == [False, True]
        world.run(lambda comm: compute(comm.current, [0, 1]))


def knock(transport: object, group: Group) -> bool:
    """True if rank 0 of a transport accepts a connection to rank 0 of a group."""
    assert isinstance(transport, TcpTransport)
    with socket.create_connection(address_of(transport, 0), SECONDS) as link:
        client = Client(SECRET, purpose(group, 0))
        link.sendall(client.hello)
        challenge = b""
        while len(challenge) < CHALLENGE_BYTES:
            piece = link.recv(CHALLENGE_BYTES - len(challenge))
            if not piece:
                return False
            challenge += piece
        try:
            client.answer(challenge)
        except RondeError:
            return False
    return True


@pytest.mark.parametrize("came", [set(), {2}])
def test_a_host_that_is_lost_before_the_group_has_connected(came: set[int]) -> None:
    """It has sent no heartbeat, and the failure is blamed on one of its ranks alone."""
    store = MemoryStore()
    members = tuple(dataclasses.replace(this_member(), host=host) for host in "abbb")
    group = Group(0, members, store, SECRET, 1, parent_store=store)
    failure = DeadlineExceeded("rank 1 did not open the transport in time", peer=1)
    lost = dict.fromkeys(came, "the ranks could not connect with this newcomer")
    with contextlib.closing(SurvivorAgreement(group, failure, 5.0, lost=lost)) as agreement:
        agreement.arrive()
        verdict = agreement.decide(soon(-ABSENT_SECONDS), 10 * SECONDS)
    assert verdict.staying == (0,)
    assert verdict.left_out[3] == "no rank of its host has come, and its host has given no sign of life"
