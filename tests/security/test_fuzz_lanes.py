"""The TCP transport against a member of the job that says anything once it was let in."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.fuzz import cuts, faulty, fuzz, values, words
from tests.transports.groups import groups, soon
from tests.transports.tcp_ranks import admit, in_threads, member, tcp_link
from transports.base import MAX_TAG
from transports.errors import (
    AbortedError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    RendezvousError,
    RondeError,
    TransportError,
    to_wire,
)
from transports.packed import pack
from transports.tcp import Options, TcpTransport
from transports.tcp.addresses import exchange
from transports.tcp.frames import (
    ABORT,
    DATA,
    GOODBYE,
    HEADER,
    INTRO,
    MAX_CONTROL_BYTES,
    PIECE,
    PIECE_BYTES,
    SPREAD,
    parse_abort,
    parse_intro,
)

LIMIT = 1 << 12
"""The bytes that may be parked."""

causes = st.one_of(
    st.builds(lambda text: to_wire(AbortedError(text, rank=1, peer=0)), st.text(max_size=40)),
    st.fixed_dictionaries({"kind": values, "message": values, "rank": values, "peer": values}),
    values,
)
tags = st.sampled_from([1, 2, 3]) | words
own_tags = st.sampled_from([1, 2, 3]) | st.integers(0, MAX_TAG)
"""Those of receives: the two largest words are the engine's own."""
payloads = st.binary(max_size=40) | st.integers(0, 2 * LIMIT).map(bytes)


def header(tag: int, check: int, kind: int, length: int) -> bytes:
    return HEADER.pack(tag, check % 2**32, kind, length)


def data_frame(tag: int, check: int, payload: bytes) -> bytes:
    return header(tag, check, DATA, len(payload)) + payload


def abort_frame(cause: object) -> bytes:
    return header(0, 0, ABORT, len(pack(cause))) + pack(cause)


frames = st.one_of(
    st.builds(data_frame, tags, words, payloads),
    st.builds(data_frame, st.just(1), st.just(0), payloads),
    st.builds(header, tags, words, st.integers(0, 255), words),
    st.builds(lambda kind, body: header(0, 0, kind, len(body)) + body, st.integers(0, 255), st.binary(max_size=40)),
    causes.map(abort_frame),
    st.just(header(0, 0, GOODBYE, 0)),
    st.binary(max_size=60),
)
streams = st.lists(frames, max_size=8).map(b"".join)


@fuzz(60)
@given(st.binary(min_size=HEADER.size, max_size=HEADER.size) | st.builds(header, words, words, st.just(INTRO), words))
def test_an_introduction_is_a_rank_or_an_error(frame: bytes) -> None:
    with contextlib.suppress(TransportError):
        assert min(parse_intro(frame)) >= 0


@fuzz(60)
@given(st.one_of(st.binary(max_size=80), causes.map(pack), faulty(causes.map(pack))))
def test_a_cause_is_one_of_the_errors_or_cannot_be_read(payload: bytes) -> None:
    try:
        cause = parse_abort(payload)
    except TransportError:
        return
    assert isinstance(cause, RondeError)
    assert isinstance(cause.message, str)
    assert all(number is None or 0 <= number < 2**31 for number in (cause.rank, cause.peer))


@contextlib.contextmanager
def beside(pieces: list[bytes], *, incoming: bool) -> Iterator[tuple[TcpTransport, socket.socket]]:
    """Rank 0 of two, with a lane from or to rank 1, at whose end somebody says these pieces and hangs up."""
    group = groups(2)[0]
    transport = TcpTransport(group, Options(max_parked_bytes=LIMIT, spin_us=0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        group.store.prefixed("tcp").put_row("addresses", 1, 2, pack(listener.getsockname()))
        transport.open(soon())
        if incoming:
            far = socket.create_connection(listener.getsockname(), timeout=20)
            near, _ = listener.accept()
            near.setblocking(False)
            with transport.lock:
                assert tcp_link(transport).accepted(near, 1, 0) is None
        else:
            far = in_threads(
                lambda: transport.isend(1, 1, memoryview(bytes(100))).wait(soon()), lambda: admit(listener, 1)
            )[1]
    with far:
        try:
            for piece in pieces:
                far.sendall(piece)
            far.shutdown(socket.SHUT_WR)
            yield transport, far
        finally:
            begun = time.monotonic()
            transport.close(soon())
            assert time.monotonic() - begun < 10


@fuzz(80)
@given(cuts(streams | faulty(streams)), st.lists(st.tuples(own_tags, st.integers(0, 50)), max_size=4))
def test_a_receiver_survives_any_bytes_from_a_member(pieces: list[bytes], receives: list[tuple[int, int]]) -> None:
    """A posted receive gets its own frame, or one of the allowed errors; in time, and within the memory limit."""
    with beside(pieces, incoming=True) as (transport, _):
        try:
            posted = [(tag, transport.irecv(1, tag, memoryview(bytearray(length)))) for tag, length in receives]
            for _ in range(3):  # until all that was said has been read
                with contextlib.suppress(DeadlineExceeded, MismatchError):
                    transport.irecv(1, 2**50, memoryview(bytearray(1))).wait(time.monotonic() + 0.002)
            for _, request in posted:
                with contextlib.suppress(MismatchError):
                    request.wait(time.monotonic() + 0.01)
        except DeadlineExceeded:
            assert transport.failure is None
        except RondeError as error:
            assert transport.failure is not None
            assert type(error) is type(transport.failure)  # noqa: PT017
        assert transport.match_queue.unexpected_bytes <= LIMIT
        assert all(len(lane._rest) <= max(LIMIT, MAX_CONTROL_BYTES) for lane in tcp_link(transport).lanes)


serials = st.sampled_from([0, 1, 2]) | words
places = st.sampled_from([0, 0, PIECE_BYTES]) | words
announcements = st.builds(header, tags, st.just(0) | words, st.just(SPREAD), st.sampled_from([1, 50, LIMIT]) | words)
pieces = st.builds(
    lambda place, serial, body: header(place, serial, PIECE, len(body)) + body,
    places,
    serials,
    st.sampled_from([bytes(1), bytes(50), bytes(LIMIT)]) | payloads,
)
main_streams = st.lists(announcements | announcements | frames, max_size=6).map(b"".join)
piece_streams = st.lists(pieces | pieces | pieces | announcements | frames, max_size=6).map(b"".join)


@fuzz(100)
@given(
    main_streams | faulty(main_streams),
    st.lists(piece_streams | faulty(piece_streams), max_size=2),
    st.lists(st.tuples(own_tags, st.sampled_from([1, 50, LIMIT])), max_size=4),
)
def test_a_member_says_anything_in_pieces(main: bytes, stripes: list[bytes], receives: list[tuple[int, int]]) -> None:
    """The same where messages come over several connections."""
    with beside([main], incoming=True) as (transport, _), contextlib.ExitStack() as opened:
        try:
            for connection, says in enumerate(stripes, 1):
                opened.enter_context(member(transport, connection, says))
            posted = [transport.irecv(1, tag, memoryview(bytearray(length))) for tag, length in receives]
            for request in [*posted, transport.irecv(1, 2**50, memoryview(bytearray(1)))]:
                with contextlib.suppress(DeadlineExceeded, MismatchError):
                    request.wait(time.monotonic() + 0.005)
        except RondeError as error:
            assert transport.failure is not None
            assert type(error) is type(transport.failure)  # noqa: PT017
        assert transport.match_queue.unexpected_bytes <= LIMIT
        assert all(len(lane._rest) <= max(LIMIT, MAX_CONTROL_BYTES) for lane in tcp_link(transport).lanes)


@fuzz(80)
@given(cuts(streams | faulty(streams)))
def test_a_sender_survives_any_bytes_from_the_receiver(pieces: list[bytes]) -> None:
    with beside(pieces, incoming=False) as (transport, far):
        with contextlib.suppress(RondeError):
            transport.isend(1, 1, memoryview(bytes(100))).wait(soon())
            with contextlib.suppress(DeadlineExceeded):
                transport.irecv(1, 1, memoryview(bytearray(1))).wait(time.monotonic() + 0.01)
        assert len(far.recv(1000)) >= 0
        assert transport.failure is None or isinstance(transport.failure, RondeError)


def test_invalid_bytes_are_the_loss_of_their_sender() -> None:
    with beside([header(1, 0, 77, 0)], incoming=True) as (transport, _), pytest.raises(PeerLost, match="kind 77"):
        transport.irecv(1, 1, memoryview(bytearray(1))).wait(soon())


@pytest.mark.parametrize("length", [LIMIT + 1, 2**40, 2**64 - 1])
def test_a_frame_without_end_is_not_believed(length: int) -> None:
    """A message does not fit its receive: a mismatch, without a byte of it being read or room made for it."""
    with beside([header(1, 0, DATA, length)], incoming=True) as (transport, _):
        with pytest.raises(MismatchError, match=f"{length} bytes came; 5 bytes expected"):
            transport.irecv(1, 1, memoryview(bytearray(5))).wait(soon())
        assert isinstance(transport.failure, MismatchError)


def test_endless_small_frames_are_left_in_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.matching.MAX_UNEXPECTED_FRAMES", 10)
    with beside([b"".join(header(tag, 0, DATA, 0) for tag in range(100))], incoming=True) as (transport, _):
        with pytest.raises(DeadlineExceeded):
            transport.irecv(1, 1000, memoryview(bytearray(1))).wait(time.monotonic() + 0.05)
        assert transport.match_queue.unexpected_frames == 10
        for tag in range(100):
            transport.irecv(1, tag, memoryview(bytearray())).wait(soon())


rows = st.tuples(st.text(max_size=8) | st.just("::1"), st.integers(-1, 70000) | words)
tables = st.one_of(values, rows, st.lists(rows, max_size=3))


@fuzz(60)
@given(st.integers(0, 1), st.binary(max_size=60) | tables.map(pack) | faulty(tables.map(pack)))
def test_the_table_of_addresses_holds_anything(rank: int, said: bytes) -> None:
    group = groups(2)[rank]
    store = group.store.prefixed("tcp")
    if rank == 0:
        store.put_row("addresses", 1, 2, said)
    else:
        store.set("addresses", said)
    try:
        table = exchange(group, (0, 1), ("127.0.0.1", 1), time.monotonic())
    except RendezvousError:
        return
    assert len(table) == 2
    assert all(isinstance(host, str) and 0 < port < 65536 for host, port in table.values())
