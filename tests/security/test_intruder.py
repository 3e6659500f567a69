"""Somebody on the network, while a job computes on: every result stays right, and the intruder is cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, Config
from tests.security.certificates import Files
from tests.transports.groups import SECRET, soon
from tests.transports.tcp_ranks import SECONDS, address_of, redirect
from transports import auth
from transports.errors import ConnectError, DeadlineExceeded
from transports.rendezvous import bootstrap, wire
from transports.rendezvous import server as server_module
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import DATA, HEADER, intro_frame
from transports.tcp.listener import MAX_REFUSALS_LOGGED, MAX_UNAUTHENTICATED
from transports.testing import run_threads
from transports.tls import Tls

SIZE = 3
HANDSHAKE = 1.0
"""Seconds that both listeners give a stranger here."""
SLACK = 5.0
"""Seconds that a busy machine may add."""
Address = tuple[str, int]


class Job:
    """Ranks that allreduce, and use the store, until they are told to stop; each of them checks every result."""

    def __init__(self, server: TcpStoreServer, tls: Tls | None = None) -> None:
        self.rounds = [0] * SIZE
        self.transports: dict[int, TcpTransport] = {}
        self._server = server
        self._tls = tls
        self._stop = threading.Event()
        self._begun = threading.Barrier(SIZE + 1)
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Job:
        self._thread.start()
        try:
            self._begun.wait(SECONDS)
        except threading.BrokenBarrierError:
            self._thread.join()
            raise self._errors[0] from None
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._errors and error is None:
            raise self._errors[0]

    @property
    def listener(self) -> Address:
        """The address on which rank 0 listens."""
        return address_of(self.transports[0])

    def goes_on(self, rounds: int = 3) -> None:
        """Wait until every rank has done some more."""
        before, end = list(self.rounds), soon()
        while not all(now >= then + rounds for now, then in zip(self.rounds, before, strict=True)):
            assert not self._errors, self._errors
            assert time.monotonic() < end, "the job does not go on"
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            run_threads(self._rank, SIZE, timeout=60.0)
        except BaseException as error:  # raised where the job ends
            self._errors.append(error)
            self._begun.abort()

    def _rank(self, rank: int) -> None:
        store = TcpStore(*self._server.address, SECRET, connect_deadline=soon(), tls=self._tls)
        with contextlib.closing(store):
            group = bootstrap.join(rank, SIZE, store, secret=SECRET, deadline=soon())
            group = dataclasses.replace(group, tls=self._tls)
            transport = self.transports[rank] = TcpTransport(group, Options(handshake_timeout=HANDSHAKE))
            transport.open(soon())
            config = Config.load({"transport": "tcp", "timeout": 30.0}, environment={})
            with contextlib.closing(Communicator(transport, config)) as comm:
                self._compute(comm, store)

    def _compute(self, comm: Communicator, store: TcpStore) -> None:
        going = True
        while going:
            if self.rounds[comm.rank] == 1:
                self._begun.wait(SECONDS)
            count = 1 + 997 * (self.rounds[comm.rank] % 20)
            total = comm.allreduce(np.arange(count) * (comm.rank + 1))
            assert np.array_equal(total, np.arange(count) * 6)
            assert store.add(f"rounds of {comm.rank}", 1) == self.rounds[comm.rank] + 1
            self.rounds[comm.rank] += 1
            going = not comm.allreduce(self._stop.is_set(), "lor")


class Recorder:
    """Passes on what goes to an address, and keeps what its clients have said."""

    def __init__(self) -> None:
        self.said: list[bytearray] = []
        self._sockets = contextlib.ExitStack()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        with self._sockets:
            for thread in self._threads:
                thread.join()

    def between(self, target: Address) -> Address:
        listener = self._sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._start(self._relay, listener, target)
        return listener.getsockname()

    def _start(self, body: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=body, args=args)
        thread.start()
        self._threads.append(thread)

    def _relay(self, listener: socket.socket, target: Address) -> None:
        """One connection."""
        listener.settimeout(SECONDS)
        near = self._sockets.enter_context(listener.accept()[0])
        far = self._sockets.enter_context(socket.create_connection(target, timeout=SECONDS))
        self.said.append(bytearray())
        self._start(self._pass, near, far, self.said[-1])
        self._start(self._pass, far, near, bytearray())

    def _pass(self, source: socket.socket, sink: socket.socket, said: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                said += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpStoreServer]:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", HANDSHAKE)
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        yield server


@pytest.fixture
def job(server: TcpStoreServer) -> Iterator[Job]:
    with Job(server) as job:
        yield job
        job.goes_on()


@pytest.fixture(params=["listener", "store"])
def target(request: pytest.FixtureRequest, job: Job, server: TcpStoreServer) -> Target:
    """The attacked service."""
    if request.param == "store":
        return Target(server.address, wire.PURPOSE)
    return Target(job.listener, b"ronde tcp lane to rank 0 of 3, generation 0")


class Target:
    """An address, and what a handshake there is for: an intruder may know that."""

    def __init__(self, address: Address, purpose: bytes) -> None:
        self.address = address
        self.purpose = purpose

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=SECONDS)

    def greet(self, secret: bytes = SECRET) -> auth.Client:
        return auth.Client(secret, self.purpose)

    def answers(self) -> None:
        """An honest newcomer is let in."""
        with self.connect() as sock:
            client = self.greet()
            sock.sendall(client.hello)
            client.answer(sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL))


def say(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it was cut off already
        sock.sendall(data)


def is_cut(sock: socket.socket, within: float = HANDSHAKE + SLACK) -> bytes:
    """Wait until the other end hangs up; what it said before."""
    end, said = time.monotonic() + within, b""
    try:
        while True:
            sock.settimeout(max(0.001, end - time.monotonic()))
            part = sock.recv(1 << 16)
            if not part:
                return said
            said += part
    except ConnectionError:
        return said


# Who knows nothing


def test_a_port_scanner(job: Job, target: Target) -> None:
    for number in range(60):
        with target.connect() as sock:
            if number % 3 == 1:  # hangs up with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 3 == 2:
                say(sock, os.urandom(number))
    with target.connect() as silent:
        job.goes_on()
        target.answers()
        assert is_cut(silent) == b""


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"SSH-2.0-OpenSSH_9.6\r\n".ljust(200),
        os.urandom(1 << 20),
        auth.MAGIC + os.urandom(1 << 20),
        bytes(1 << 20),
    ],
    ids=["http", "tls", "ssh", "random", "magic and random", "zeros"],
)
def test_other_protocols_and_too_much(job: Job, target: Target, said: bytes) -> None:
    with target.connect() as sock:
        say(sock, said)
        answer = is_cut(sock)
    assert len(answer) < 10 or answer == auth.REFUSAL
    job.goes_on()
    target.answers()


# Who knows the protocol


def test_a_wrong_secret(job: Job, target: Target) -> None:
    for secret in (b"another secret, as long", b"", SECRET[::-1]):
        with target.connect() as sock:
            client = target.greet(secret)
            say(sock, client.hello)
            challenge = sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL)
            transcript = client.hello[len(auth.MAGIC) :] + challenge[: auth.NONCE]
            forged = hmac.new(secret, b"client" + transcript, "sha256").digest()
            say(sock, forged + intro_frame(1, 0))
            assert is_cut(sock) == b""
    job.goes_on()


def test_garbage_after_a_valid_hello(job: Job, target: Target) -> None:
    for garbage in (bytes(200), os.urandom(1 << 20), intro_frame(1, 0) * 10):
        with target.connect() as sock:
            say(sock, target.greet().hello + garbage)
            assert len(is_cut(sock)) in (0, auth.CHALLENGE_BYTES)
    job.goes_on()
    target.answers()


def test_the_challenge_sent_back(job: Job, target: Target) -> None:
    with target.connect() as sock:
        say(sock, target.greet().hello)
        challenge = sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL)
        say(sock, challenge[auth.NONCE :] + intro_frame(1, 0))
        assert is_cut(sock) == b""
    job.goes_on()


def test_a_session_of_a_lane_said_again(server: TcpStoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder() as recorder:
        redirect(monkeypatch, recorder.between)
        with Job(server) as job:
            job.goes_on()
            session = bytes(recorder.said[0])
            assert len(session) > auth.HELLO_BYTES + auth.PROOF_BYTES + 2 * HEADER.size
            for length in (auth.HELLO_BYTES + auth.PROOF_BYTES + HEADER.size, len(session)):
                with socket.create_connection(job.listener, timeout=SECONDS) as sock:
                    say(sock, session[:length])
                    assert len(is_cut(sock)) in (0, auth.CHALLENGE_BYTES)
            job.goes_on()


def test_a_session_of_the_store_said_again(job: Job, server: TcpStoreServer) -> None:
    with Recorder() as recorder:
        with contextlib.closing(TcpStore(*recorder.between(server.address), SECRET)) as client:
            assert client.add("counter", 1) == 1
            client.set("key", b"value")
        session = bytes(recorder.said[0])
    with contextlib.closing(TcpStore(*server.address, SECRET)) as client:
        assert client.delete("key")
        with socket.create_connection(server.address, timeout=SECONDS) as sock:
            say(sock, session)
            assert len(is_cut(sock)) in (0, auth.CHALLENGE_BYTES)
        assert client.get("counter", soon()) == b"1"
        with pytest.raises(DeadlineExceeded):
            client.get("key", 0.0)
    job.goes_on()


# Who is many, or slow


def test_a_crowd_that_says_a_byte_now_and_then(job: Job, target: Target) -> None:
    """More connections than the limit, each a byte every 50 ms."""
    with contextlib.ExitStack() as opened:
        crowd = [opened.enter_context(target.connect()) for _ in range(MAX_UNAUTHENTICATED + 32)]
        end = time.monotonic() + HANDSHAKE + 0.3
        hello = iter(target.greet().hello)
        while time.monotonic() < end:
            byte = bytes([next(hello)])
            for sock in crowd:
                say(sock, byte)
            job.goes_on(1)
            time.sleep(0.05)
        target.answers()
        for sock in crowd:
            is_cut(sock, 2 * HANDSHAKE + SLACK)
    job.goes_on()


def test_a_crowd_that_says_nothing(job: Job, target: Target) -> None:
    """Half-open handshakes, as many as are let in at once, and more."""
    with contextlib.ExitStack() as opened:
        crowd = [opened.enter_context(target.connect()) for _ in range(2 * MAX_UNAUTHENTICATED)]
        for sock in crowd[::2]:
            say(sock, target.greet().hello)
        job.goes_on()
        target.answers()
        for sock in crowd:
            is_cut(sock, 3 * HANDSHAKE + SLACK)
    job.goes_on()


def test_a_crowd_does_not_fill_the_log(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(MAX_REFUSALS_LOGGED + 50):
        with socket.create_connection(job.listener, timeout=SECONDS) as sock:
            say(sock, bytes(100))
            is_cut(sock)
    texts = [record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()]
    assert len(texts) == MAX_REFUSALS_LOGGED
    assert texts[-1].endswith("more refusals are not logged")


# Who knows the secret, but is no rank


def test_an_impostor_of_a_rank_that_is_there(job: Job) -> None:
    purpose = b"ronde tcp lane to rank 0 of 3, generation 0"
    for rank in (0, 1, 2, 3, 2**40):
        with socket.create_connection(job.listener, timeout=SECONDS) as sock:
            client = auth.Client(SECRET, purpose)
            say(sock, client.hello)
            proof = client.answer(sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL))
            say(sock, proof + intro_frame(rank, 0) + HEADER.pack(0, 0, DATA, 8) + bytes(8))
            assert is_cut(sock) == b""
    job.goes_on()


@pytest.mark.parametrize("purpose", [b"ronde tcp lane to rank 1 of 3, generation 0", wire.PURPOSE])
def test_a_handshake_for_something_else(job: Job, purpose: bytes) -> None:
    with socket.create_connection(job.listener, timeout=SECONDS) as sock:
        say(sock, auth.Client(SECRET, purpose).hello)
        assert is_cut(sock) == auth.REFUSAL
    job.goes_on()


@pytest.mark.parametrize("length", [0, wire.MAX_FRAME + 1, 2**32 - 1])
def test_oversized_frames_to_the_store(job: Job, server: TcpStoreServer, length: int) -> None:
    with socket.create_connection(server.address, timeout=SECONDS) as sock:
        client = auth.Client(SECRET, wire.PURPOSE)
        say(sock, client.hello)
        say(sock, client.answer(sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL)))
        say(sock, wire.HEADER.pack(length) + bytes(1000))
        assert is_cut(sock) == b""
    job.goes_on()


# Under TLS


def without_certificate(sock: socket.socket, files: Files) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca)
    return context.wrap_socket(sock)


def test_strangers_to_a_job_under_tls(files: Files, strange_files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", HANDSHAKE)
    tls, trusting = files.load(), Files(strange_files.certificate, strange_files.key, files.ca).load()
    with TcpStoreServer("127.0.0.1", secret=SECRET, tls=tls) as server, Job(server, tls=tls) as job:
        lane = Target(job.listener, b"ronde tcp lane to rank 0 of 3, generation 0")
        for target in (lane, Target(server.address, wire.PURPOSE)):
            for garbage in (target.greet().hello, os.urandom(1 << 16), b"\x16\x03\x01\x02\x00" + bytes(512)):
                with target.connect() as sock:
                    say(sock, garbage)
                    assert len(is_cut(sock)) < 10
            for knock in (lambda sock: without_certificate(sock, files), trusting.call):
                with contextlib.suppress(OSError, ConnectError), target.connect() as sock, knock(sock) as end:
                    say(end, target.greet().hello)
                    assert end.recv(1) == b""
            for secret in (SECRET, b"another secret, as long"):  # the first, but not bound to the certificates
                with target.connect() as sock, tls.call(sock) as end:
                    say(end, auth.Client(secret, target.purpose).hello)
                    assert is_cut(end) == (auth.REFUSAL if target is lane else b"")
            with contextlib.ExitStack() as opened:
                crowd = [opened.enter_context(target.connect()) for _ in range(40)]
                for sock in crowd[::2]:
                    say(sock, b"\x16\x03\x01\x02\x00")
                job.goes_on()
                for sock in crowd:
                    is_cut(sock)
        job.goes_on()
