"""Shared memory that a rank gone mad writes into: the others end with an error, in time, and touch nothing else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.security.fuzz import faulty, fuzz, values, words
from tests.transports.groups import groups, recv, send, soon
from tests.transports.shm_ranks import shm_link
from tests.transports.tcp_ranks import in_threads
from transports.compiled import READ
from transports.errors import (
    AbortedError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    RendezvousError,
    RondeError,
    TransportError,
)
from transports.liveness import Watch
from transports.onesided import OneSided
from transports.packed import pack
from transports.shm import Options, ShmTransport
from transports.shm.board import Board
from transports.shm.doorbell import Doorbell
from transports.shm.ring import CONTROL_BYTES, Incoming, RingMemory
from transports.shm.segments import Segment

RING = 1024
LIMIT = 1 << 12
OFFER = 1
NAME = "ronde-" + "0" * 32


# A ring alone


class Arrived:
    """A frame that arrives."""

    def __init__(self, length: int) -> None:
        self.view = memoryview(bytearray(length))
        self.finished = False

    def finish(self) -> None:
        self.finished = True


@fuzz(150)
@given(
    st.binary(max_size=RING),
    st.lists(st.tuples(st.integers(0, RING // 8 - 1), words), max_size=10),
    st.lists(words | st.integers(0, 4 * RING), min_size=1, max_size=5),
)
def test_no_ring_is_read_without_end(data: bytes, patches: list[tuple[int, int]], written: list[int]) -> None:
    memory = bytearray(CONTROL_BYTES + RING)
    view = memoryview(memory)
    ring = RingMemory(view[:CONTROL_BYTES].cast("Q"), view[CONTROL_BYTES:])
    ring.data[: len(data)] = data
    for at, word in patches:
        ring.data.cast("Q")[at] = word
    frames: list[Arrived] = []

    def arrive(kind: int, tag: int, check: int, length: int) -> Arrived | None:
        if length > LIMIT:
            return None
        frames.append(Arrived(length))
        return frames[-1]

    bell = Doorbell(memoryview(bytearray(8)), 0)
    incoming = Incoming(1, ring, bell, bell, arrive)
    with contextlib.suppress(TransportError):
        for word in written:
            ring.control[0] = word
            incoming.drain()
    assert len(frames) <= len(written) * 2 * RING // 32
    assert ring.control[READ] <= sum(2 * RING for _ in written) + RING


def test_empty_frames_without_end_are_noticed() -> None:
    memory = memoryview(bytearray(CONTROL_BYTES + RING))
    ring = RingMemory(memory[:CONTROL_BYTES].cast("Q"), memory[CONTROL_BYTES:])
    ring.control[0] = 2**60
    bell = Doorbell(memoryview(bytearray(8)), 0)
    incoming = Incoming(1, ring, bell, bell, lambda kind, tag, check, length: Arrived(length))
    with pytest.raises(TransportError, match=r"as written, but .*read"):
        incoming.drain()


# Two ranks, of which the second goes mad


@contextlib.contextmanager
def pair(directory: Path) -> Iterator[tuple[ShmTransport, ShmTransport]]:
    options = Options(ring_bytes=RING, max_parked_bytes=LIMIT, directory=str(directory), spin_us=0)
    sane, mad = (ShmTransport(group, options) for group in groups(2))
    try:
        in_threads(lambda: sane.open(soon()), lambda: mad.open(soon()))
        yield sane, mad
    finally:
        begun = time.monotonic()
        for transport in (sane, mad):
            transport.abort(AbortedError("the test is over"))
            transport.close(soon())
        assert time.monotonic() - begun < 10
        assert not os.listdir(directory)


# The layout of the board of two ranks. ABORTED, PROCESS (of rank 0) and LENGTH (of rank 1's cause) are 64-bit words.
MAGIC, VERSION = int.from_bytes(b"RONDEshm", "little"), 1
ABORTED, PROCESS, LENGTH = 8, 17, 36
CAUSE = 3 * 128 + (8 << 10)
RINGS = 20 << 10
END = RINGS + 2 * (CONTROL_BYTES + RING)


@contextlib.contextmanager
def memory_of(transport: ShmTransport) -> Iterator[memoryview]:
    """The board, as any of its ranks can write into it."""
    (bell,) = shm_link(transport).bells_of((transport.rank,))
    with memoryview(bell.word.obj) as memory:
        yield memory


def write(memory: memoryview, at: int, *written: int) -> None:
    """Write 64-bit words, from number `at` on."""
    with memory.cast("Q") as cells:
        for place, word in enumerate(written, at):
            cells[place] = word


def ring_out(mad: ShmTransport, written: int, *header: int) -> None:
    """In the ring from rank 1 to rank 0: write a header, tag, length, check and kind, and a count of written bytes."""
    ring = RINGS + CONTROL_BYTES + RING
    with memory_of(mad) as memory:
        write(memory, (ring + CONTROL_BYTES) // 8, *header)
        write(memory, ring // 8, written)


scribbles = st.lists(
    st.one_of(
        st.tuples(st.integers(0, RINGS // 8 - 1), words),
        st.tuples(st.integers(RINGS // 8, END // 8 - 1), words),
        st.tuples(st.sampled_from([0, 1, 2, 3, 8, 16, 17, 18, 19, 20, 32, 33, 34, 35, 36]), words),
    ),
    min_size=1,
    max_size=8,
)
"""Words of the board, and what is written there: anywhere, in the rings, in header and controls."""


@fuzz(50)
@given(scribbles, st.binary(max_size=60))
def test_a_rank_writes_anything_into_the_board(
    tmp_path_factory: pytest.TempPathFactory, scribbled: list[tuple[int, int]], text: bytes
) -> None:
    with pair(tmp_path_factory.mktemp("segments")) as (sane, mad):
        in_threads(lambda: send(mad, 0, 1, b"abc"), lambda: recv(sane, 1, 1, 3))
        with memory_of(mad) as memory:
            memory[CAUSE : CAUSE + len(text)] = text
            for at, word in scribbled:
                write(memory, at, word)
        with contextlib.suppress(RondeError):
            request = sane.isend(1, 1, memoryview(bytes(3 * RING)))
            for tag in (1, 2):
                with contextlib.suppress(DeadlineExceeded, MismatchError):
                    sane.irecv(1, tag, memoryview(bytearray(40))).wait(time.monotonic() + 0.003)
            with contextlib.suppress(DeadlineExceeded):
                request.wait(time.monotonic() + 0.003)
        assert sane.failure is None or isinstance(sane.failure, RondeError)
        assert sane.match_queue.unexpected_bytes <= LIMIT


@fuzz(40)
@given(st.integers(0, 3) | words, words, words, st.integers(0, 200) | words)
def test_a_rank_sends_any_header(
    tmp_path_factory: pytest.TempPathFactory, kind: int, tag: int, check: int, length: int
) -> None:
    with pair(tmp_path_factory.mktemp("segments")) as (sane, mad):
        with contextlib.suppress(RondeError):
            expected = sane.irecv(1, tag % 4, memoryview(bytearray(40)))
            ring_out(mad, 32 + 128, tag, length, check, kind)
            expected.wait(time.monotonic() + 0.005)
        if kind > 1:
            assert isinstance(sane.failure, PeerLost)
            assert f"unknown kind {kind}" in str(sane.failure)


def test_a_frame_without_end_is_not_believed(tmp_path: Path) -> None:
    with pair(tmp_path) as (sane, mad):
        expected = sane.irecv(1, 1, memoryview(bytearray(40)))
        ring_out(mad, 64, 1, 2**60, 0, 0)
        with pytest.raises(MismatchError, match=f"{2**60} bytes"):
            expected.wait(soon())


def test_an_impossible_counter_is_the_loss_of_its_writer(tmp_path: Path) -> None:
    with pair(tmp_path) as (sane, mad):
        ring_out(mad, 2**60)
        with pytest.raises(PeerLost, match=r"rank 0 lost rank 1 .*, .*invalid data"):
            sane.irecv(1, 1, memoryview(bytearray(40))).wait(soon())


def test_an_abort_without_a_cause_is_an_abort(tmp_path: Path) -> None:
    with pair(tmp_path) as (sane, mad):
        with memory_of(mad) as memory:
            write(memory, ABORTED, 1)
        with pytest.raises(AbortedError, match="without a cause"):
            sane.irecv(1, 1, memoryview(bytearray(40))).wait(soon())


@fuzz(60)
@given(st.binary(max_size=60) | values.map(pack), words | st.integers(1, 60))
def test_any_cause_is_an_error(tmp_path_factory: pytest.TempPathFactory, said: bytes, length: int) -> None:
    with segment(tmp_path_factory.mktemp("segments"), END) as memory:
        desk = Board(memory, groups(2)[0], (0, 1))
        write(memory.memory, ABORTED, 1)
        write(memory.memory, LENGTH, length)
        memory.memory[CAUSE : CAUSE + len(said)] = said
        cause = desk.cause()
        desk.release()
    assert isinstance(cause, RondeError)
    assert isinstance(cause.message, str)


# Meeting at the board


@contextlib.contextmanager
def segment(directory: Path, nbytes: int) -> Iterator[Segment]:
    made = Segment.create(nbytes, str(directory))
    try:
        yield made
    finally:
        made.unlink()
        made.close()


def meet(note: bytes) -> None:
    """Attaching as rank 1 raises for rank 0's description `note`."""
    group = groups(2)[1]
    group.store.set("shm/board", note)
    with pytest.raises((ConnectError, RendezvousError)):
        Board.create_or_attach(group, (0, 1), RING, "", soon()).release()


notes = st.fixed_dictionaries({"path": values | st.sampled_from(["/dev/zero", f"/nowhere/{NAME}"]), "nbytes": words})


@fuzz(100)
@given(st.binary(max_size=60) | faulty((notes | values).map(pack)))
def test_the_description_of_a_board_may_be_any_bytes(note: bytes) -> None:
    meet(note)


@fuzz(40)
@given(st.lists(words, min_size=4, max_size=4), st.sampled_from([END, END - 64, END + 4096]))
def test_the_header_of_a_board_is_anything(
    tmp_path_factory: pytest.TempPathFactory, header: list[int], nbytes: int
) -> None:
    with segment(tmp_path_factory.mktemp("segments"), nbytes) as made:
        write(made.memory, 0, *header)
        note = pack({"path": made.path, "nbytes": nbytes})
        meet(note)
        for at, word in enumerate((MAGIC, VERSION, 2)):  # more and more of it is right
            write(made.memory, at, word)
            meet(note)


@fuzz(30)
@given(words, words, words)
def test_a_process_that_cannot_be_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, pid: int, start: int, space: int
) -> None:
    with segment(tmp_path_factory.mktemp("segments"), END) as memory:
        desk = Board(memory, groups(2)[0], (0, 1))
        write(memory.memory, PROCESS, pid, start, space)
        try:
            process = desk.process_of(0)
        except ConnectError:
            assert not 0 < pid < 2**31
            return
        finally:
            desk.release()
    with contextlib.closing(Watch()) as watch:
        watch.add(0, process)
        assert watch.dead() in ([], [0])


# Windows


offers = st.fixed_dictionaries(
    {
        "key": st.just("window") | values,
        "ranks": st.just([1, 0]) | values,
        "nbytes": st.just(64) | values,
        "path": st.sampled_from(["precious", f"/nowhere/{NAME}", "/dev/zero"]) | values,
    },
    optional={"error": values, "room": values},
)


@fuzz(60)
@given(st.one_of(offers.map(pack), faulty(offers.map(pack)), values.map(pack), st.binary(max_size=100)))
@example(pack({"key": "window", "ranks": [1, 0], "nbytes": 64, "path": f"/nowhere/{NAME}", "error": "none"}))
@example(pack({"key": "window", "ranks": [1, 0], "nbytes": 64, "error": "none"}))
def test_an_offer_of_a_window_is_anything(tmp_path_factory: pytest.TempPathFactory, offer: bytes) -> None:
    precious = tmp_path_factory.mktemp("elsewhere") / "p"
    precious.write_bytes(bytes(64))
    offer = offer.replace(b"\xa8precious", pack(str(precious)))
    with pair(tmp_path_factory.mktemp("segments")) as (sane, mad):
        shm_link(mad).offer(0, offer)
        with pytest.raises(RondeError):
            sane.ability(OneSided).expose("window", (1, 0), 64, time.monotonic() + 0.01)
    assert precious.exists()


def test_no_other_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    for name in ("precious", "ronde-precious"):
        precious = tmp_path / name
        precious.write_bytes(b"")
        with pair(tmp_path / "segments") as (sane, mad):
            shm_link(mad).offer(0, pack({"key": "window", "ranks": [1, 0], "nbytes": 1, "path": str(precious)}))
            with pytest.raises(PeerLost, match="valid offer"):
                sane.irecv(1, 1, memoryview(bytearray(1))).wait(soon())
        assert precious.exists()


def test_offers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.shm.exposing.MAX_OFFERS", 3)
    with pair(tmp_path) as (sane, mad):
        for number in range(4):
            shm_link(mad).offer(
                0, pack({"key": str(number), "ranks": [1, 0], "nbytes": 1, "error": "none", "room": True})
            )
        with pytest.raises(PeerLost, match=r"offer of .*3 offers"):
            sane.irecv(1, 1, memoryview(bytearray(1))).wait(soon())
    with pair(tmp_path) as (sane, mad):
        shm_link(mad).lane_to(0).queue(OFFER, 0, 0, memoryview(bytes(70_000)), mad.sent)
        with pytest.raises(PeerLost, match="offer of 70000 bytes"):
            sane.irecv(1, 1, memoryview(bytearray(1))).wait(soon())


@fuzz(40)
@given(st.lists(st.tuples(st.integers(0, 63), words), min_size=1, max_size=10), st.integers(1, 2**40))
def test_a_rank_writes_anything_into_a_window(
    tmp_path_factory: pytest.TempPathFactory, scribbled: list[tuple[int, int]], epoch: int
) -> None:
    with pair(tmp_path_factory.mktemp("segments")) as transports:
        windows = in_threads(
            *(lambda t=t: t.ability(OneSided).expose("window", (0, 1), 64, soon()) for t in transports)
        )
        for at, word in scribbled:
            windows[1].segment.memory[:512].cast("Q")[at] = word
        with contextlib.suppress(RondeError):
            windows[0].publish(epoch, 7)
            windows[0].wait(1, epoch, time.monotonic() + 0.005, 7)
        assert len(windows[0].view(1)) == 64
