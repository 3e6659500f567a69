"""Messages as MPI has them: any source, any tag, new arrays, probes, objects. A model tells what a receive takes."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives as ronde
from collectives import (
    AbortedError,
    ClosedError,
    Communicator,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    Status,
    TransportError,
)
from tests.collectives.ranks import SECONDS, meeting_place, member
from tests.processes import run_processes
from tests.worlds import World, Worlds, world_of
from transports import registry

ALL = ["local", "tcp", "shm", "auto"]
MESSAGES = 10_000
TAGS = 12


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def three(worlds: Worlds) -> World:
    return worlds.get("local", 3)


# ---- the model

Sent = tuple[int, int]
"""The tag of a message, and its number of elements. The elements are the sender, the message's number, and zeros."""


def plans(size: int, seed: int) -> dict[tuple[int, int], list[Sent]]:
    """The messages of every pair of ranks."""
    dice = random.Random(seed)
    each = MESSAGES // size**2
    return {
        (source, target): [(dice.randrange(TAGS), dice.choice((2, 3, 10, 100, 9000))) for _ in range(each)]
        for source in range(size)
        for target in range(size)
    }


class Model:
    """The messages for one rank that have not been received: of those that a receive matches it takes the first of its
    sender."""

    def __init__(self, coming: dict[int, list[Sent]]) -> None:
        self.left = {source: dict(enumerate(messages)) for source, messages in coming.items()}

    def some(self, dice: random.Random) -> tuple[int, int]:
        """Source and tag of some message that will come."""
        source = dice.choice([source for source, messages in self.left.items() if messages])
        return source, dice.choice([*self.left[source].values()])[0]

    def count(self, src: int | None, tag: int | None) -> int:
        """The number of messages that a receive matches."""
        return sum(
            tag in (None, sent)
            for source, messages in self.left.items()
            if src in (None, source)
            for sent, _ in messages.values()
        )

    def first(self, source: int, tag: int | None) -> int:
        """The number of the first message of a rank with a tag."""
        return next(number for number, (sent, _) in self.left[source].items() if tag in (None, sent))

    def received(self, array: Any, status: Status, src: int | None, tag: int | None) -> None:
        """Check one received message, and take it out."""
        source, number = int(array[0]), int(array[1])
        assert src in (None, source)
        sent, count = self.left[source][number]
        assert (status.source, status.tag, status.count, status.dtype) == (source, sent, count, np.dtype(np.int64))
        assert tag in (None, sent)
        assert number == self.first(source, tag)
        assert len(array) == count
        assert not array[2:].any()
        del self.left[source][number]


def exchange(comm: Communicator, seed: int) -> dict[str, int]:
    """Send and receive all messages of the plan; the receives by their kinds."""
    whole, dice = plans(comm.size, seed), random.Random(comm.rank)
    works = []
    for number in range(MESSAGES // comm.size**2):
        for target in range(comm.size):
            tag, count = whole[comm.rank, target][number]
            x = np.zeros(count, np.int64)
            x[:2] = comm.rank, number
            works.append(comm.send_async(x, target, tag=tag))
    model = Model({source: whole[source, comm.rank] for source in range(comm.size)})
    kinds: dict[str, int] = {}
    while any(model.left.values()):
        source, number = model.some(dice)
        kind = dice.choice(["source", "tag", "both", "neither"])
        src = source if kind in ("source", "both") else None
        tag = number if kind in ("tag", "both") else None
        kinds[kind] = kinds.get(kind, 0) + 1
        way = dice.randrange(4)
        status = Status()
        if way == 0:  # several at once
            posted = [Status() for _ in range(dice.randint(1, min(20, model.count(src, tag))))]
            arrays = [comm.recv_async(src=src, tag=tag, status=one) for one in posted]
            for work, one in zip(arrays, posted, strict=True):
                model.received(work.wait(), one, src, tag)
        elif way == 1:  # what the probe has found
            found = comm.probe(src, tag=tag)
            array = comm.recv(np.empty(found.count, np.int64), found.source, tag=found.tag, status=status)
            assert status == found
            model.received(array, status, found.source, found.tag)
        elif way == 2 and src is not None:  # into an array of the right length
            count = model.left[source][model.first(source, tag)][1]
            model.received(comm.recv(np.empty(count, np.int64), src, tag=tag, status=status), status, src, tag)
        else:
            model.received(comm.recv(src=src, tag=tag, status=status), status, src, tag)
    for sending in works:
        sending.wait()
    assert comm.iprobe(tag=None) is None
    return kinds


@pytest.mark.long
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("transport", ALL)
def test_random_messages_against_a_model(worlds: Worlds, transport: str, size: int) -> None:
    for kinds in worlds.get(transport, size).run(exchange, size):
        assert set(kinds) == {"source", "tag", "both", "neither"}


@pytest.mark.long
@pytest.mark.parametrize("hosts", [("east", "west", "west"), ("east", "east", "west", "west", "north")])
def test_random_messages_over_two_transports_at_once(hosts: tuple[str, ...]) -> None:
    with world_of("auto", len(hosts), hosts=hosts) as world:
        world.run(exchange, 7)


def test_messages_of_communicators_never_mix(three: World) -> None:
    def program(comm: Communicator) -> None:
        part = comm.split(0 if comm.rank < 2 else 1)
        other = comm.split(0, key=-comm.rank)
        assert part is not None
        assert other is not None
        with part, other:
            if comm.rank == 0:
                posted = [one.recv_async(tag=None) for one in (part, other, comm)]
                assert [one.iprobe(tag=None) for one in (part, other, comm)] == [None] * 3
                comm.barrier()
                assert [int(work.wait()[0]) for work in posted] == [1, 2, 0]
            else:
                comm.barrier()
                if comm.rank == 1:
                    for number, one in ((0, comm), (1, part), (2, other)):
                        one.send(np.array([number]), one.size - 1 if one is other else 0, tag=3)
            comm.barrier()

    three.run(program)


# ---- arrays, tags and statuses


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "c16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_a_new_array_has_the_dtype_of_the_message(three: World, dtype: Any) -> None:
    def program(comm: Communicator) -> None:
        x = np.ones((2, 3), dtype)
        if comm.rank:
            comm.send(x, 0, tag=comm.rank)
            return
        for rank in (2, 1):
            status = Status()
            array = comm.recv(tag=rank, status=status)
            assert array.dtype == x.dtype
            assert (array == x.reshape(-1)).all()
            array[:] = 0  # it is writable
            assert status == Status(rank, rank, x.dtype, 6, x.nbytes)

    three.run(program)


def test_receives_into_arrays_of_any_layout(three: World) -> None:
    def program(comm: Communicator) -> None:
        if comm.rank:
            comm.send(np.arange(4.0) + comm.rank, 0, tag=comm.rank)
            return
        wide = np.zeros((2, 5))
        assert comm.recv(wide[:, 1:3], None, tag=2).base is wide
        assert wide.tolist() == [[0, 2, 3, 0, 0], [0, 4, 5, 0, 0]]
        row = np.empty(4)
        assert comm.recv(row, 1, tag=None) is row
        assert row.tolist() == [1, 2, 3, 4]

    three.run(program)


@pytest.mark.parametrize("transport", ALL)
def test_large_and_empty_messages(worlds: Worlds, transport: str) -> None:
    count = 3_000_000

    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            posted = comm.recv_async(tag=1)
            comm.barrier()
            assert posted.wait()[-1] == count - 1
            found = comm.probe(tag=2)
            assert (found.source, found.count) == (1, count)
            assert comm.recv(np.empty(count, np.float32), tag=2)[-1] == count - 1
            assert len(comm.recv(tag=3)) == 0
        else:
            comm.barrier()
            if comm.rank == 1:
                for tag in (1, 2):
                    comm.send(np.arange(count, dtype=np.float32), 0, tag=tag)
                comm.send(np.empty(0), 0, tag=3)

    worlds.get(transport, 3).run(program)


def test_a_message_to_oneself(three: World) -> None:
    def program(comm: Communicator) -> None:
        work = comm.send_async(np.array([comm.rank]), comm.rank, tag=5)
        assert comm.probe(tag=None) == Status(comm.rank, 5, np.dtype(np.int64), 1, 8)
        assert comm.recv(tag=None).tolist() == [comm.rank]
        work.wait()

    three.run(program)


def test_a_message_that_does_not_fit_is_lost_alone(three: World) -> None:
    def program(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.send(np.ones(3, np.float32), 0, tag=1)
            comm.send(np.ones(3), 0, tag=2)
            comm.send(np.ones(3), 0, tag=3)
            comm.send_object("three", 0, tag=4)
            comm.send(np.ones(3), 0, tag=5)
        if comm.rank == 0:
            for tag, x, text in (
                (1, np.empty(3), "receive from any rank: .*3 elements of float64; .*rank 1 .* 12 bytes"),
                (2, np.empty(4), "receive from any rank: .*4 elements of float64; .*rank 1 .* 24 bytes"),
            ):
                status = Status()
                with pytest.raises(MismatchError, match=text):
                    comm.recv(x, tag=tag, status=status)
                assert (status.source, status.tag, status.count) == (1, tag, 3)
            with pytest.raises(MismatchError, match=r"rank 1 with tag 3: 3 elements of float64; .*object"):
                comm.recv_object(tag=3)
            with pytest.raises(MismatchError, match=r"object of \d+ bytes; .*array .*recv_object"):
                comm.recv(tag=4)
            assert comm.recv(tag=5).tolist() == [1, 1, 1]
        comm.barrier()

    three.run(program)


def test_bad_arguments_of_messages(three: World) -> None:
    def program(comm: Communicator) -> None:
        for call, kind, text in (
            (lambda: comm.recv(src=3), ValueError, "src=3: .*rank.* 0 to 2"),
            (lambda: comm.recv(src="1"), TypeError, "src='1': .* int"),  # type: ignore[call-overload]
            (lambda: comm.recv(tag=-1), ValueError, r"tag=-1: .* int, 0 to 2\*\*31 - 1.* None "),
            (lambda: comm.probe(tag=2**31), ValueError, "tag=2147483648: .* 0 to"),
            (lambda: comm.iprobe(-1), ValueError, "src=-1: .*rank"),
            (lambda: comm.recv_object(tag=True), ValueError, "tag=True: .* 0 to"),
            (lambda: comm.send_object(1, 5), ValueError, "dst=5: .*rank"),
            (lambda: comm.send(1, 0, tag=None), ValueError, r"tag=None: .* int, 0 to 2\*\*31 - 1$"),  # type: ignore[arg-type]
            (lambda: comm.send_object(lambda: 1, 0), TypeError, "obj: .*function .*pickled"),
            (lambda: comm.recv([1.0], 0), TypeError, r"x=\[1.0\]: .*array"),  # type: ignore[call-overload]
            (lambda: comm.gather_object(1, 7), ValueError, "root=7: .*rank"),
        ):
            with pytest.raises(kind, match=text):
                call()
        comm.barrier()

    three.run(program)
    assert three.sound


def test_a_probe_without_a_message_ends_at_its_timeout(three: World) -> None:
    def program(comm: Communicator) -> None:
        for src in (None, (comm.rank + 1) % 3):
            with pytest.raises(DeadlineExceeded, match=r"probe: .*tag 4 .*0\.02 s"):
                comm.probe(src, tag=4, timeout=0.02)
            assert comm.iprobe(src, tag=None) is None
        comm.barrier()

    three.run(program)
    assert three.sound


# ---- objects


@pytest.mark.parametrize("transport", ALL)
def test_objects(worlds: Worlds, transport: str) -> None:
    def program(comm: Communicator) -> None:
        if comm.rank:
            comm.send_object({"rank": comm.rank, "data": np.arange(comm.rank * 1000)}, 0, tag=comm.rank)
        else:
            status = Status()
            for _ in range(2):
                received = comm.recv_object(tag=None, status=status)
                assert received["rank"] == status.source == status.tag
                assert len(received["data"]) == 1000 * status.source
                assert (status.dtype, status.count) == (None, status.nbytes)
        assert comm.gather_object([comm.rank] * comm.rank, 1) == ([[], [1], [2, 2]] if comm.rank == 1 else None)
        assert (
            comm.scatter_object(["a", {"b": 2}, None] if comm.rank == 2 else None, 2)
            == ["a", {"b": 2}, None][comm.rank]
        )
        work = comm.gather_object_async(comm.rank, name="ranks")
        assert comm.scatter_object_async([1, 2, 3] if comm.rank == 0 else None).wait() == comm.rank + 1
        assert work.wait() == ([0, 1, 2] if comm.rank == 0 else None)
        receiving = comm.recv_object_async(comm.rank)
        assert not receiving.test()
        comm.send_object_async("me", comm.rank).wait()
        assert receiving.wait() == "me"

    worlds.get(transport, 3).run(program)


def test_as_many_objects_as_ranks_are_scattered(three: World) -> None:
    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            for objs, said in ((None, "None"), ([1, 2], "2 objects")):
                with pytest.raises(ValueError, match=rf"objs={said}: .*3 objects on the root"):
                    comm.scatter_object(objs)
            with pytest.raises(TypeError, match=r"objs\[1\]: .*function .*pickled"):
                comm.scatter_object([1, lambda: 2, 3])
        assert comm.scatter_object([4, 5, 6]) == 4 + comm.rank

    three.run(program)


# ---- failures


def test_an_abort_ends_receives_and_probes() -> None:
    with world_of("tcp", 3) as world:

        def program(comm: Communicator) -> str:
            if comm.rank == 2:
                time.sleep(0.05)
                comm.abort("enough")
            call = comm.recv if comm.rank else comm.probe
            with pytest.raises(AbortedError) as caught:
                call(tag=None)
            with pytest.raises(AbortedError):
                comm.iprobe()
            return str(caught.value)

        assert all("rank 2 aborted: enough" in text for text in world.run(program))


@pytest.mark.parametrize("transport", ALL)
def test_ranks_that_close_fail_a_receive_only_when_none_is_left(transport: str) -> None:
    with world_of(transport, 3) as world:

        def program(comm: Communicator) -> str:
            if comm.rank:
                comm.send(np.array([comm.rank]), 0, tag=comm.rank)
                time.sleep(0.1 * (comm.rank - 1))
                if comm.rank == 2:
                    comm.send(np.array([4]), 0, tag=4)
                comm.close()
                return ""
            assert [int(comm.recv(tag=tag)[0]) for tag in (1, 2, 4)] == [1, 2, 4]
            with pytest.raises(PeerLost) as caught:
                comm.recv(tag=None)
            return str(caught.value)

        text = world.run(program)[0]
        assert "closed, and no other rank can send the frame that rank 0 was waiting for" in text
        assert "rank 1" in text
        assert "rank 2" in text


def rank_that_is_killed(rank: int, url: str, transport: str) -> str:
    """Rank 1 dies while the others receive from any rank."""
    with member(rank, 3, url, transport=transport) as comm:
        comm.barrier()
        if rank == 1:
            comm.send(1, 0)
            time.sleep(0.2)  # the others wait by then
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            assert comm.recv().tolist() == [1]
        with pytest.raises(PeerLost) as caught:
            comm.recv(tag=None)
        return str(caught.value)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")
@pytest.mark.parametrize("transport", ["tcp", "shm", "auto"])
def test_a_killed_rank_fails_receives_from_any_rank(transport: str) -> None:
    with meeting_place() as url:
        texts = run_processes(rank_that_is_killed, 3, url, transport, timeout=2 * SECONDS, dying={1})
    for rank in (0, 2):
        assert "lost rank 1 (" in texts[rank]


def test_a_transport_without_the_ability_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(comm: Communicator) -> None:
        for call in (comm.recv, comm.probe, comm.iprobe, comm.recv_object):
            with pytest.raises(TransportError, match=r"transport 'local' .*x, src and tag"):
                call()
        comm.barrier()

    monkeypatch.setattr(registry.backend("local").LocalTransport, "ability", lambda self, kind: None)
    with world_of("local", 3) as world:
        world.run(program)


def test_functions_of_the_world(three: World) -> None:
    def program(comm: Communicator) -> None:
        rank = ronde.rank()
        sending = ronde.send_object_async(rank, (rank + 1) % 3)
        assert ronde.probe().source == (rank - 1) % 3
        assert ronde.recv_object() == (rank - 1) % 3
        assert ronde.iprobe() is None
        sending.wait()
        assert ronde.gather_object(rank) == ([0, 1, 2] if rank == 0 else None)
        assert ronde.scatter_object([1, 2, 3]) == rank + 1
        ronde.barrier()

    three.run(program)


# ---- synchronous sends, shorter messages, cancelled receives, picklers


def synchronous(comm: Communicator) -> str:
    """Rank 0 sends synchronously to rank 1, which has posted its receives and sits in a barrier, or comes later."""
    x = np.arange(1000)
    if comm.rank == 1:
        got = [comm.recv_async(np.empty_like(x), 0, tag=1), comm.recv_object_async(0, tag=2)]
        comm.barrier()
        assert np.array_equal(got[0].wait(), x)
        assert got[1].wait() == "object"
        comm.barrier()
        comm.recv(None, 0, tag=3)
        return ""
    comm.send(x, 1, tag=1, synchronous=True)
    comm.send_object("object", 1, tag=2, synchronous=True)
    comm.barrier()
    work = comm.send_async(x, 1, tag=3, synchronous=True)
    assert not work.test()
    assert not work.ends_within(0.05)
    comm.barrier()
    work.wait()
    return ""


@pytest.mark.parametrize("transport", ALL)
def test_a_synchronous_send_ends_at_the_match_whatever_the_receiver_waits_for(worlds: Worlds, transport: str) -> None:
    worlds.get(transport, 2).run(synchronous)


def rank_of_synchronous(rank: int, url: str, transport: str, compiled: str) -> None:
    with member(rank, 2, url, transport=transport, compiled=compiled) as comm:
        for _ in range(3):
            comm.barrier()
        synchronous(comm)


@pytest.mark.processes
@pytest.mark.parametrize("compiled", ["off", "auto"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_synchronous_send_between_processes(transport: str, compiled: str) -> None:
    with meeting_place() as url:
        run_processes(rank_of_synchronous, 2, url, transport, compiled, timeout=2 * SECONDS)


@pytest.mark.parametrize("transport", ALL)
def test_a_receive_takes_shorter_messages_if_it_says_so(worlds: Worlds, transport: str) -> None:
    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            for count in (3, 0, 5, 6):
                comm.send(np.arange(count, dtype=np.float32), 1)
            comm.send(np.arange(2), 1)
            comm.send(np.arange(2.0, dtype=np.float32), 1)
            return
        status = Status()
        for src, x, count in ((0, np.full(5, -1, np.float32), 3), (None, np.full(5, -1, np.float32), 0)):
            assert comm.recv(x, src, shorter=True, status=status) is x
            assert x.tolist() == [*range(count), *[-1] * (5 - count)]
            assert (status.source, status.count, status.dtype) == (0, count, np.dtype(np.float32))
        assert comm.recv(np.zeros(5, np.float32), 0, tag=None, shorter=True).tolist() == [*range(5)]
        for _ in range(2):  # too long, and of another dtype
            with pytest.raises(MismatchError):
                comm.recv(np.zeros(5, np.float32), 0, shorter=True)
        spread = np.full((4, 2), -1, np.float32)[:, 0]  # not contiguous
        comm.recv(spread, 0, shorter=True, status=status)
        assert spread.tolist() == [0, 1, -1, -1]
        assert status.count == 2

    worlds.get(transport, 2).run(program)


@pytest.mark.parametrize("transport", ALL)
def test_a_receive_is_cancelled_before_its_match(worlds: Worlds, transport: str) -> None:
    def program(comm: Communicator) -> None:
        x, y = np.zeros(2), np.zeros(2)
        ended: list[Any] = []
        if comm.rank == 0:
            comm.barrier()
            work = comm.send_async(np.array([1.0, 2.0]), 1)
            assert not work.cancel()
            work.wait()
            comm.send_object("any", 1, tag=5)
        else:
            for first in (comm.recv_async(x, 0), comm.recv_async(src=0), comm.recv_object_async(tag=5)):
                first.add_done_callback(ended.append)
                assert first.cancel()
                assert not first.cancel()
                assert first.test()
                assert ended.pop() is first
                with pytest.raises(CancelledError):
                    first.wait()
            work = comm.recv_async(y, 0)
            comm.barrier()
            assert work.wait().tolist() == [1, 2]
            assert not work.cancel()
            assert not x.any()
            assert comm.recv_object(0, tag=5) == "any"
        assert not comm.barrier_async().cancel()
        comm.barrier()

    worlds.get(transport, 2).run(program)


class Marked:
    """A pickler of one's own."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def dumps(self, obj: Any) -> bytes:
        self.calls.append("dumps")
        return b"\0marked" + pickle.dumps(obj)

    def loads(self, data: Any) -> Any:
        self.calls.append("loads")
        assert bytes(data[:7]) == b"\0marked"
        return pickle.loads(data[7:])


@pytest.mark.parametrize("transport", ALL)
def test_objects_go_through_the_pickler_that_is_given(worlds: Worlds, transport: str) -> None:
    def program(comm: Communicator) -> None:
        pickler = Marked()
        for right in ({"rank": comm.rank},):
            work = comm.send_object_async(right, 1 - comm.rank, pickler=pickler)
            assert comm.recv_object(pickler=pickler) == {"rank": 1 - comm.rank}
            work.wait()
        assert comm.broadcast_object(comm.rank, 1, pickler=pickler) == 1
        assert comm.allgather_object(comm.rank, pickler=pickler) == [0, 1]
        assert comm.gather_object(comm.rank, pickler=pickler) == ([0, 1] if comm.rank == 0 else None)
        assert comm.scatter_object(["a", "b"] if comm.rank == 0 else None, pickler=pickler) == "ab"[comm.rank]
        assert {"dumps", "loads"} == set(pickler.calls)

    worlds.get(transport, 2).run(program)


@pytest.mark.parametrize("transport", ALL)
def test_objects_with_arrays_are_whole_writable_and_apart(worlds: Worlds, transport: str) -> None:
    def program(comm: Communicator) -> None:
        here = {
            "big": np.arange(200_000.0) + comm.rank,
            "empty": np.zeros((0, 3), np.int8),
            "bfloat16": np.ones(7, ml_dtypes.bfloat16),
            "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
            "strided": np.arange(20)[::2],
            "bytes": b"12345",
        }

        def check(found: dict[str, Any], rank: int) -> None:
            assert found["bytes"] == b"12345"
            assert np.array_equal(found["big"], np.arange(200_000.0) + rank)
            for name in ("empty", "bfloat16", "fortran", "strided"):
                assert np.array_equal(found[name], here[name])
                assert found[name].dtype == here[name].dtype
            found["big"][0] = found["strided"][0] = -1  # in nobody else's memory

        other = 1 - comm.rank
        work = comm.send_object_async(here, other)
        check(comm.recv_object(other), other)
        work.wait()
        for rank, found in enumerate(comm.allgather_object(here)):
            check(found, rank)
        got = comm.broadcast_object(here if comm.rank == 0 else None)
        if comm.rank:
            check(got, 0)
        assert here["big"][0] == comm.rank

    worlds.get(transport, 2).run(program)


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_closed_group_takes_no_messages(worlds: Worlds, transport: str) -> None:
    """They would go to a rank whose group may be closed too, over the transport that both still share."""

    def body(comm: Communicator) -> None:
        group = comm.split(0)
        assert group is not None
        channel = group.channel([comm.rank])
        group.close()
        group.close()
        calls: list[Callable[[], object]] = [
            lambda: group.send(np.ones(1), comm.rank),
            lambda: group.recv_async(np.ones(1), 0),
            lambda: group.sendrecv(np.ones(1), comm.rank),
            lambda: group.send_object(1, comm.rank),
            lambda: group.recv_object(0),
            group.probe,
            group.iprobe,
            group.channel,
            lambda: group.channel([0, 1]),
            lambda: group.subset([0, 1]),
            lambda: group.subset(channel),
            lambda: group.empty(1),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="closed"):
                call()
        np.testing.assert_array_equal(comm.sendrecv(np.full(1, comm.rank), 1 - comm.rank), 1 - comm.rank)

    worlds.get(transport, 2).run(body)


@pytest.mark.parametrize("end", ["cancel", "close"])
@pytest.mark.parametrize("transport", ["local", "tcp", "shm"])
def test_a_receive_that_is_taken_back_ends_in_the_thread_that_waits_for_it(
    worlds: Worlds, transport: str, end: str
) -> None:
    """Also one that nobody waits for yet, and callbacks. Nothing else is lost."""
    error = CancelledError if end == "cancel" else ClosedError

    def body(comm: Communicator) -> None:
        group = comm.split(0)
        assert group is not None
        called = threading.Event()
        works = [group.recv_async(np.ones(1), 1 - comm.rank), group.recv_async(tag=None), group.recv_async(tag=7)]
        works[2].add_done_callback(lambda _: called.set())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(works[0].wait)
            time.sleep(0.02)  # so that it mostly waits by then
            if end == "cancel":
                assert [work.cancel() for work in works] == [True, True, True]
            else:
                group.close()
            for wait in (waiting.result, works[1].wait, works[2].wait):
                with pytest.raises(error, match="receive from"):
                    wait(30.0)
        assert called.wait(30.0)
        assert all(work.test() for work in works)
        assert comm.allreduce(1) == 2

    worlds.get(transport, 2).run(body)
