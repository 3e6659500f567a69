"""The handshake against ends that say anything."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.certificates import Files
from tests.security.fuzz import cuts, faulty, fuzz
from tests.transports.groups import SECRET, groups, recv, send
from tests.transports.tcp_ranks import SECONDS, address_of, in_threads, last_words, link, purpose, ranks
from transports import auth
from transports.cores import Cores
from transports.errors import ConnectError, RondeError
from transports.loop import Loop
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import intro_frame
from transports.tcp.handshake import Dial
from transports.tls import TlsSocket

# Without sockets


@fuzz(80)
@given(st.binary(max_size=80), st.binary(max_size=40))
def test_the_server_takes_no_bytes_for_a_proof(hello: bytes, proof: bytes) -> None:
    server = auth.Server(SECRET, b"p")
    with contextlib.suppress(ConnectError):
        server.challenge(hello)
    with pytest.raises(ConnectError):
        server.verify(proof)


@fuzz(80)
@given(st.binary(max_size=80))
def test_the_client_takes_no_bytes_for_a_challenge(challenge: bytes) -> None:
    with pytest.raises(ConnectError):
        auth.Client(SECRET, b"p").answer(challenge)


@fuzz(80)
@given(st.sampled_from(["hello", "challenge", "proof"]), st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_handshake_can_be_changed(message: str, place: int, change: int) -> None:
    def on_the_way(name: str, data: bytes) -> bytes:
        changed = bytearray(data)
        if name == message:
            changed[place % len(data)] ^= change
        return bytes(changed)

    def shake() -> None:
        client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
        challenge = on_the_way("challenge", server.challenge(on_the_way("hello", client.hello)))
        server.verify(on_the_way("proof", client.answer(challenge)))

    with pytest.raises(ConnectError):
        shake()


# The accepting end


def hang_up(sock: socket.socket, pieces: list[bytes]) -> None:
    """Send what the other end takes, and say that this was all."""
    with contextlib.suppress(OSError):
        for piece in pieces:
            sock.sendall(piece)
        sock.shutdown(socket.SHUT_WR)


HELLOS = st.one_of(
    st.binary(max_size=200),
    faulty(st.builds(lambda: auth.Client(SECRET, purpose(0)).hello)),
    faulty(st.builds(lambda: auth.Client(SECRET, purpose(0)).hello + bytes(auth.PROOF_BYTES) + intro_frame(1, 0))),
)


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[TcpTransport]]:
    """Transports that are kept for all examples, linked."""
    with ranks(2, Options(handshake_timeout=30.0)) as transports:
        link(transports)
        yield transports


@fuzz(60)
@given(cuts(HELLOS))
def test_strangers_say_anything(worlds: list[TcpTransport], pieces: list[bytes]) -> None:
    a, b = worlds
    with socket.create_connection(address_of(a), timeout=SECONDS) as stranger:
        hang_up(stranger, pieces)
        assert len(last_words(stranger, a)) <= auth.CHALLENGE_BYTES + 7
    assert a.failure is None
    in_threads(lambda: send(b, 0, 1, b"abc"), lambda: recv(a, 1, 1, 3))


# The connecting end


class Outcome:
    """The caller of a Dial."""

    def __init__(self) -> None:
        self.told: list[RondeError | socket.socket] = []

    def dialed(self, dial: Dial, sock: socket.socket) -> None:
        self.told.append(sock)

    def dial_failed(self, dial: Dial, error: RondeError) -> None:
        self.told.append(error)

    @property
    def done(self) -> bool:
        return bool(self.told)

    def poke(self) -> bool:
        return False

    def check_possible(self) -> None:
        """There is nothing else that could end it."""

    def request_wakeup(self) -> None:
        """It is woken by its socket."""


class Nothing:
    """The progress beside that of sockets."""

    def __init__(self, crashed: Callable[[BaseException], None]) -> None:
        self.crashed = crashed

    def sweep(self, but: Collection[object] = ()) -> bool:
        return False

    def tick(self, now: float) -> float:
        return now + 1.0


def dial(listener: socket.socket) -> RondeError | socket.socket:
    """The outcome of a Dial."""
    outcome = Outcome()
    failed: list[BaseException] = []
    loop = Loop(Nothing(failed.append), Cores(groups(1)[0]))
    with loop.driver.lock:
        loop.open()
        dial = Dial(
            outcome.dialed,
            outcome.dial_failed,
            loop,
            rank=1,
            peer=0,
            connection=0,
            address=listener.getsockname(),
            secret=SECRET,
            purpose=purpose(0),
            tls=None,
            options=Options(),
        )
        dial.start()
    ended = loop.driver.wait(outcome, time.monotonic() + SECONDS)
    with loop.driver.lock:
        dial.close()
        loop.close()
    assert ended
    assert not failed
    (told,) = outcome.told
    return told


Answer = list[bytes] | tuple[int, int] | None
"""A server answers with these pieces, the true challenge with a byte changed (index, change), or the true challenge."""


def answered(answer: Answer) -> RondeError | socket.socket:
    """The outcome of a Dial to a server that answers its hello in this way."""

    def serve() -> None:
        with listener.accept()[0] as sock:
            sock.settimeout(SECONDS)
            hello = b""
            while len(hello) < auth.HELLO_BYTES:
                hello += sock.recv(auth.HELLO_BYTES - len(hello))
            challenge = bytearray(auth.Server(SECRET, purpose(0)).challenge(hello))
            if isinstance(answer, tuple):
                challenge[answer[0]] ^= answer[1]
            if answer is None:
                sock.sendall(challenge)
            else:
                hang_up(sock, answer if isinstance(answer, list) else [challenge])
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            told = dial(listener)
            if isinstance(told, socket.socket):
                told.close()
            return told
        finally:
            thread.join()


def test_the_true_challenge_is_taken() -> None:
    assert isinstance(answered(None), socket.socket)


@fuzz(40)
@given(cuts(st.binary(max_size=100)) | st.tuples(st.integers(0, auth.CHALLENGE_BYTES - 1), st.integers(1, 255)))
def test_servers_say_anything(answer: list[bytes] | tuple[int, int]) -> None:
    told = answered(answer)
    assert isinstance(told, RondeError)
    assert told.peer == 0
    assert "127.0.0.1, port" in str(told)


# Under TLS


@fuzz(60)
@given(
    cuts(st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(lambda data: b"\x16\x03\x01\x00" + data))),
    st.booleans(),
)
def test_no_bytes_make_more_of_tls_than_an_error(files: Files, pieces: list[bytes], serving: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as opened:
        near = opened.enter_context(socket.create_connection(listener.getsockname()))
        far = opened.enter_context(listener.accept()[0])
        far.setblocking(False)
        end: TlsSocket = opened.enter_context(files.load().accept(far) if serving else files.load().dial(far))
        with contextlib.suppress(OSError, ConnectError):
            end.shake()
        hang_up(near, pieces)

        def shake() -> None:
            while True:
                assert not end.shake()
                assert select.select([end], [], [], SECONDS)[0]

        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake()
