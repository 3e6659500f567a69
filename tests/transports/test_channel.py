"""Compiled code sends and receives small messages itself: here functions of Python do, over TCP and in rings."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.transports import shm_ranks
from tests.transports.groups import groups, recv, send, soon
from tests.transports.tcp_ranks import in_threads, link, ranks, tcp_link, wait_until
from transports.compiled import (
    BUFFER,
    EARLY,
    END,
    HEAD_BYTES,
    IN,
    IN_DATA,
    LANE_WORDS,
    MASK,
    OUT,
    OUT_DATA,
    READ,
    RING_HEAD_BYTES,
    Channel,
    CompiledMessages,
)
from transports.cores import Cores
from transports.errors import MismatchError, PeerLost
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import data_header
from transports.tcp.lanes import BUFFER_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="machine code reads and writes lanes on Linux only")

BUSY = -7
TAG = 5


def nothing_left(answer: int, source: Any, target: Any) -> int:
    """Nothing was sent in part."""
    return answer


class Lanes:
    """One end of a channel to a peer, used as compiled code does: by system calls on the descriptors."""

    def __init__(self, t: TcpTransport, peer: int, tag: int = TAG, messages: int = 2) -> None:
        """`messages`: those that a call receives."""
        t.loop.polls = True  # the ranks share a process
        found = t.ability(CompiledMessages)
        assert found is not None
        self.channel: Channel = found.channel([peer], [peer] * messages, tag, BUSY)
        self.words = (ctypes.c_int64 * LANE_WORDS).from_address(self.channel.words(peer))
        self.tag = tag

    def run(self, body: Callable[[], int | None], left: Callable[..., int] = nothing_left) -> int | None:
        return self.channel.run(lambda source, target: body(), None, None, left)

    def send(self, payload: bytes, check: int = 0) -> None:
        frame = data_header(self.tag, check, len(payload)) + payload
        assert os.write(self.words[OUT], frame) == len(frame)

    def read(self, count: int) -> bytes:
        """Read so many bytes into the buffer."""
        end, until = self.words[END], soon()
        while self.words[END] < end + count and time.monotonic() < until:
            buffer = (ctypes.c_char * (count - self.words[END] + end)).from_address(
                self.words[BUFFER] + self.words[END]
            )
            try:
                self.words[END] += os.readv(self.words[IN], [buffer])
            except BlockingIOError:
                time.sleep(0.001)
        return ctypes.string_at(self.words[BUFFER] + end, count)

    def take(self, length: int) -> bytes:
        """The payload of the next frame."""
        frame = self.read(HEAD_BYTES + length)
        self.words[END] = 0
        return frame[HEAD_BYTES:]


@contextmanager
def linked(options: Options | None = None) -> Iterator[tuple[TcpTransport, TcpTransport, Lanes, Lanes]]:
    """Two ranks that have connected, and the channel of each to the other; nothing is due in their loops."""
    with ranks(2, options) as (a, b):
        link([a, b])
        for t in (a, b):
            t.loop.due = time.monotonic() + 100
        yield a, b, Lanes(a, 1), Lanes(b, 0)


def test_messages_of_both_kinds_mix() -> None:
    with linked() as (_, b, at_a, at_b):
        assert at_a.run(lambda: at_a.send(b"direct")) is None
        assert recv(b, 0, TAG, 6) == b"direct"
        send(b, 0, TAG, b"by the transport")
        found: list[bytes] = []
        assert at_a.run(lambda: found.append(at_a.take(16))) is None
        assert at_b.run(lambda: at_b.send(b"both")) is None
        assert at_a.run(lambda: found.append(at_a.take(4))) is None
        assert found == [b"by the transport", b"both"]


def test_lanes_that_are_not_connected_are_busy() -> None:
    with ranks(2) as (a, b):
        lanes = Lanes(a, 1)
        assert lanes.run(lambda: None) == BUSY
        link([a, b])
        assert lanes.run(lambda: None) is None


def test_lanes_in_use_are_busy() -> None:
    with linked() as (a, b, at_a, _):
        posted = a.irecv(1, TAG, memoryview(bytearray(3)))
        assert at_a.run(lambda: None) == BUSY, "a receive for such a message is posted"
        send(b, 0, TAG, b"abc")
        posted.wait(soon())
        assert at_a.run(lambda: None) is None
        for messages in ([b"one", b"more"], [bytes(BUFFER_BYTES)]):
            come_early(a, b, *messages)
            assert at_a.run(lambda: None) == BUSY, "two such messages have arrived, or one that is too long"
            for message in messages:
                assert recv(a, 1, TAG, len(message)) == message
            assert at_a.run(lambda: None) is None
        waiting = a.isend(1, 8, memoryview(bytes(50 << 20)))
        assert at_a.run(lambda: None) == BUSY, "bytes wait to be sent"
        in_threads(lambda: waiting.wait(soon()), lambda: recv(b, 0, 8, 50 << 20))
        assert at_a.run(lambda: None) is None


def come_early(a: TcpTransport, b: TcpTransport, *messages: bytes) -> None:
    """Send messages from b to a, which keeps them: they arrive before another one that it receives."""
    for message in messages:
        send(b, 0, TAG, message)
    send(b, 0, 77, b"other")
    assert recv(a, b.rank, 77, 5) == b"other"
    assert a.match_queue.knows(b.rank, TAG)


def test_a_message_that_came_early_is_given_to_the_code() -> None:
    def take() -> None:
        assert at_a.words[EARLY] == HEAD_BYTES + 5
        frame = ctypes.string_at(at_a.words[BUFFER], at_a.words[EARLY])
        assert frame == data_header(TAG, 0, 5) + b"early"
        at_a.words[EARLY] = 0
        assert at_a.take(5) == b"later"

    with linked() as (a, b, at_a, _):
        come_early(a, b, b"early")
        send(b, 0, TAG, b"later")
        assert at_a.run(take) is None
        assert not a.match_queue.unexpected_bytes
        assert not a.match_queue.unexpected_frames
        assert at_a.run(lambda: None) is None


def test_a_message_that_came_early_and_is_not_taken() -> None:
    with linked() as (a, b, at_a, _):
        come_early(a, b, b"early")
        send(b, 0, TAG, b"later")
        assert at_a.run(lambda: 0) == 0
        assert recv(a, 1, TAG, 5) == b"early"
        assert recv(a, 1, TAG, 5) == b"later"
        assert at_a.run(lambda: None) is None


@pytest.mark.parametrize("count", [2, HEAD_BYTES + 2])
def test_a_part_of_the_next_frame_behind_a_message_that_came_early(count: int) -> None:
    def take() -> int:
        at_a.words[EARLY] = 0
        at_a.read(count)
        return 0

    with linked() as (a, b, at_a, _):
        come_early(a, b, b"early")
        send(b, 0, TAG, b"later")
        assert at_a.run(take) == 0
        assert recv(a, 1, TAG, 5) == b"later"
        assert not a.match_queue.unexpected_frames
        assert at_a.run(lambda: None) is None


def test_messages_that_came_early_are_given_one_by_one_to_calls_that_receive_one() -> None:
    with linked() as (a, b, _, _):
        alone = Lanes(a, 1, messages=1)
        come_early(a, b, b"first", b"other", b"third")
        found: list[bytes] = []

        def take() -> None:
            found.append(ctypes.string_at(alone.words[BUFFER] + HEAD_BYTES, alone.words[EARLY] - HEAD_BYTES))
            alone.words[EARLY] = 0

        assert alone.run(take) is None
        assert alone.run(lambda: 0) == 0, "the code has left it"
        assert alone.run(take) is None
        send(b, 0, TAG, b"fresh")
        assert [recv(a, 1, TAG, 5), recv(a, 1, TAG, 5)] == [b"third", b"fresh"]
        assert found == [b"first", b"other"]
        assert alone.run(lambda: None) is None


def test_early_messages_of_one_peer_are_kept_if_those_of_another_are_too_many() -> None:
    with ranks(3) as (a, b, c):
        link([a, b, c])
        a.loop.polls = True
        found = a.ability(CompiledMessages)
        assert found is not None
        channel = found.channel([], [1, 2, 2], TAG, BUSY)
        for sender, messages in ((b, [b"one"]), (c, [b"two", b"three"])):
            come_early(a, sender, *messages)
        assert channel.run(lambda source, target: None, None, None, nothing_left) == BUSY
        assert [recv(a, 1, TAG, 3), recv(a, 2, TAG, 3), recv(a, 2, TAG, 5)] == [b"one", b"two", b"three"]


def test_lanes_are_busy_while_another_thread_waits() -> None:
    with linked() as (a, b, at_a, _):
        waiter = threading.Thread(target=lambda: recv(a, 1, 9, 3))
        waiter.start()
        wait_until(lambda: a.loop.driver.asleep)
        assert at_a.run(lambda: None) == BUSY
        send(b, 0, 9, b"end")
        waiter.join(soon() - time.monotonic())
        assert at_a.run(lambda: None) is None


def test_lanes_of_a_transport_that_is_over_are_busy() -> None:
    with linked() as (a, b, at_a, at_b):
        a.abort(PeerLost("a test", rank=0, peer=1))
        assert at_a.run(lambda: None) == BUSY
        with pytest.raises(PeerLost, match="a test"):
            recv(b, 0, TAG, 1)
        assert at_b.run(lambda: None) == BUSY


@pytest.mark.parametrize("count", [1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + 5])
def test_a_frame_of_which_a_part_was_read(count: int) -> None:
    def read() -> int:
        at_a.read(count)
        return 0

    with linked() as (a, b, at_a, at_b):
        send(b, 0, TAG, b"whole")
        send(b, 0, TAG, b"next")
        assert at_a.run(read) == 0
        assert recv(a, 1, TAG, 5) == b"whole"
        assert recv(a, 1, TAG, 4) == b"next"
        assert at_b.run(lambda: at_b.send(b"after")) is None
        assert recv(a, 1, TAG, 5) == b"after"


def test_a_frame_for_another_receive() -> None:
    def read() -> int:
        at_a.read(HEAD_BYTES + 5)
        return 0

    with linked() as (a, b, at_a, _):
        other = a.irecv(1, 99, memoryview(buffer := bytearray(5)))
        send(b, 0, 99, b"other")
        send(b, 0, TAG, b"mine")
        assert at_a.run(read) == 0
        other.wait(soon())
        assert bytes(buffer) == b"other"
        assert recv(a, 1, TAG, 4) == b"mine"


def test_a_frame_with_another_check() -> None:
    def read() -> int:
        at_a.read(HEAD_BYTES + 4)
        return 0

    with linked() as (a, _, at_a, at_b):
        assert at_b.run(lambda: at_b.send(b"four", check=3)) is None
        assert at_a.run(read) == 0
        with pytest.raises(MismatchError):
            a.recv(1, TAG, memoryview(bytearray(4)), soon(), 4)


@pytest.mark.parametrize("sent", [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 3])
def test_a_message_that_was_sent_in_part(sent: int) -> None:
    payload, requests = memoryview(b"in two parts"), []

    def send_part() -> int:
        frame = data_header(TAG, 6, len(payload)) + payload
        assert os.write(at_a.words[OUT], frame[:sent]) == sent
        return 4

    def left(answer: int, source: Any, target: Any) -> int:
        assert answer == 4
        requests.append(at_a.channel.send_rest(1, payload, 6, sent))
        return answer

    with linked() as (_, b, at_a, at_b):
        assert at_a.run(send_part, left) == 4
        assert at_a.run(lambda: None) == BUSY
        taken: list[bytes] = []
        reader = threading.Thread(target=lambda: at_b.run(lambda: taken.append(at_b.take(len(payload)))))
        reader.start()
        (request,) = requests
        request.wait(soon())
        reader.join(soon() - time.monotonic())
        assert taken == [bytes(payload)]
        assert at_a.run(lambda: at_a.send(b"next")) is None
        assert recv(b, 0, TAG, 4) == b"next"


def test_the_end_of_a_connection_is_left_to_the_transport() -> None:
    with linked(Options(peer_timeout=1)) as (a, b, at_a, _):
        sock = tcp_link(b).lane_to(0).sock
        assert sock is not None
        sock.shutdown(2)
        with pytest.raises(PeerLost, match="GOODBYE"):
            a.recv(1, TAG, memoryview(bytearray(1)), soon())
        assert at_a.run(lambda: None) == BUSY


def test_an_exception_in_between_fails_the_transport() -> None:
    def fail() -> int:
        raise KeyboardInterrupt

    with linked() as (a, _, at_a, _b):
        with pytest.raises(KeyboardInterrupt):
            at_a.run(fail)
        assert a.failure is not None
        assert at_a.run(lambda: None) == BUSY


def test_the_other_lanes_are_served_from_time_to_time() -> None:
    with ranks(3) as (a, b, c):
        link([a, b, c])
        at_a = Lanes(a, 1)
        send(c, 0, TAG, b"other")
        send(b, 0, TAG, b"mine")
        found: list[bytes] = []

        def served() -> bool:
            a.loop.due = 0.0
            assert at_a.run(lambda: None) is None
            return a.match_queue.knows(2, TAG)

        wait_until(served)
        assert not a.match_queue.knows(1, TAG), "it is compiled code's"
        assert at_a.run(lambda: found.append(at_a.take(4))) is None
        assert [*found, recv(a, 2, TAG, 5)] == [b"mine", b"other"]


def test_a_shared_core_is_found_though_no_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Cores] = []
    monkeypatch.setattr(Cores, "leave", lambda cores: left.append(cores))
    with linked() as (a, _, at_a, _b):
        a.loop.polls = True
        for due, times in ((time.monotonic() + 100, 0), (0.0, 1)):
            a.loop.due = due
            assert at_a.run(lambda: None) is None
            assert len(left) == times


def test_the_other_rings_are_served_too() -> None:
    with ring_channels(3) as (a, b, c, channel):
        send(c, 0, TAG, b"other")
        send(b, 0, TAG, b"mine")
        a.loop.due = 0.0
        assert channel.run(lambda source, target: None, None, None, nothing_left) is None
        assert a.match_queue.knows(2, TAG)
        assert not a.match_queue.knows(1, TAG)
        assert [recv(a, 1, TAG, 4), recv(a, 2, TAG, 5)] == [b"mine", b"other"]


def test_only_ranks_that_poll_or_yield_have_the_ability() -> None:
    with ranks(2) as (a, _):
        assert a.ability(CompiledMessages) is None, "ranks that share a process do not poll"
        a.loop.yields = True
        assert a.ability(CompiledMessages) is not None
    with ranks(2, Options(spin_us=0)) as (a, _):
        assert a.ability(CompiledMessages) is None


@contextmanager
def ring_channels(size: int = 2) -> Iterator[tuple[Any, ...]]:
    """The ranks of a host, and the channel of the first to the second."""
    ranks = in_threads(*(lambda group=group: opened(shm_ranks.make(group)) for group in groups(size)))
    try:
        ranks[0].loop.polls = True  # the ranks share a process
        ranks[0].loop.due = time.monotonic() + 100  # the loop does not take the frames out of the ring first
        found = ranks[0].ability(CompiledMessages)
        assert found is not None
        channel = found.channel([1], [1], TAG, BUSY)
        assert channel is not None
        yield *ranks, channel
    finally:
        in_threads(*(lambda t=t: t.close(soon()) for t in ranks))


def opened(t: Any) -> Any:
    t.open(soon())
    return t


def frame_in_ring(channel: Channel) -> tuple[int, int, int, int, bytes]:
    """The words of the head, and the payload, of the next frame in the ring from rank 1."""
    words = (ctypes.c_int64 * LANE_WORDS).from_address(channel.words(1))
    control = (ctypes.c_int64 * (READ + 1)).from_address(words[IN])
    head = words[IN_DATA] + (control[READ] & words[MASK])
    tag, length, check, kind = (ctypes.c_int64 * 4).from_address(head)
    return tag, length, check, kind, ctypes.string_at(head + RING_HEAD_BYTES, length)


def pass_frame(channel: Channel) -> None:
    """Take the next frame out of the ring, as compiled code does."""
    words = (ctypes.c_int64 * LANE_WORDS).from_address(channel.words(1))
    control = (ctypes.c_int64 * (READ + 1)).from_address(words[IN])
    control[READ] += RING_HEAD_BYTES + -(-frame_in_ring(channel)[1] // RING_HEAD_BYTES) * RING_HEAD_BYTES


def test_a_frame_in_a_ring() -> None:
    with ring_channels() as (a, b, channel):
        send(b, 0, TAG, b"first")
        send(b, 0, TAG, b"second")
        seen = []

        def take() -> None:
            seen.append(frame_in_ring(channel))
            pass_frame(channel)

        assert channel.run(lambda source, target: take(), None, None, nothing_left) is None
        assert seen == [(TAG, 5, 0, 0, b"first")]
        assert recv(a, 1, TAG, 6) == b"second"


@pytest.mark.parametrize("taken", [False, True])
def test_a_message_from_a_ring_that_came_early(taken: bool) -> None:
    with ring_channels() as (a, b, channel):
        come_early(a, b, b"early")
        send(b, 0, TAG, b"later")
        words = (ctypes.c_int64 * LANE_WORDS).from_address(channel.words(1))

        def look() -> int | None:
            assert ctypes.string_at(words[BUFFER], words[EARLY]) == data_header(TAG, 0, 5) + b"early"
            if taken:
                words[EARLY] = 0
            return None if taken else 0

        answer = channel.run(lambda source, target: look(), None, None, nothing_left)
        assert answer == (None if taken else 0)
        if not taken:
            assert recv(a, 1, TAG, 5) == b"early"
        assert recv(a, 1, TAG, 5) == b"later"


def test_a_sender_is_told_how_far_compiled_code_has_written() -> None:
    with ring_channels() as (a, b, channel):
        words = (ctypes.c_int64 * LANE_WORDS).from_address(channel.words(1))

        def write() -> None:
            control = (ctypes.c_int64 * 1).from_address(words[OUT])
            head = words[OUT_DATA] + (control[0] & words[MASK])
            (ctypes.c_int64 * 4).from_address(head)[:] = (TAG, 4, 0, 0)
            ctypes.memmove(head + RING_HEAD_BYTES, b"code", 4)
            control[0] += 2 * RING_HEAD_BYTES

        assert channel.run(lambda source, target: write(), None, None, nothing_left) is None
        send(a, 1, TAG, b"python")
        assert [recv(b, 0, TAG, 4), recv(b, 0, TAG, 6)] == [b"code", b"python"]
