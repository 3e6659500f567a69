"""The store's two ends against members of the job that say anything: those who know the secret."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.fuzz import cuts, faulty, fuzz, numbers, values
from tests.transports.groups import SECRET, soon
from transports.auth import CHALLENGE_BYTES, Client
from transports.errors import DeadlineExceeded, RendezvousError
from transports.packed import pack
from transports.rendezvous import wire
from transports.rendezvous.forwarder import Forwarder
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import MAX_KEY_BYTES

SECONDS = 20.0
LONGEST_GET = 0.01


def packed(message: object) -> bytes:
    """A frame with whatever in it."""
    body = msgpack.packb(message)
    return wire.HEADER.pack(len(body)) + body


keys = st.sampled_from(["key", "other", "counter"]) | st.text(max_size=8) | st.just("k" * (MAX_KEY_BYTES + 1))


def _words(request: object) -> list[object]:
    return list(request) if isinstance(request, tuple) else [request]


rows_to_put = st.tuples(st.integers(-1, 3), st.binary(max_size=5))
packed_arguments = st.one_of(
    st.tuples(st.lists(keys, max_size=3), st.floats(-1.0, LONGEST_GET)).map(pack),
    st.lists(keys, max_size=3).map(pack),
    st.tuples(st.integers(-1, 3), st.lists(rows_to_put, max_size=3)).map(pack),
    values.map(pack),
    st.binary(max_size=20),
)
unnumbered = st.one_of(
    st.tuples(st.just("set"), keys, st.binary(max_size=300)),
    st.tuples(st.sampled_from(["any", "peek", "put", "forget", "default"]), keys, packed_arguments),
    st.tuples(st.just("rows"), keys, st.none()),
    st.tuples(st.just("get"), keys, st.floats(-1.0, LONGEST_GET) | st.sampled_from([math.nan, math.inf, 1e300])),
    st.tuples(st.just("add"), keys, numbers),
    st.tuples(st.just("delete"), keys, st.none()),
    st.tuples(st.sampled_from(["set", "get", "add", "delete", "steal"]), values, values),
    values,
)
requests = st.one_of(
    st.tuples(st.integers(-(2**63), 2**64 - 1), unnumbered).map(lambda both: [both[0], *_words(both[1])]),
    unnumbered,
)
frames = st.one_of(
    requests.map(packed),
    st.binary(max_size=60).map(lambda body: wire.HEADER.pack(len(body)) + body),
    st.integers(0, 2**32 - 1).map(lambda length: struct.pack("!I", length)),
)
streams = st.lists(frames, max_size=6).map(b"".join)


@fuzz(60)
@given(faulty(requests.map(packed)) | st.binary(max_size=100))
def test_a_frame_is_a_short_list_or_a_value_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        message = wire.decode(body)
        assert isinstance(message, list)
        assert len(message) <= 4


@pytest.fixture(scope="module")
def worlds() -> Iterator[tuple[TcpStoreServer, TcpStore]]:
    """A server, and a client that means well, kept for all examples."""
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET) as server,
        contextlib.closing(TcpStore(*server.address, SECRET)) as client,
    ):
        yield server, client


@contextlib.contextmanager
def member(server: TcpStoreServer) -> Iterator[socket.socket]:
    """A connection that has proved itself."""
    with socket.create_connection(server.address, timeout=SECONDS) as sock:
        proof = Client(SECRET, wire.PURPOSE)
        sock.sendall(proof.hello)
        sock.sendall(proof.answer(sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)))
        yield sock


@fuzz(80)
@given(cuts(faulty(streams) | streams))
def test_members_say_anything_to_the_server(worlds: tuple[TcpStoreServer, TcpStore], pieces: list[bytes]) -> None:
    server, client = worlds
    with member(server) as mad:
        with contextlib.suppress(OSError):  # it was cut
            for piece in pieces:
                mad.sendall(piece)
            mad.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while part := mad.recv(1 << 16):
                said += part
    client.set("sane", b"value")
    assert client.get("sane", soon()) == b"value"
    while len(said) >= wire.HEADER.size:  # whole answers, up to where it was cut
        (length,) = wire.HEADER.unpack_from(said)
        assert 0 < length <= wire.MAX_FRAME
        if len(said) >= wire.HEADER.size + length:
            _, status, _ = wire.decode(said[wire.HEADER.size : wire.HEADER.size + length])
            assert status in ("ok", "late", "bad", "full")
        said = said[wire.HEADER.size + length :]


answers = st.one_of(
    st.tuples(st.just(0) | numbers, st.sampled_from(["ok", "late", "bad", "full", "no"]), values).map(packed),
    st.tuples(st.just(0), st.just("ok"), packed_arguments).map(packed),
    values.map(packed),
    st.binary(max_size=60),
    st.integers(0, 2**32 - 1).map(lambda length: struct.pack("!I", length)),
)


@fuzz(60)
@given(
    st.sampled_from(["set", "get", "add", "delete", "set_default", "put_row", "rows", "peek_all", "awaited"]),
    cuts(faulty(answers) | answers),
)
def test_the_server_says_anything_to_a_client(operation: str, pieces: list[bytes]) -> None:
    near, far = socket.socketpair()
    store = TcpStore("127.0.0.1", 1, SECRET)
    store._links.idle.append(near)
    with far, contextlib.closing(store):
        for piece in pieces:
            far.sendall(piece)
        far.shutdown(socket.SHUT_WR)
        try:
            if operation == "set":
                store.set("key", b"value")
            elif operation == "get":
                assert type(store.get("key", time.monotonic())) is bytes
            elif operation == "add":
                assert isinstance(store.add("key", 1), int)
            elif operation == "set_default":
                assert type(store.set_default("key", b"value")) is bytes
            elif operation == "put_row":
                store.put_row("key", 0, 2, b"row")
            elif operation == "rows":
                assert all(row is None or type(row) is bytes for row in store.rows("key"))
            elif operation == "peek_all":
                assert len(store.peek_all(["key", "other"])) == 2
            elif operation == "awaited":
                with contextlib.closing(store.awaited("key", "other")) as awaited:
                    found = awaited.wait(time.monotonic() + LONGEST_GET)
                    assert found is None or found[0] in (0, 1)
            else:
                assert isinstance(store.delete("key"), bool)
        except RendezvousError as error:
            assert "the store at tcp://127.0.0.1:1" in str(error)  # noqa: PT017
        except (ValueError, DeadlineExceeded):  # "bad", "late"
            assert pieces


words_above = st.lists(values | packed_arguments | st.sampled_from(["ok", "late"]), max_size=3)


@fuzz(80)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), unnumbered.map(_words)), max_size=6),
    st.lists(
        st.tuples(st.integers(0, 6), st.lists(values | packed_arguments | st.sampled_from(["ok", "late"]))), max_size=6
    ),
)
def test_a_proxy_is_told_anything_from_below_and_above(
    asked: list[tuple[str, list[object]]], answered: list[tuple[int, list[object]]]
) -> None:
    replies: list[tuple[object, int, list[object]]] = []
    sent: list[list[object]] = []
    forwarder = Forwarder(lambda client, number, answer: replies.append((client, number, answer)), sent.append, 2)
    for number, (client, request) in enumerate(asked):
        with contextlib.suppress(ValueError):  # its connection is cut
            forwarder.ask(client, number, request, 100.0 + number)
    forwarder.tick(101.0)
    for above, answer in answered:
        with contextlib.suppress(ValueError):  # the proxy ends
            forwarder.answered(above, answer)
    forwarder.forget("a")
    forwarder.tick(1e9)
    assert all(client in ("a", "b") for client, _, _ in replies)
