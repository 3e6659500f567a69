"""Communicators and channels of some ranks, made by these alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, MismatchError, world_scope
from tests.worlds import Worlds

TRANSPORTS = ("local", "shm", "tcp")


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    found = Worlds()
    yield found
    found.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_only_members_call_it(worlds: Worlds, transport: str) -> None:
    def body(comm: Communicator) -> Any:
        if comm.rank == 1:
            return None
        with comm.subset([2, 0]) as some:
            return some.rank, some.allreduce(np.array([comm.rank + 1.0])).tolist(), some.allgather_object(comm.rank)

    assert worlds.get(transport, 3).run(body) == [(1, [4.0], [2, 0]), None, (0, [4.0], [2, 0])]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_ranks_agree_on_the_number_and_the_messages_stay_apart(worlds: Worlds, size: int) -> None:
    def body(comm: Communicator) -> Any:
        channels = [comm.channel(range(comm.size)) for _ in range(2)] + [comm.channel()]
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for number, channel in enumerate(channels):
            channel.send(memoryview(bytes([number, comm.rank])), right, 5, 60.0)
        found = []
        for channel in reversed(channels):
            receipt = channel.receive(None, left, range(10), 60.0)
            receipt.wait()
            found.append(tuple(receipt.view))
        comm.barrier()
        return [channel.context for channel in channels], found == [(number, left) for number in (2, 1, 0)]

    found = worlds.get("local", size).run(body)
    assert all(contexts == found[0][0] for contexts, _ in found)
    assert len(set(found[0][0])) == 3
    assert all(apart for _, apart in found)


@pytest.mark.parametrize(("liar", "other"), [(3, [0, 1, 3, 2]), (0, [3, 2, 1, 0]), (2, [2, 0, 1, 3]), (1, [0, 1])])
def test_other_ranks_or_another_order_are_an_error_with_both_lists(liar: int, other: list[int]) -> None:
    def body(comm: Communicator) -> Any:
        def call() -> None:
            comm.subset(other if comm.rank == liar else [0, 1, 2, 3], timeout=30)
            comm.barrier()

        with pytest.raises(MismatchError, match="list different ranks") as caught:
            call()
        return str(other) in str(caught.value) and "[0, 1, 2, 3]" in str(caught.value)

    with contextlib.closing(Worlds()) as worlds:
        assert all(worlds.get("local", 4).run(body))


def test_threads_make_channels_at_the_same_time(worlds: Worlds) -> None:
    def body(comm: Communicator) -> Any:
        contexts: dict[int, int] = {}

        def make(tag: int) -> None:
            with world_scope(comm):
                contexts[tag] = comm.channel([0, 1], tag=tag).context

        tags = range(8) if comm.rank == 0 else reversed(range(8))
        threads = [threading.Thread(target=make, args=(tag,)) for tag in tags]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return contexts

    found = worlds.get("shm", 2).run(body)
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 8


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_receive_takes_shorter_messages_and_refuses_longer_ones(worlds: Worlds, transport: str) -> None:
    def body(comm: Communicator) -> Any:
        channel = comm.channel()
        if comm.rank == 0:
            for data in (b"abc", b"too long", b"end"):
                channel.send(memoryview(data), 1, 3, 60.0).wait()
            return None
        memory, found = bytearray(b"-----"), []
        for _ in range(3):
            receipt = channel.receive(memoryview(memory), None, range(9), 60.0)
            try:
                receipt.wait()
            except MismatchError:
                found.append(b"refused")
            else:
                found.append(bytes(receipt.view))
                assert receipt.arrival is not None
                assert (receipt.arrival.source, receipt.arrival.tag) == (0, 3)
        assert comm.failure is None
        return found

    assert worlds.get(transport, 2).run(body)[1] == [b"abc", b"refused", b"end"]


def test_a_receive_is_taken_back_until_it_has_matched(worlds: Worlds) -> None:
    def body(comm: Communicator) -> Any:
        channel = comm.channel()
        receipt = channel.receive(None, 1 - comm.rank, range(1), 60.0)
        first = receipt.cancel()
        again = channel.receive(None, 1 - comm.rank, range(1), 60.0)
        channel.send(memoryview(b"x"), 1 - comm.rank, 0, 60.0)
        again.wait()
        return first, again.cancel()

    assert worlds.get("shm", 2).run(body) == [(True, False)] * 2


@pytest.mark.parametrize("ranks", [[0, 0], [1], [0, 7], 1, [0.5]])
def test_bad_ranks(worlds: Worlds, ranks: Any) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises((TypeError, ValueError), match="ranks="):
                comm.subset(ranks)
            for tag in (-1, 1 << 28, "a"):
                with pytest.raises(ValueError, match="tag="):
                    comm.channel(tag=tag)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="timeout=0"):
                comm.channel(timeout=0)
        comm.barrier()

    worlds.get("local", 2).run(body)
