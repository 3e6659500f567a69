"""The TCP store: its server, clients, and what else comes to its port."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.stores import SECRET, soon
from transports.auth import CHALLENGE_BYTES, Client
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.packed import pack
from transports.rendezvous import book as book_module
from transports.rendezvous import server as server_module
from transports.rendezvous import wire
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import MAX_VALUE_BYTES


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        yield server


@pytest.fixture
def client(server: TcpStoreServer) -> Iterator[TcpStore]:
    with contextlib.closing(TcpStore(*server.address, SECRET)) as client:
        yield client


def connect(server: TcpStoreServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=30)


def handshake(sock: socket.socket, secret: bytes = SECRET) -> bytes:
    """Prove the secret; all bytes that were sent for it."""
    proof = Client(secret, wire.PURPOSE)
    sock.sendall(proof.hello)
    answer = proof.answer(receive(sock, CHALLENGE_BYTES))
    sock.sendall(answer)
    return proof.hello + answer


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"the server ended the connection after {len(data)} of {count} bytes"
        data += piece
    return data


def answer_on(sock: socket.socket) -> list[object]:
    (length,) = wire.HEADER.unpack(receive(sock, wire.HEADER.size))
    return wire.decode(receive(sock, length))


def is_cut(sock: socket.socket) -> bool:
    """Wait until the server has ended the connection; whatever it says before is read over."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_addresses() -> None:
    server = TcpStoreServer("127.0.0.1", secret=SECRET)
    with pytest.raises(RendezvousError, match="not started"):
        _ = server.address
    server.close()
    with server:
        host, port = server.address
        assert server.url == f"tcp://127.0.0.1:{port}"
        assert wire.parse_url(server.url) == (host, port)
        with pytest.raises(RendezvousError, match="started before"):
            server.start()
        with pytest.raises(RendezvousError, match=f"listen on {server.url}"):
            TcpStoreServer("127.0.0.1", port, secret=SECRET).start()
    server.close()
    with pytest.raises(RendezvousError, match=f"store at {server.url}"):
        TcpStore(host, port, SECRET).set("key", b"")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "0", "::"])
def test_server_never_listens_on_all_interfaces(host: str) -> None:
    with pytest.raises((ConfigError, RendezvousError), match=r"not all|listen on tcp"):
        TcpStoreServer(host, secret=SECRET).start()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="port=65536"):
        TcpStoreServer("127.0.0.1", 65536, secret=SECRET)
    with pytest.raises(ConfigError, match="3 bytes"):
        TcpStoreServer("127.0.0.1", secret=b"abc")
    with pytest.raises(ConfigError, match="3 bytes"):
        TcpStore("127.0.0.1", 1, b"abc")
    for bad in ("x" * 80, "no-such-host.invalid"):
        with pytest.raises(RendezvousError, match=f"tcp://{bad}:1"):
            TcpStore(bad, 1, SECRET).set("key", b"")
        with pytest.raises(RendezvousError, match=f"listen on tcp://{bad}:0"):
            TcpStoreServer(bad, secret=SECRET).start()


def test_ipv6() -> None:
    server = TcpStoreServer("::1", secret=SECRET)
    try:
        server.start()
    except RendezvousError as error:
        pytest.skip(str(error))
    with server_closing(server):
        assert server.url.startswith("tcp://[::1]:")
        with contextlib.closing(TcpStore(*wire.parse_url(server.url), SECRET)) as client:
            client.set("key", b"value")
            assert client.get("key", soon()) == b"value"


@contextlib.contextmanager
def server_closing(server: TcpStoreServer) -> Iterator[None]:
    try:
        yield
    finally:
        server.close()


def test_server_may_come_later_than_its_clients() -> None:
    with socket.socket() as place, ThreadPoolExecutor(1) as pool:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        host, port = place.getsockname()
        with contextlib.closing(TcpStore(host, port, SECRET, connect_deadline=soon())) as client:
            early = pool.submit(client.add, "counter", 1)
            assert not wait([early], 0.1).done
            place.close()
            with TcpStoreServer(host, port, secret=SECRET):
                assert early.result(30) == 1


def test_close_ends_a_client_that_still_looks_for_its_server() -> None:
    with socket.socket() as place, ThreadPoolExecutor(1) as pool:
        place.bind(("127.0.0.1", 0))
        host, port = place.getsockname()
        client = TcpStore(host, port, SECRET, connect_deadline=soon())
        early = pool.submit(client.add, "counter", 1)
        assert not wait([early], 0.05).done
        client.close()
        with pytest.raises(RendezvousError, match="closed"):
            early.result(30)


@pytest.mark.parametrize("wrong", [b"another secret, as long", b""])
def test_wrong_secret_is_an_error_at_once(server: TcpStoreServer, client: TcpStore, wrong: bytes) -> None:
    with (
        contextlib.closing(TcpStore(*server.address, wrong, connect_deadline=soon(3600))) as intruding,
        pytest.raises(RendezvousError, match=rf"{server.url}: .*job's secret"),
    ):
        intruding.set("key", b"")
    client.set("key", b"still served")


def test_client_that_cannot_prove_the_secret_is_cut(server: TcpStoreServer, client: TcpStore) -> None:
    with connect(server) as liar:
        liar.sendall(Client(SECRET, wire.PURPOSE).hello)
        receive(liar, CHALLENGE_BYTES)
        liar.sendall(bytes(32) + wire.encode([7, "set", "key", b"stolen"]))
        assert is_cut(liar)
    with pytest.raises(DeadlineExceeded):
        client.get("key", 0.0)


def test_an_empty_secret_serves_clients_with_an_empty_secret() -> None:
    with TcpStoreServer("127.0.0.1", secret=b"") as server:
        with contextlib.closing(TcpStore(*server.address, b"")) as client:
            client.set("key", b"value")
        with (
            contextlib.closing(TcpStore(*server.address, SECRET)) as client,
            pytest.raises(RendezvousError, match="secret"),
        ):
            client.set("key", b"value")


def test_replayed_connection_is_refused(server: TcpStoreServer, client: TcpStore) -> None:
    with connect(server) as good:
        recorded = handshake(good) + wire.encode([7, "add", "counter", 1])
        good.sendall(wire.encode([7, "add", "counter", 1]))
        assert answer_on(good) == [7, "ok", 1]
    with connect(server) as replay:
        replay.sendall(recorded)
        assert is_cut(replay)
    assert client.get("counter", soon()) == b"1"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n".ljust(100), b"\x16\x03\x01" * 50, bytes(4096)])
def test_garbage_is_cut(server: TcpStoreServer, client: TcpStore, garbage: bytes) -> None:
    with connect(server) as scanner:
        scanner.sendall(garbage)
        assert is_cut(scanner)
    with connect(server):
        pass
    client.set("key", b"still served")


@pytest.mark.parametrize("keys", [[["a list"]], [b"bytes"], [None], 5, "text"])
def test_a_member_that_asks_for_no_keys_is_cut(server: TcpStoreServer, client: TcpStore, keys: object) -> None:
    with connect(server) as member:
        handshake(member)
        member.sendall(wire.encode([1, "peek", "", pack(keys)]))
        assert is_cut(member)
    client.set("key", b"still served")


def test_slow_strangers_are_cut_while_others_are_served(
    server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set("key", b"")
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.2)
    with connect(server) as silent, connect(server) as slow, connect(server) as halfway:
        begun = time.monotonic()
        halfway.sendall(Client(SECRET, wire.PURPOSE).hello)
        drip = iter(Client(SECRET, wire.PURPOSE).hello)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < begun + 0.4:
                slow.sendall(bytes([next(drip)]))
                client.add("counter", 1)
                time.sleep(0.02)
        assert is_cut(slow)
        assert is_cut(silent)
        assert is_cut(halfway)
    monkeypatch.undo()
    assert client.get("key", soon()) == b""


def test_crowd_of_strangers_does_not_keep_the_job_out(
    server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_UNAUTHENTICATED", 4)
    monkeypatch.setattr(server_module, "CROWDED_SECONDS", 0.02)
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 3600.0)
    with contextlib.ExitStack() as opened:
        crowd = [opened.enter_context(connect(server)) for _ in range(12)]
        client.set("key", b"value")
        for intruding in crowd[:8]:
            assert is_cut(intruding)
        assert client.get("key", soon()) == b"value"


def test_waiting_for_room_ends_when_a_stranger_leaves(
    server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_UNAUTHENTICATED", 1)
    monkeypatch.setattr(server_module, "CROWDED_SECONDS", 3600.0)
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 3600.0)
    with ThreadPoolExecutor(1) as pool:
        with connect(server):
            waiting = pool.submit(client.add, "counter", 1)
            assert not wait([waiting], 0.1).done
        assert waiting.result(30) == 1


def test_server_without_descriptors_goes_on_later(
    server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "RETRY_SECONDS", 0.01)
    accept, refusals = socket.socket.accept, [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS]

    def refuse(sock: socket.socket) -> tuple[socket.socket, object]:
        if refusals:
            raise OSError(refusals.pop(0), "no room")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    client.set("key", b"value")
    assert not refusals


BAD_FRAMES = {
    "empty": wire.HEADER.pack(0),
    "oversized": wire.HEADER.pack(wire.MAX_FRAME + 1),
    "largest length": b"\xff\xff\xff\xff",
    "no msgpack": wire.HEADER.pack(2) + b"\xc1\xc1",
    "cut short": wire.HEADER.pack(2) + b"\x93\xa3",
    "trailing": wire.HEADER.pack(5) + b"\x90\xc0\xc0\xc0\xc0",
    "no array": wire.HEADER.pack(1) + b"\x05",
    "map": wire.HEADER.pack(3) + b"\x81\x01\x02",
    "extension": wire.HEADER.pack(3) + b"\xd4\x05\x00",
    "deep": wire.HEADER.pack(3000) + b"\x91" * 3000,
    "long array": wire.HEADER.pack(5) + b"\xdd\xff\xff\xff\xff",
    "unknown": wire.encode([7, "steal", "key", None]),
    "no text": wire.encode([7, "set", b"key", b"value"]),
    "no bytes": wire.encode([7, "set", "key", "value"]),
    "empty key": wire.encode([7, "set", "", b"value"]),
    "long key": wire.encode([7, "set", "k" * 513, b"value"]),
    "negative seconds": wire.encode([7, "get", "key", -1.0]),
    "endless seconds": wire.encode([7, "get", "key", math.inf]),
    "no seconds": wire.encode([7, "get", "key", math.nan]),
    "without a number": wire.encode(["get", "key", 1.0]),
    "no keys": wire.encode([7, "any", "key", pack([[], 1.0])]),
    "many keys": wire.encode([7, "any", "key", pack([["key"] * 17, 1.0])]),
    "no rows": wire.encode([7, "put", "key", pack([2, []])]),
    "a row twice": wire.encode([7, "put", "key", pack([2, [[0, b""], [0, b""]]])]),
    "a row nowhere": wire.encode([7, "put", "key", pack([2, [[2, b""]]])]),
    "two words": wire.encode([7, "get", "key"]),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frame_ends_its_connection_only(server: TcpStoreServer, client: TcpStore, name: str) -> None:
    client.set("key", b"value")
    with connect(server) as bad:
        handshake(bad)
        bad.sendall(BAD_FRAMES[name])
        assert is_cut(bad)
    assert client.get("key", soon()) == b"value"


@given(st.binary(max_size=200))
def test_no_frame_does_worse_than_a_value_error(body: bytes) -> None:
    try:
        message = wire.decode(body)
    except ValueError:
        return
    assert isinstance(message, list)


def test_requests_of_one_connection_are_answered_by_number(server: TcpStoreServer, client: TcpStore) -> None:
    with connect(server) as eager:
        handshake(eager)
        requests = [
            [1, "get", "late", 60.0],
            [2, "get", "later", 60.0],
            [3, "add", "counter", 5],
            [4, "get", "no", 0.0],
        ]
        eager.sendall(b"".join(map(wire.encode, requests)))
        assert answer_on(eager) == [3, "ok", 5]
        assert answer_on(eager) == [4, "late", None]
        client.set("later", b"second")
        assert answer_on(eager) == [2, "ok", b"second"]
        client.set("late", b"first")
        assert answer_on(eager) == [1, "ok", b"first"]


def test_client_that_waits_for_too_much_is_cut(
    server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "MOST_WAITS", 3)
    with connect(server) as greedy:
        handshake(greedy)
        greedy.sendall(b"".join(wire.encode([number, "get", f"never {number}", 60.0]) for number in range(4)))
        assert is_cut(greedy)
    client.set("never 1", b"value")


def test_client_that_leaves_while_it_waits_is_forgotten(server: TcpStoreServer, client: TcpStore) -> None:
    for _ in range(3):
        with connect(server) as fickle:
            handshake(fickle)
            fickle.sendall(wire.encode([7, "get", "key", 60.0]))
    client.set("key", b"value")
    assert client.get("key", soon()) == b"value"


def test_client_that_does_not_read_delays_no_other_client(server: TcpStoreServer, client: TcpStore) -> None:
    large = os.urandom(MAX_VALUE_BYTES)
    client.set("large", large)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(30)
        slow.connect(server.address)
        handshake(slow)
        slow.sendall(wire.encode([7, "get", "large", 0.0]))
        for _ in range(10):
            client.add("counter", 1)
        assert answer_on(slow) == [7, "ok", large]
        slow.sendall(wire.encode([7, "add", "counter", 1]))
        assert answer_on(slow) == [7, "ok", 11]


def test_store_that_is_full_says_so(server: TcpStoreServer, client: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MAX_STORED", 100)
    client.set("key", bytes(60))
    for call in (lambda: client.set("other", bytes(60)), lambda: client.add("c" * 60, 1)):
        with pytest.raises(RendezvousError, match="100 bytes"):
            call()
    client.set("key", bytes(90))
    assert client.delete("key")
    client.set("other", bytes(60))


def test_server_that_closes_ends_the_waits_of_its_clients() -> None:
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET) as server,
        contextlib.closing(TcpStore(*server.address, SECRET)) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        client.set("key", b"")
        waits = [pool.submit(client.get, "never", soon()) for _ in range(4)]
        assert not wait(waits, 0.05).done
        server.close()
        for waiting in waits:
            with pytest.raises(RendezvousError, match=server.url):
                waiting.result(30)
        with pytest.raises(RendezvousError, match=server.url):
            client.set("key", b"")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/fd")
def test_copies_in_a_forked_child_keep_nothing_alive() -> None:
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET) as server,
        contextlib.closing(TcpStore(*server.address, SECRET)) as client,
        ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as inherited,
    ):
        waiting = pool.submit(client.get, "never", soon())
        client.set("key", b"")
        assert not wait([waiting], 0.05).done
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor that lists is gone by now
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    inherited.callback(os.close, os.dup(int(name)))
        server.close()
        with pytest.raises(RendezvousError, match=server.url):
            waiting.result(30)


def test_closed_server_leaves_no_thread_and_no_descriptor() -> None:
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        client = TcpStore(*server.address, SECRET)
        client.set("key", b"")
        unauthenticated = [connect(server) for _ in range(3)]
        client.close()
    for intruding in unauthenticated:
        assert is_cut(intruding)
        intruding.close()
    assert threading.active_count() == threads
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == descriptors


def fake_server(answer: bytes, *, prove: bool = True) -> tuple[socket.socket, Callable[[], None]]:
    """A server that answers the first request with `answer` and leaves."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)

    def serve() -> None:
        from transports.auth import HELLO_BYTES, PROOF_BYTES, Server

        sock, _ = listener.accept()
        with sock:
            sock.settimeout(30)
            if prove:
                proof = Server(SECRET, wire.PURPOSE)
                sock.sendall(proof.challenge(receive(sock, HELLO_BYTES)))
                proof.verify(receive(sock, PROOF_BYTES))
                (length,) = wire.HEADER.unpack(receive(sock, wire.HEADER.size))
                receive(sock, length)
            with contextlib.suppress(OSError):  # a client that has seen enough does not stay
                sock.sendall(answer)
                sock.shutdown(socket.SHUT_WR)
                is_cut(sock)

    return listener, serve


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed by the other end"),
        (b"\0\0\0\x10abc", "closed by the other end"),
        (b"\xff\xff\xff\xff", "4294967295 bytes"),
        (wire.encode([0, "ok", "text"]), "invalid answer"),
        (wire.encode([0, "ok"]), "invalid answer"),
        (wire.encode([0, "maybe", None]), "invalid answer"),
        (wire.encode([1, "ok", b"of another request"]), "invalid answer"),
        (wire.encode(["ok", b"without a number", None]), "failed to answer"),
        (wire.HEADER.pack(1) + b"\xc1", "failed to answer"),
    ],
)
def test_bad_answer_is_an_error_naming_the_server(answer: bytes, text: str) -> None:
    listener, serve = fake_server(answer)
    with listener, ThreadPoolExecutor(1) as pool:
        served: Future[None] = pool.submit(serve)
        host, port = listener.getsockname()
        client = TcpStore(host, port, SECRET)
        with (
            contextlib.closing(client),
            pytest.raises(RendezvousError, match=f"{client.url} failed") as got,
        ):
            client.get("key", soon())
        assert text in str(got.value)
        served.result(30)


def test_something_else_on_the_port_is_an_error() -> None:
    listener, serve = fake_server(b"220 mail.example ESMTP ready".ljust(100), prove=False)
    with listener, ThreadPoolExecutor(1) as pool:
        served: Future[None] = pool.submit(serve)
        host, port = listener.getsockname()
        client = TcpStore(host, port, SECRET)
        with contextlib.closing(client), pytest.raises(RendezvousError, match="job's secret"):
            client.set("key", b"")
        served.result(30)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_low_limit_of_descriptors_is_raised() -> None:
    """More clients than the soft limit allows at first: a server raises it to the hard one."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, limits[1]), limits[1]))
        with TcpStoreServer("127.0.0.1", secret=SECRET) as server, contextlib.ExitStack() as clients:
            for number in range(150):  # two descriptors each
                store = TcpStore(*server.address, SECRET, connect_deadline=soon())
                clients.callback(store.close)
                store.set(str(number), b"value")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    "url",
    [
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://:1",
        "tcp://::1:5",
        "tcp://a@b:1",
    ],
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="tcp://host:port"):
        wire.parse_url(url)
