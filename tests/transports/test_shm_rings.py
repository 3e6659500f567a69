"""The rings that frames go through in shared memory."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.groups import on_ranks, recv, send, soon
from tests.transports.shm_ranks import SECONDS, briefly, small_rings
from transports import shm
from transports.errors import DeadlineExceeded, TransportError
from transports.shm import Options, ring
from transports.shm.doorbell import Doorbell
from transports.shm.ring import CONTROL_BYTES, Incoming, Outgoing, RingMemory
from transports.shm.segments import Segment

pytestmark = pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable()))


def ends(segment: Segment, capacity: int, arrive: ring.Arrive) -> tuple[Outgoing, Incoming]:
    memory, bell = segment.memory, Doorbell(segment.memory, 0)
    words, data = memory[128 : 128 + CONTROL_BYTES].cast("Q"), memory[128 + CONTROL_BYTES :][:capacity]
    return Outgoing(RingMemory(words, data), bell), Incoming(1, RingMemory(words, data), bell, bell, arrive)


class Going:
    done = False


class Landed:
    def __init__(self, nbytes: int) -> None:
        self.payload = bytearray(nbytes)
        self.view = memoryview(self.payload)
        self.finished = False

    def finish(self) -> None:
        self.finished = True


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 31, 32, 33, 250, 256, 257, 1000, 1024, 5000]), st.booleans()), max_size=40
    )
)
def test_a_ring_carries_frames_of_all_sizes_in_order(frames: list[tuple[int, bool]]) -> None:
    landed: list[tuple[int, int, int, Landed]] = []
    going: list[Going] = []

    def arrive(kind: int, tag: int, check: int, length: int) -> Landed:
        landed.append((kind, tag, check, Landed(length)))
        return landed[-1][3]

    segment = Segment.create(128 + CONTROL_BYTES + 1024)
    segment.unlink()
    outgoing, incoming = ends(segment, 1024, arrive)
    rng = random.Random(len(frames))
    payloads = [rng.randbytes(length) for length, _ in frames]
    for number, (payload, (_, drained)) in enumerate(zip(payloads, frames, strict=True)):
        frame = number % 2, 2**64 - 1 - number, 2**32 - 1 - number, memoryview(payload)
        if not outgoing.send(*frame):
            going.append(Going())
            outgoing.queue(*frame, going[-1])
        if drained:
            incoming.drain()
    while outgoing.queued or not incoming.empty:
        assert incoming.drain() | outgoing.push()
    assert all(each.done for each in going)
    assert all(entry[3].finished for entry in landed)
    assert [bytes(entry[3].payload) for entry in landed] == payloads
    expected = [(number % 2, 2**64 - 1 - number, 2**32 - 1 - number) for number in range(len(frames))]
    assert [entry[:3] for entry in landed] == expected
    del outgoing, incoming
    segment.close()


def test_frames_much_larger_than_the_ring_pass_both_ways() -> None:
    data = [random.Random(rank).randbytes(300_001) for rank in range(3)]

    def body(t: Any) -> None:
        buffers = [bytearray(300_001) for _ in range(3)]
        coming = [t.irecv(peer, 1, memoryview(buffers[peer])) for peer in range(3)]
        going = [t.isend(peer, 1, memoryview(data[t.rank])) for peer in range(3)]
        for request in going + coming:
            request.wait(soon())
        assert buffers == data

    on_ranks(small_rings, body, 3)


def test_a_frame_over_the_limit_stays_in_the_ring_until_it_is_asked_for() -> None:
    def body(t: Any) -> None:
        if t.rank == 0:
            going = [t.isend(1, tag, memoryview(bytes([tag]) * 600)) for tag in (1, 2, 3)]
            for request in going:
                request.wait(soon())
        else:
            with pytest.raises(DeadlineExceeded):
                t.irecv(1, 9, memoryview(bytearray())).wait(briefly(0.02))
            assert t.match_queue.unexpected_bytes == 600
            assert [recv(t, 0, tag, 600) for tag in (1, 2, 3)] == [bytes([tag]) * 600 for tag in (1, 2, 3)]

    on_ranks(lambda group: shm.create(group, Options(max_parked_bytes=1000)), body)


def test_a_deadline_of_a_send_names_the_rank_that_does_not_read() -> None:
    def body(t: Any) -> None:
        if t.rank == 0:
            sending = t.isend(1, 1, memoryview(bytes(100_000)))
            with pytest.raises(DeadlineExceeded, match=r"100000 bytes .*tag 0x1 to rank 1"):
                sending.wait(briefly(0.01))
            send(t, 0, 2, b"")
            recv(t, 0, 2, 0)
            ready.set()
            sending.wait(soon())
        else:
            assert ready.wait(SECONDS)
            assert recv(t, 0, 1, 100_000) == bytes(100_000)

    ready = threading.Event()
    on_ranks(small_rings, body)


def test_close_names_the_ranks_that_did_not_take_all() -> None:
    def body(t: Any) -> None:
        if t.rank == 0:
            t.isend(1, 1, memoryview(bytes(100_000)))
            with pytest.raises(DeadlineExceeded, match=r"closed before rank 1 "):
                t.close(briefly(0.01))
            closed.set()
        assert closed.wait(SECONDS)

    closed = threading.Event()
    on_ranks(small_rings, body)


def test_frames_for_a_closed_rank_delay_no_rank() -> None:
    def body(t: Any) -> None:
        if t.rank == 1:
            t.close(soon())
            closed.set()
        else:
            assert closed.wait(SECONDS)
            t.isend(1, 1, memoryview(bytes(100_000)))
            t.close(soon())

    closed = threading.Event()
    on_ranks(small_rings, body)


@pytest.mark.parametrize("counted", [2048 + 32, 2**60])
def test_no_frame_is_read_after_an_impossible_counter(counted: int) -> None:
    """Also a counter that has fallen below what was read."""
    arrived: list[int] = []

    def arrive(kind: int, tag: int, check: int, length: int) -> Landed:
        arrived.append(length)
        return Landed(length)

    segment = Segment.create(128 + CONTROL_BYTES + 2048)
    segment.unlink()
    sender, receiver = ends(segment, 2048, arrive)
    words = segment.memory[128 : 128 + CONTROL_BYTES].cast("Q")
    sender.send(0, 1, 0, memoryview(bytes(32)))
    assert receiver.drain()
    place = next(at for at, word in enumerate(words) if word == 64)
    for impossible in (64 + counted, 32):
        words[place] = impossible
        with pytest.raises(TransportError):
            receiver.drain()
    assert arrived == [32]
    words.release()
