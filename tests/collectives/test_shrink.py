"""After a failure the survivors go on: who they are, that they compute right, that nothing old reaches them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import collectives as ronde
from collectives import (
    AbortedError,
    ClosedError,
    Communicator,
    DeadlineExceeded,
    PeerLost,
    RendezvousError,
    RondeError,
    shrinking,
)
from collectives.shrinking import Blame, Knowledge, conclude
from tests.collectives.ranks import SECONDS, SECRET, await_failure, meeting_place, member
from tests.launch.launcher import ronde as ronde_command
from tests.worlds import world_of
from transports.auth import CHALLENGE_BYTES, Client
from transports.base import Group, Member
from transports.rendezvous.bootstrap import join, next_meeting, open_store
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.once import decide, decided
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.store import Store
from transports.tcp.dialing import purpose
from transports.tcp.transport import TcpTransport
from transports.testing import run_processes

THREADS = ["local", "tcp", "shm", "auto"]
PROCESSES = ["shm", "tcp", "auto"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


def compute(comm: Communicator, seats: list[int]) -> None:
    """Several collectives on the ranks that once were `seats`, each of which tells apart who took part."""
    size, rank, mine = comm.size, comm.rank, seats[comm.rank]
    assert size == len(seats)
    for count in (1, 1000, 100_000):
        x = np.arange(count, dtype=np.int64) + 10**6 * mine
        total = size * np.arange(count, dtype=np.int64) + 10**6 * sum(seats)
        np.testing.assert_array_equal(comm.allreduce(x), total)
        np.testing.assert_array_equal(comm.allreduce_async(x, algorithm="ring").wait(), total)
    np.testing.assert_array_equal(comm.allgather(np.full(mine, mine)), np.repeat(seats, seats))
    np.testing.assert_array_equal(comm.broadcast(np.array([mine]), root=size - 1), [seats[-1]])
    np.testing.assert_array_equal(
        comm.alltoall(np.array([mine * 10 + peer for peer in seats])), [peer * 10 + mine for peer in seats]
    )
    np.testing.assert_array_equal(
        comm.sendrecv(np.array([mine]), (rank + 1) % size, (rank - 1) % size), [seats[rank - 1]]
    )
    assert comm.allgather_object(("seat", mine)) == [("seat", seat) for seat in seats]
    half = comm.split(0)
    assert half is not None
    assert half.allreduce(mine) == sum(seats)
    half.close()
    comm.barrier()


def fail(comm: Communicator) -> RondeError:
    """Compute until that fails; the error."""
    try:
        while True:
            comm.allreduce(np.ones(10))
    except RondeError as error:
        return error


# Who goes on


@st.composite
def knowledge(draw: st.DrawFn) -> Knowledge:
    size = draw(st.integers(1, 8))
    ranks = st.integers(0, size - 1)
    blames = st.builds(Blame, st.just("blamed"), st.floats(0, 10))
    return Knowledge(
        size,
        frozenset(draw(st.sets(ranks))),
        draw(st.dictionaries(ranks, st.just("lost"))),
        draw(st.dictionaries(ranks, blames)),
    )


@given(knowledge(), st.floats(0, 20), st.floats(0, 20))
def test_decision(known: Knowledge, waited: float, timeout: float) -> None:
    decision, awaited = conclude(known, waited, timeout)
    everyone = set(range(known.size))
    assert (decision is None) == bool(awaited)
    for rank in awaited:
        assert rank not in known.here
        assert rank not in known.lost
        assert waited < timeout
        assert rank not in known.blamed or waited < known.blamed[rank].patience
    if decision is None:
        later, _ = conclude(known, timeout, timeout)
        assert later is not None
        return
    assert list(decision.ranks) == sorted(decision.ranks)
    assert set(decision.ranks) == known.here - set(known.lost)
    assert set(decision.ranks) | set(decision.left_out) == everyone
    assert not set(decision.ranks) & set(decision.left_out)
    for rank, why in decision.left_out.items():
        if rank in known.lost:
            assert why == "lost"
        elif rank in known.blamed and waited >= known.blamed[rank].patience:
            assert why == "blamed"
        elif waited >= timeout:
            assert rank in known.blamed or why == f"it did not come within {timeout:g} s"
    assert conclude(known, waited + 1, timeout)[0] is not None
    more = dataclasses.replace(known, here=known.here | {0})
    assert conclude(more, waited, timeout)[0] is not None


# Deciding once


@pytest.fixture(params=["memory", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "file":
        with contextlib.closing(FileStore(tmp_path / "store")) as opened:
            yield opened
    else:
        with (
            TcpStoreServer("127.0.0.1", secret=SECRET) as server,
            contextlib.closing(open_store(server.url, SECRET, soon())) as opened,
        ):
            yield opened


def test_many_propose_and_one_decision_holds(store: Store) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = {
            key: [pool.submit(decide, store, key, b"%d" % rank, soon()) for rank in range(6)] for key in ("a", "b", "c")
        }
        for key, futures in answers.items():
            (answer,) = {future.result(SECONDS) for future in futures}
            assert answer in [b"%d" % rank for rank in range(6)]
            assert decide(store, key, b"late", soon()) == decided(store, key, soon()) == answer
    with pytest.raises(DeadlineExceeded):
        decided(store, "d", soon(0.01))


def test_whoever_dies_while_it_proposes_holds_nobody_up() -> None:
    class Dying(MemoryStore):
        calls = 0

        def set(self, key: str, value: bytes) -> None:
            self.mortal()
            super().set(key, value)

        def add(self, key: str, amount: int) -> int:
            self.mortal()
            return super().add(key, amount)

        def mortal(self) -> None:
            self.calls -= 1
            if self.calls == 0:
                raise KeyboardInterrupt

    for calls in (1, 2, 3):
        store = Dying()
        store.calls = calls
        with pytest.raises(KeyboardInterrupt):
            decide(store, "key", b"mine", soon())
        assert decide(store, "key", b"yours", soon()) == b"yours"


def test_something_else_in_the_place_of_a_decision(store: Store) -> None:
    store.set("key/chosen", b"junk")
    with pytest.raises(RendezvousError, match="something else where the number of a decision should be"):
        decided(store, "key", soon())


# On threads


def leave(comm: Communicator) -> None:
    comm.close(0.05)


def give_up(comm: Communicator) -> None:
    comm.abort("I have had enough")
    comm.close()


def break_down(comm: Communicator) -> None:
    """As if all connections broke."""
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
def test_survivors_go_on(transport: str, loss: str) -> None:
    lose, kind = LOSSES[loss]
    gate = threading.Barrier(3)  # what a rank does not get done in a collective before another gives up fails

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
        new = comm.shrink(timeout=10 * SECONDS)  # which is longer than the test may take
        assert (new.rank, new.size) == ([0, 2].index(seat), 2)
        assert new is ronde.world() is comm.current
        assert new.transport.group.generation == comm.transport.group.generation + 1
        assert new.failure is None
        compute(new, [0, 2])
        for old in (comm, part):
            refuses_all(old)
            with pytest.raises(ClosedError, match="its world was shrunk; use what shrink returned"):
                old.barrier()
        with pytest.raises(ClosedError, match="its world was shrunk"):
            comm.shrink()
        comm.close()
        compute(new, [0, 2])
        return new.rank

    with world_of(transport, 3) as world:
        assert world.run(rank) == [0, None, 1]


@pytest.mark.parametrize("inner", ["local", "tcp", "shm"])
def test_survivors_of_a_rank_that_is_gone_in_the_middle_of_a_call(inner: str) -> None:
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


@pytest.mark.parametrize("transport", THREADS)
def test_shrinking_again_and_again(transport: str) -> None:
    def rank(comm: Communicator) -> int:
        seats = list(range(4))
        while True:
            compute(comm, seats)
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
            del seats[1:2]

    gates = [threading.Barrier(size or 1) for size in range(5)]
    with world_of(transport, 4) as world:
        assert world.run(rank) == [0, 4, 3, 2]


@pytest.mark.parametrize("transport", THREADS)
def test_without_a_failure(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        mine = comm.rank
        results = [comm.allreduce(np.arange(20_000.0)) for _ in range(5)]
        if mine == 1:
            time.sleep(0.1)  # the others are on their way by then
        works = [comm.allreduce_async(np.arange(20_000.0)) for _ in range(5)]
        new = comm.shrink()
        for result in [*results, *(work.wait() for work in works)]:
            np.testing.assert_array_equal(result, 3 * np.arange(20_000.0))
        assert (new.rank, new.size) == (mine, 3)
        compute(new, [0, 1, 2])

    with world_of(transport, 3) as world:
        world.run(rank)


def test_of_one() -> None:
    with ronde.init(transport="local", rank=0, size=1, store=MemoryStore()) as comm:
        new = ronde.shrink()
        assert new is ronde.world() is not comm
        assert (ronde.rank(), ronde.size(), ronde.allreduce(3)) == (0, 1, 3)
    with pytest.raises(ClosedError):
        new.barrier()
    ronde.shutdown()


def test_in_run() -> None:
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


def test_what_cannot_be_shrunk() -> None:
    def rank(comm: Communicator) -> None:
        part = comm.split(0)
        assert part is not None
        with pytest.raises(RuntimeError, match="made by split; shrink the communicator that it was split from"):
            part.shrink()
        with pytest.raises(ValueError, match="timeout=-1"):
            comm.shrink(timeout=-1)
        assert part.allreduce(1) == comm.allreduce(1) == 2
        comm.close()
        with pytest.raises(ClosedError):
            comm.shrink()

    with world_of("local", 2) as world:
        world.run(rank)


def test_ranks_that_did_not_meet_in_a_store() -> None:
    group = Group(0, (Member("here", "localhost", os.getpid()),), MemoryStore())
    comm = ronde.connect(group, ronde.Config.load({"transport": "local"}, environment={}), soon())
    with pytest.raises(RendezvousError, match="did not meet in a store"):
        comm.shrink()
    assert comm.allreduce(1) == 1
    comm.close()


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_rank_that_comes_late_is_refused(transport: str) -> None:
    gone_on = threading.Event()

    def rank(comm: Communicator) -> None:
        mine = comm.rank
        assert comm.allreduce(1) == 3
        if mine == 2:
            assert gone_on.wait(SECONDS)
            text = r"without rank 2 \(.*\): it did not come within 0.3 s \(so decided rank [01] \("
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


def test_rank_that_is_blamed_but_comes_in_time_goes_on() -> None:
    def rank(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.transport.abort(PeerLost("rank 0 lost rank 1, so it says", rank=0, peer=1))
        if comm.rank == 1:
            time.sleep(0.1)
        fail(comm)
        compute(comm.shrink(), [0, 1, 2])

    with world_of("local", 3) as world:
        world.run(rank)


def test_ranks_of_a_silent_host_are_not_waited_for() -> None:
    gone_on = threading.Event()

    def rank(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank in (2, 3):
            comm._family.watchman.close()  # its host gives no sign of life any more
            assert gone_on.wait(SECONDS)
            with pytest.raises(RendezvousError, match=r"no sign of life from its host for 0.\d s"):
                comm.shrink()
            return
        compute(comm.shrink(timeout=10 * SECONDS), [0, 1])
        gone_on.set()

    with world_of("local", 4, hosts="aabb", heartbeat=0.5) as world:
        world.run(rank)


def test_ranks_of_another_host_that_come_late_are_waited_for() -> None:
    gate = threading.Barrier(4)

    def rank(comm: Communicator) -> None:
        comm.barrier()
        gate.wait(SECONDS)  # nobody is in it any more
        if comm.rank == 0:
            comm.abort("on purpose")
        assert await_failure(comm) is not None
        if comm.rank in (2, 3):
            time.sleep(1.5)  # three times the heartbeat: it computes, and its host gives signs of life
        compute(comm.shrink(), [0, 1, 2, 3])

    with world_of("local", 4, hosts="aabb", heartbeat=0.5) as world:
        world.run(rank)


def test_rank_that_is_interrupted_while_it_waits_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    come = shrinking._Muster.come

    def interrupted(self: shrinking._Muster) -> None:
        come(self)
        if self._me == 1:
            monkeypatch.setattr(self, "hold", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))

    monkeypatch.setattr(shrinking._Muster, "come", interrupted)

    def rank(comm: Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                comm.shrink()
        else:
            time.sleep(0.2)
            new = comm.shrink(timeout=10 * SECONDS)
            compute(new, [0, 2])
            assert new.transport.group.generation == 1  # they did not even try to connect to it

    with world_of("local", 3) as world:
        world.run(rank)


def test_survivors_that_cannot_connect_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_survivors_that_never_connect_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(group: Group, *rest: Any) -> Communicator:
        raise PeerLost(f"no luck in generation {group.generation}")

    def rank(comm: Communicator) -> None:
        with pytest.raises(PeerLost, match="no luck in generation 3"):
            comm.shrink()

    with world_of("local", 2) as world:
        monkeypatch.setattr(Communicator, "connect", staticmethod(fails))
        world.run(rank)


def test_the_store_is_gone() -> None:
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
                text = rf"rank {number} cannot learn who goes on: .*{server.url}.* ends with the process that serves it"
                with pytest.raises(RendezvousError, match=text):
                    comm.shrink()

        gate = threading.Barrier(2)
        config = ronde.Config.load({"transport": "tcp", "tcp": {"interface": "lo"}}, environment={})
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(rank, range(2)))


# Nothing old in the new


@pytest.mark.parametrize("transport", THREADS)
def test_messages_of_the_old_one_do_not_arrive_in_the_new_one(transport: str) -> None:
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


def test_connection_meant_for_the_old_generation_is_refused() -> None:
    """A rank that has slept calls the new listener with what it knows."""
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
        new.recv(np.zeros((), np.int64), 1)  # while it waits it answers
        return [answer.result(SECONDS) for answer in answers]

    with ThreadPoolExecutor(2) as pool, world_of("tcp", 2) as world:
        assert world.run(rank)[0] == [False, True]
        world.run(lambda comm: compute(comm.current, [0, 1]))


def knock(transport: object, group: Group) -> bool:
    """Whether rank 0 of a transport accepts a connection to rank 0 of a group: it proves that it is meant."""
    assert isinstance(transport, TcpTransport)
    with socket.create_connection(transport._dialing.addresses[0], SECONDS) as link:
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


# Processes that are lost


def processes_killed(rank: int, url: str) -> dict[str, tuple[int, int]]:
    """One world over each transport. Rank 1 is killed, and when the others have gone on, so is the last of them."""
    with contextlib.ExitStack() as stack:
        comms = {
            name: stack.enter_context(member(rank, 4, url, generation=at, transport=name))
            for at, name in enumerate(PROCESSES)
        }
        for comm in comms.values():
            compute(comm, [0, 1, 2, 3])
        for victim, seats in ((1, [0, 2, 3]), (2, [0, 2])):
            if comms["shm"].rank == victim:
                time.sleep(0.1)  # so that the others wait for it
                os.kill(os.getpid(), signal.SIGKILL)
            for name, comm in comms.items():
                error = fail(comm)
                assert isinstance(error, PeerLost)
                assert error.peer == victim
                comms[name] = new = comm.shrink()
                stack.callback(new.close)
                compute(new, seats)
        return {name: (comm.rank, comm.size) for name, comm in comms.items()}


@linux
def test_processes_that_are_killed() -> None:
    with meeting_place() as url:
        results = run_processes(processes_killed, 4, url, timeout=2 * SECONDS, dying={1, 3})
    assert results[0] == dict.fromkeys(PROCESSES, (0, 2))
    assert results[2] == dict.fromkeys(PROCESSES, (1, 2))


def process_stopped(rank: int, url: str) -> list[str]:
    """Rank 1 is stopped, and continued when the others have gone on."""
    texts = []
    with contextlib.ExitStack() as stack:
        comms = [
            stack.enter_context(member(rank, 3, url, generation=at, transport=name))
            for at, name in enumerate(PROCESSES)
        ]
        for comm in comms:
            compute(comm, [0, 1, 2])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            for comm in comms:
                assert await_failure(comm) is not None
                texts.append(str(fail(comm)))
                with pytest.raises(RendezvousError, match=r"the others went on without rank 1 \(") as caught:
                    comm.shrink()
                texts.append(str(caught.value))
            return texts
        smaller = []
        for comm in comms:
            assert isinstance(fail(comm), PeerLost)
            smaller.append(comm.shrink())
            stack.callback(smaller[-1].close)
            compute(smaller[-1], [0, 2])
        if rank == 0:
            os.kill(comms[0].members[1].pid, signal.SIGCONT)
        end = soon(1.0)  # what it does now must be no harm
        while smaller[0].allreduce(time.monotonic() < end, "min"):
            for new in smaller:
                compute(new, [0, 2])
        return texts


@linux
def test_process_that_is_stopped_and_wakes_up() -> None:
    with meeting_place() as url:
        results = run_processes(process_stopped, 3, url, timeout=2 * SECONDS)
    assert len(results[1]) == 2 * len(PROCESSES)
    for text in results[1]:
        assert "its process has been stopped for 0.5 s" in text


def process_that_dies_in_shrink(rank: int, url: str, transport: str, moment: str) -> tuple[int, int] | None:
    """Rank 1 dies, and then rank 2 while it shrinks: before it says that it is here, after it, or when all agree."""

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with member(rank, 4, url, transport=transport) as comm:
        assert comm.allreduce(1) == 4
        if rank == 1:
            die()
        fail(comm)
        if rank == 2:
            place = shrinking._Muster if moment in ("come", "hold") else Communicator
            setattr(place, moment, die)
        with comm.shrink(timeout=10 * SECONDS) as new:
            compute(new, [0, 3])
            assert new.transport.group.generation in {"come": (1,), "hold": (1, 2)}.get(moment, (2,))
            return new.rank, new.size


@linux
@pytest.mark.parametrize(
    ("transport", "moment"),
    [("shm", "come"), ("tcp", "hold"), ("shm", "connect"), ("tcp", "connect"), ("auto", "_begin")],
)
def test_process_that_dies_while_it_shrinks(transport: str, moment: str) -> None:
    with meeting_place() as url:
        results = run_processes(
            process_that_dies_in_shrink, 4, url, transport, moment, timeout=2 * SECONDS, dying={1, 2}
        )
    assert results == [(0, 2), None, None, (1, 2)]


def process_that_dies_in_init(rank: int, url: str) -> None:
    with contextlib.closing(open_store(url, SECRET, soon())) as store:
        groups = {
            name: join(rank, 3, store, secret=SECRET, generation=at, deadline=soon())
            for at, name in enumerate(PROCESSES)
        }
        if rank == 1:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        for name, group in groups.items():
            config = ronde.Config.load({"transport": name, "tcp": {"interface": "lo"}}, environment={})
            with pytest.raises(PeerLost, match=r"lost rank 1 \(.*: its process ended without closing"):
                ronde.connect(group, config, soon())


@linux
def test_process_that_dies_before_all_are_connected() -> None:
    with meeting_place() as url:
        run_processes(process_that_dies_in_init, 3, url, timeout=SECONDS, dying={1})


# From the beginning


def test_meetings_are_counted_for_each_rank() -> None:
    store = MemoryStore()

    def meet(rank: int, deadline: float) -> int:
        generation = next_meeting(rank, store)
        join(rank, 2, store, generation=generation, deadline=deadline)
        return generation

    with ThreadPoolExecutor(2) as pool:
        for number in range(3):
            assert list(pool.map(meet, range(2), [soon()] * 2)) == [number, number]
        with pytest.raises(DeadlineExceeded, match="rank 1 of 2 did not come"):
            meet(0, soon(0.05))
        with pytest.raises(DeadlineExceeded, match="rank 1 of 2 did not come"):
            meet(1, soon())  # it is told that the others have given up
        assert list(pool.map(meet, range(2), [soon()] * 2)) == [4, 4]
        early = pool.submit(meet, 0, soon())
        store.get("generation-5/join/member/0", soon())
        second = pool.submit(meet, 0, soon())
        for meeting in (early, second):
            with pytest.raises(RendezvousError, match="two processes say they are rank 0 of 2"):
                meeting.result(SECONDS)


def compute_until_it_fails(comm: Communicator) -> None:
    compute(comm, [0, 1, 2])
    raise fail(comm)


def init_again(rank: int, url: str, transport: str) -> list[int]:
    config = {"tcp": {"interface": "lo"}, "timeout": SECONDS}
    generations = []
    for what in ("end well", "abort", "shrink", "leave one behind", "end well"):
        comm = ronde.init(transport=transport, rank=rank, size=3, store=url, secret=SECRET, config=config)
        generations.append(comm.transport.group.generation)
        if what == "abort" and rank != 1:
            with pytest.raises(AbortedError):  # perhaps before this rank has left the last barrier
                compute_until_it_fails(comm)
        else:
            compute(comm, [0, 1, 2])
        if what == "abort" and rank == 1:
            ronde.abort("a bad day")
        if what == "shrink":
            new = ronde.shrink()
            assert new is ronde.world()
            compute(new, [0, 1, 2])
        if what == "leave one behind" and rank != 1:
            fail(comm)
            compute(ronde.shrink(), [0, 2])
            assert (ronde.rank(), ronde.size()) == (rank // 2, 2)
        ronde.shutdown()
    return generations


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_init_again(transport: str) -> None:
    with meeting_place() as url:
        results = run_processes(init_again, 3, url, transport, timeout=SECONDS)
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == 5


# Under the launcher

SCRIPT = """
import os, signal, sys
import collectives as ronde

world, seat = ronde.init(), ronde.rank()
for call in range(1000):
    if call == 20 and seat == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    try:
        world.allreduce(1)
    except ronde.PeerLost:
        world = world.shrink()
        break
assert (ronde.rank(), ronde.size(), ronde.allreduce(seat)) == (seat // 2, 2, 2)
print("went on:", seat)
sys.exit(int(sys.argv[2 + seat // 2]))
"""


@linux
@pytest.mark.parametrize(
    ("lost", "codes", "code"), [("SIGKILL", "00", 0), ("SIGKILL", "30", 0), ("SIGSTOP", "33", 3), ("SIGSTOP", "00", 0)]
)
def test_launcher_keeps_going(tmp_path: Path, lost: str, codes: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["-np", "3", "--keep-going", "--grace", "0.2", "--no-prefix"]
    done = ronde_command("run", *options, str(tmp_path / "script.py"), lost, *codes)
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert sorted(done.stdout.decode().splitlines()) == ["went on: 0", "went on: 2"]
    ending = "killed by SIGKILL" if lost == "SIGKILL" else "ended by the launcher (SIGKILL)"
    assert f"ronde: rank 1 failed: {ending}, pid " in said
    assert ("rank 0 failed: exited with 3" in said) == (codes[0] == "3")


def test_launcher_does_not_keep_going_unasked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = ronde_command("run", "-np", "3", str(tmp_path / "script.py"), "SIGKILL", "0", "0")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 failed: killed by SIGKILL" in done.stderr.decode()
