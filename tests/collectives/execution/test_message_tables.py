"""Tables with messages, over TCP: results, what is left to Python, and failures, with and without machine code."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, DeadlineExceeded, MismatchError
from collectives.execution.message_table import MessageTable
from tests.collectives.ranks import SECONDS, meeting_place, member
from tests.processes import run_processes
from tests.worlds import executor_of, newest_plan, world_of
from transports.channel import Channel

pytest.importorskip("numba", reason="half of these tests need the compiled interpreter")

SETTINGS = [["on"], ["on", "off"]]


@pytest.fixture(params=SETTINGS, ids="-".join)
def compiled(request: pytest.FixtureRequest) -> list[str]:
    setting: list[str] = request.param
    return setting


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The answers of all tables with messages."""
    found: list[int | None] = []
    run = Channel.run

    def noted(*args: Any) -> int | None:
        found.append(run(*args))
        return found[-1]

    monkeypatch.setattr(Channel, "run", noted)
    return found


def world(compiled: list[str], size: int = 2, **settings: Any) -> Any:
    """Ranks that pretend to be on hosts of their own: those of one host do not poll, since they share a process."""
    return world_of("tcp", size, compiled=compiled, hosts=[f"host{rank}" for rank in range(size)], **settings)


def table_of(comm: Communicator) -> MessageTable | None:
    """The table of the newest call."""
    plan = newest_plan(comm)
    assert plan is not None
    found = executor_of(comm).table(plan)
    assert found is None or isinstance(found, MessageTable)
    return found


def test_which_calls_have_tables() -> None:
    def body(comm: Communicator) -> None:
        for count, has in ((1, True), (1 << 14, True), (1 << 17, True), (1 << 23, False)):
            x = np.ones(count, np.float32)
            for call in (
                lambda x=x: comm.allreduce(x),
                lambda x=x: comm.broadcast(x),
                lambda x=x: comm.reduce_scatter(x),
            ):
                call()
                assert (table_of(comm) is not None) == has, count
        comm.allreduce(np.ones(3, np.complex64), "prod")  # more than one loop of NumPy's
        assert table_of(comm) is None

    with world(["on"]) as ranks:
        ranks.run(body)


@pytest.mark.parametrize(("connections", "count", "has"), [(1, 1 << 11, True), (1, 1 << 12, False), (0, 1 << 12, True)])
def test_messages_in_pieces_have_no_tables(connections: int, count: int, has: bool) -> None:
    """Compiled code sends a message as a whole, over the main connection."""

    def body(comm: Communicator) -> None:
        x = np.arange(count, dtype=np.uint8)
        for number in range(3):
            assert (comm.broadcast(x + number, 0) == x + number).all()
            assert (table_of(comm) is not None) == has

    with world(["on"], tcp={"connections": connections, "spread_bytes": 1 << 12}) as ranks:
        ranks.run(body)


def several(comm: Communicator, made: np.random.Generator, late: Callable[[], None]) -> list[bytes]:
    """Some calls of each kind with random sizes and values; `late` is called before each."""
    found = []
    for _ in range(4):
        count = int(2 ** made.uniform(0, 17))
        whole = made.normal(size=(comm.size, count * comm.size)).astype(made.choice(["f4", "f8"]))
        mine = whole[comm.rank]
        op, root = str(made.choice(["sum", "max", "average"])), int(made.integers(comm.size))
        scales = {"prescale": 0.5} if made.random() < 0.3 else {}
        late()
        found.append(comm.allreduce(mine, op, **scales))
        late()
        found.append(comm.allreduce(mine.copy(), "sum", prescale=1.5, postscale=0.25))
        late()
        found.append(comm.reduce_scatter(mine, op))
        late()
        found.append(comm.broadcast(mine, root))
        assert (found[-1] == whole[root]).all()
        late()
        found.append(comm.alltoall(mine))
        assert (found[-1] == whole[:, comm.rank * count : (comm.rank + 1) * count].reshape(-1)).all()
        for _ in range(2):
            late()
            found.append(comm.allgather(mine[:count]))
            assert (found[-1] == whole[:, :count].reshape(-1)).all()
        late()
        comm.barrier()
    return [array.tobytes() for array in found]


def test_communicators_that_their_members_made_run_in_machine_code(answers: list[int | None]) -> None:
    """Their numbers have the highest bit of a tag."""

    def body(comm: Communicator) -> None:
        with comm.subset([0, 2] if comm.rank % 2 == 0 else [1]) as some:
            total = some.allreduce(np.full(3, comm.rank + 1.0))
            assert total.tolist() == [2.0 if comm.rank == 1 else 4.0] * 3
            assert comm.rank == 1 or table_of(some) is not None

    with world(["on"], 3) as ranks:
        ranks.run(body)
    assert answers


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_same_bits_however_late_the_ranks_are(size: int) -> None:
    def body(comm: Communicator, seed: int) -> list[bytes]:
        own = np.random.default_rng(1000 * seed + comm.rank)

        def late() -> None:
            if own.random() < 0.3:
                time.sleep(own.uniform(0, 0.003))

        return several(comm, np.random.default_rng(seed), late)

    results = []
    for setting in (["on"], ["off"], ["on", "off"]):
        with world(setting, size) as ranks:
            results.append([ranks.run(body, seed) for seed in range(3)])
    assert results[0] == results[1] == results[2]


LAYOUTS = {
    "tcp-2": ("tcp", ["a", "b"]),
    "tcp-4": ("tcp", ["a", "b", "c", "d"]),
    "auto-2x2": ("auto", ["a", "a", "b", "b"]),
    "auto-3+1": ("auto", ["a", "a", "b", "a"]),
}


def on_cores(rank: int, url: str, layout: str, cores: int, naps: bool) -> tuple[list[bytes], bool]:
    """The results of `several` on ranks that share cores, with and without machine code, and whether it was used.
    `naps`: ranks sleep at random, so that others sleep too when their messages come."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    transport, hosts = LAYOUTS[layout]
    size, own = len(hosts), np.random.default_rng(rank)

    def late() -> None:
        if naps and own.random() < 0.3:
            time.sleep(own.uniform(0, 0.003))

    setting = "off" if rank == size - 1 else "on"
    with member(rank, size, url, transport=transport, hosts=hosts, compiled=setting) as comm:
        found = several(comm, np.random.default_rng(4), late)
        for _ in range(200):
            assert (comm.allreduce(np.ones(3)) == size).all()
        return found, isinstance(table_of(comm), MessageTable)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to a core here")
@pytest.mark.parametrize(
    ("layout", "cores", "naps"),
    [
        ("tcp-2", 1, False),
        ("tcp-4", 1, False),
        ("tcp-4", 2, True),
        ("auto-2x2", 1, False),
        ("auto-2x2", 2, True),
        ("auto-3+1", 1, True),
    ],
)
def test_ranks_that_share_cores(layout: str, cores: int, naps: bool) -> None:
    size = len(LAYOUTS[layout][1])
    with meeting_place() as url:
        results = run_processes(on_cores, size, url, layout, cores, naps, timeout=SECONDS)
    assert [used for _, used in results] == [True] * (size - 1) + [False]
    transport, hosts = LAYOUTS[layout]
    with world_of(transport, size, compiled=["off"], hosts=hosts) as ranks:
        expected = ranks.run(lambda comm: several(comm, np.random.default_rng(4), lambda: None))
    assert [found for found, _ in results] == expected


def beside_a_window(rank: int, url: str) -> None:
    """Calls by messages and by a window in turns, in which ranks run ahead, sleep at random, and run with and without
    machine code; then two calls that differ."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    own, made = np.random.default_rng(rank), np.random.default_rng(5)
    with member(rank, 3, url, transport="shm", hosts=["a"] * 3, compiled="off" if rank == 2 else "on") as comm:
        for number in range(300):
            x = made.integers(-9, 9, size=(3, int(2 ** made.uniform(0, 13)))).astype(np.float64)
            if own.random() < 0.02:
                time.sleep(own.uniform(0, 0.003))
            root = number // 7 % 3
            assert (comm.broadcast(x[rank], root) == x[root]).all()
            reduced = comm.reduce(x[rank], root=root)
            assert reduced is None if rank != root else (reduced == x.sum(0)).all()
            if number % 50 == 49:
                assert (comm.allreduce(x[rank]) == x.sum(0)).all()
        y = np.ones(4)
        comm.broadcast(y)
        assert isinstance(table_of(comm), MessageTable) == (rank != 2)
        comm.allreduce(y)
        if rank == 0:  # it sends its messages, and goes on
            comm.broadcast(y)
        with pytest.raises(MismatchError, match="allreduce"):
            comm.allreduce(y)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to a core here")
def test_messages_beside_a_window() -> None:
    with meeting_place() as url:
        run_processes(beside_a_window, 3, url, timeout=SECONDS)


def test_rows_are_left_and_calls_complete(answers: list[int | None]) -> None:
    def left() -> bool:
        return any(answer is not None and answer >= 0 for answer in answers)

    def body(comm: Communicator) -> None:
        x = np.ones(8, np.float32)
        for number in range(8):
            until = time.monotonic() + 5.0  # the lanes may be in use in a round, so that nothing is left
            while number and number % 2 == comm.rank and not left() and time.monotonic() < until:
                time.sleep(0.001)
            assert (comm.allreduce(x) == comm.size).all()

    with world(["on"]) as ranks:
        ranks.run(body)
    assert left()


def test_messages_that_the_system_takes_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets with the smallest buffers, and a rank that reads late."""
    rests: list[int] = []
    send_rest = Channel.send_rest

    def noted(self: Channel, peer: int, view: memoryview, check: int, sent: int) -> Any:
        rests.append(sent)
        return send_rest(self, peer, view, check, sent)

    monkeypatch.setattr(Channel, "send_rest", noted)

    def body(comm: Communicator) -> None:
        x, y = np.arange(15_000, dtype=np.float32), np.empty(15_000, np.float32)
        for number in range(30):
            if comm.rank:
                time.sleep(0.002)
            assert (comm.broadcast(x + number, 0, out=y) == x + number).all()
            assert (comm.allreduce(x) == comm.size * x).all()

    with world(["on"], tcp={"socket_buffer_bytes": 4096}) as ranks:
        ranks.run(body)
    assert rests


@pytest.mark.long
def test_other_traffic_beside(compiled: list[str]) -> None:
    """Messages, calls of another communicator and asynchronous ones use the same lanes."""

    def body(comm: Communicator) -> None:
        other = comm.split(0)
        assert other is not None
        x, peer = np.full(50, comm.rank + 1.0), 1 - comm.rank
        for number in range(80):
            works = [comm.allreduce_async(x, name=f"{number}.{k}") for k in range(2)]
            comm.send(x * number, peer, tag=3)
            assert (comm.allreduce(x) == 3).all()
            assert (other.allreduce(x, "max") == 2).all()
            assert (comm.recv(np.empty(50), peer, tag=3) == number * (peer + 1)).all()
            for work in works:
                assert (work.wait() == 3).all()
        other.close()

    with world(compiled) as ranks:
        ranks.run(body)


def test_calls_that_differ(compiled: list[str]) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(4, np.float32)
        for _ in range(5):
            comm.allreduce(x)
        with pytest.raises(MismatchError, match="allreduce"):
            comm.allreduce(x, "sum" if comm.rank else "max")

    with world(compiled) as ranks:
        ranks.run(body)


@pytest.mark.long
def test_a_rank_that_does_not_come(compiled: list[str]) -> None:
    over = threading.Event()

    def body(comm: Communicator) -> None:
        x = np.ones(4, np.float32)
        for _ in range(5):
            comm.allreduce(x)
        if comm.rank == 0:
            with pytest.raises(DeadlineExceeded, match="receive from rank 1"):
                comm.allreduce(x, timeout=0.3)
            over.set()
        else:
            assert over.wait(30)
            with contextlib.suppress(DeadlineExceeded):  # the message of rank 0 was sent before it gave up
                comm.allreduce(x)
            with pytest.raises(DeadlineExceeded):
                comm.allreduce(x)

    with world(compiled) as ranks:
        ranks.run(body)


def test_warnings_are_not_given_in_a_call_that_was_left() -> None:
    def body(comm: Communicator) -> None:
        x = np.full(100, 3e38, np.float32)
        for number in range(20):
            if number % 2 == comm.rank:
                time.sleep(0.001)
            assert np.isinf(comm.allreduce(x)).all()

    with np.errstate(all="raise"), world(["on"]) as ranks:
        ranks.run(body)


def test_a_busy_channel_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "_is_free", lambda self: False)

    def body(comm: Communicator) -> None:
        x = np.ones(8, np.float32)
        for _ in range(5):
            assert (comm.allreduce(x, prescale=2.0) == 2 * comm.size).all()

    with world(["on"]) as ranks:
        ranks.run(body)
