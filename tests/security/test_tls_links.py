"""TLS under the TCP transport, the store, and whole jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.launch.launcher import environment, ronde
from tests.security.certificates import Authority, Files
from tests.transports.groups import SECRET, groups, recv, send, soon
from tests.transports.tcp_ranks import SECONDS, address_of, every, in_threads, link, redirect, tcp_link, wait_until
from tests.worlds import world_of
from transports.auth import CHALLENGE_BYTES, Client
from transports.errors import AbortedError, ConfigError, ConnectError, DeadlineExceeded, PeerLost, RendezvousError
from transports.packed import pack
from transports.rendezvous import wire
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import abort_frame, data_header
from transports.tcp.outgoing import Outgoing
from transports.testing import check_transport
from transports.tls import Tls, TlsSocket


@contextlib.contextmanager
def ranks(*certificates: Tls | None, options: Options | None = None) -> Iterator[list[TcpTransport]]:
    """Open transports of one group, each with its own certificate."""
    parts = zip(groups(len(certificates)), certificates, strict=True)
    transports = [TcpTransport(dataclasses.replace(group, tls=tls), options) for group, tls in parts]
    every(transports, lambda t: t.open(soon()))
    try:
        yield transports
    finally:
        every(transports, lambda t: t.close(time.monotonic() + 5))


# The transport


@pytest.mark.parametrize("options", [Options(), Options(connections=3, spread_bytes=1)])
def test_the_transport_keeps_its_promises_under_tls(files: Files, options: Options) -> None:
    tls = files.load()
    check_transport(lambda group: TcpTransport(dataclasses.replace(group, tls=tls), options), sizes=(2, 3))


def test_everything_goes_under_tls(authority: Authority) -> None:
    options = Options(connections=2, spread_bytes=1)
    with ranks(authority.end().load(), authority.end().load(), options=options) as transports:
        link(transports)
        every(
            transports,
            lambda t: wait_until(lambda: [lane.sock is None for lane in tcp_link(t).lanes] == [False] * 6, drive=t),
        )
        for t in transports:
            for lane in tcp_link(t).lanes:
                assert isinstance(lane.sock, TlsSocket)
                assert lane.sock.version() == "TLSv1.3"


def test_plain_links_have_plain_sockets() -> None:
    with ranks(None, None) as transports:
        link(transports)
        assert [type(lane.sock) for lane in tcp_link(transports[0]).lanes] == [socket.socket] * 2


@contextlib.contextmanager
def beside(tls: Tls, options: Options | None = None) -> Iterator[tuple[TcpTransport, TlsSocket, TlsSocket]]:
    """Rank 0 of two, and a connection for a lane from or to rank 1, and the other end of that."""
    group = dataclasses.replace(groups(2)[0], tls=tls)
    group.store.prefixed("tcp").put_row("addresses", 1, 2, pack(("127.0.0.1", 1)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname(), timeout=SECONDS)
        inner, _ = listener.accept()
    inner.setblocking(False)
    outer.setblocking(False)
    near, far = tls.accept(inner), tls.dial(outer)
    while not all([far.shake(), near.shake()]):
        pass
    transport = TcpTransport(group, options or Options())
    with near, far:
        transport.open(soon())
        try:
            yield transport, near, far
        finally:
            transport.abort(AbortedError("the test is over"))
            transport.close(soon())


def frames(*payloads: bytes) -> memoryview:
    """Frames with tags 0, 1, ..."""
    return memoryview(b"".join(data_header(tag, 0, len(data)) + data for tag, data in enumerate(payloads)))


def say(far: TlsSocket, stream: memoryview) -> None:
    """Write in as few records as possible, so that frames lie across them."""
    while stream:
        with contextlib.suppress(BlockingIOError):
            stream = stream[far.send(stream) :]


def test_decrypted_bytes_are_handled_without_further_data(files: Files) -> None:
    """Reading stops after so many reads, with the rest of a record in OpenSSL, of which no selector tells."""
    payloads = [bytes(20_000)] * 8 + [b"the last"]
    with beside(files.load(), Options(spin_us=0)) as (transport, near, far):
        say(far, frames(*payloads))
        requests = [transport.irecv(1, tag, memoryview(bytearray(len(p)))) for tag, p in enumerate(payloads)]
        with transport.lock:
            assert tcp_link(transport).accepted(near, 1, 0) is None
        requests[-1].wait(time.monotonic() + 5)


def test_decrypted_bytes_are_handled_once_their_destination_is_known(files: Files) -> None:
    """Reading stops at a frame without a place, with the rest of a record in OpenSSL; then another thread makes one."""
    payloads = [bytes(12)] * 1819 + [bytes(28)]
    stream = frames(*payloads)
    assert len(stream) == 4 << 14  # four records: the last two do not fit behind what is left of the first ones
    options = Options(max_parked_bytes=10, spin_us=0)
    with beside(files.load(), options) as (transport, near, far):
        with transport.lock:
            assert tcp_link(transport).accepted(near, 1, 0) is None
        say(far, stream)
        (lane,) = tcp_link(transport).lanes

        def post(tags: range) -> None:
            for tag in tags:
                transport.irecv(1, tag, memoryview(bytearray(12)))

        def wait() -> None:
            transport.irecv(1, 1819, memoryview(bytearray(28))).wait(time.monotonic() + 5)

        def make_places() -> None:
            wait_until(lambda: lane.held)
            post(range(1000))
            wait_until(lambda: lane.held and near.pending() == 8)
            post(range(1000, 1819))

        in_threads(wait, make_places)


def test_an_abort_does_not_go_into_the_middle_of_a_record(files: Files) -> None:
    """The last record was not taken whole, then there is room again: what goes next is its rest, or nothing."""
    with beside(files.load()) as (transport, near, far):
        frame = data_header(7, 0, 10) + b"0123456789"
        lane = Outgoing(tcp_link(transport), transport.loop, 1)
        with transport.lock:
            lane.attach(near)
            while not lane.queued_bytes:
                lane.queue_frame(frame)
        assert lane.queued_bytes == len(frame), "none of the last frame was taken, but of a record that has it"
        got = bytearray()
        with contextlib.suppress(BlockingIOError):
            while part := far.recv(1 << 20):
                got += part
        with transport.lock:
            lane.send_last(abort_frame(AbortedError("longer than the record which was not taken: " + "x" * 100)))
        assert select.select([far], [], [], SECONDS)[0]
        with contextlib.suppress(ConnectionResetError):
            while part := far.recv(1 << 20):
                got += part
        assert got == frame * (len(got) // len(frame))


def refused(members: list[TcpTransport], caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Rank 1 sends, rank 0 waits for it: what rank 1 raises, and what rank 0 logs."""
    a, b = members
    stop = threading.Event()

    def serve() -> None:
        request = a.irecv(1, 1, memoryview(bytearray(3)))
        while not stop.is_set():
            with pytest.raises((DeadlineExceeded, ConnectError, PeerLost)) as caught:
                request.wait(time.monotonic() + 0.01)
            if caught.type is not DeadlineExceeded:  # rank 1 has told it why it gave up
                return

    def call() -> str:
        try:
            with pytest.raises(
                (ConnectError, PeerLost), match=r"connect to rank 0 \(.*\) at 127\.0\.0\.1, port"
            ) as caught:
                send(b, 0, 1, b"abc")
            return str(caught.value)
        finally:
            stop.set()

    with caplog.at_level(logging.WARNING):
        _, raised = in_threads(serve, call)
    assert a.failure is None or a.failure.rank == 1  # as rank 1 may have told it, by the way that rank 0 has made
    return raised, caplog.text


def test_a_plain_rank_and_one_with_tls_name_the_reason(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    with ranks(None, files.load()) as members:
        raised, logged = refused(members, caplog)
    assert "protocol version" in raised
    assert "TLS set at one end only" in logged
    caplog.clear()
    with ranks(files.load(), None) as members:
        raised, logged = refused(members, caplog)
    assert "TLS set at one end only" in raised
    assert "it does not speak TLS" in logged


def test_a_rank_with_an_unknown_certificate_names_the_reason(
    files: Files, strange_files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    with ranks(files.load(), strange_files.load()) as members:
        raised, logged = refused(members, caplog)
    assert "certificate is not accepted" in raised
    assert "handshake of TLS: tlsv1 alert unknown ca" in logged
    caplog.clear()
    trusting = Files(strange_files.certificate, strange_files.key, files.ca)
    with ranks(files.load(), trusting.load()) as members:
        raised, logged = refused(members, caplog)
    assert "handshake of TLS: tlsv1 alert unknown ca" in raised
    assert "certificate is not accepted" in logged


def test_an_expired_rank_is_refused(authority: Authority, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    with ranks(files.load(), authority.end(expired=True).load()) as members:
        raised, logged = refused(members, caplog)
    assert "certificate expired" in raised
    assert "its certificate is not accepted: certificate has expired" in logged


@contextlib.contextmanager
def in_the_middle(target: tuple[str, int], evil: Tls | None) -> Iterator[tuple[str, int]]:
    """Passes on all that goes to `target`; under TLS it is an end to both ends."""
    stop = threading.Event()

    def carry() -> None:
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            near = opened.enter_context(listener.accept()[0])
            far = opened.enter_context(socket.create_connection(target))
            for sock in (near, far):
                sock.setblocking(False)
            if evil is not None:
                near, far = opened.enter_context(evil.accept(near)), opened.enter_context(evil.dial(far))
                while not all([near.shake(), far.shake()]):
                    select.select([near, far], [], [], 0.02)
            while not stop.is_set():
                select.select([near, far], [], [], 0.02)
                for source, sink in ((near, far), (far, near)):
                    with contextlib.suppress(BlockingIOError):
                        data = source.recv(4096)
                        if not data:
                            return
                        while not sink.send(data):
                            continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        thread = threading.Thread(target=carry)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            stop.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_relay_without_tls_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for TLS: without it the proof of the secret does not detect a relay."""
    with ranks(None, None) as (a, b), in_the_middle(address_of(a), None) as relay:
        redirect(monkeypatch, lambda _: relay)
        in_threads(lambda: send(b, 0, 1, b"abc"), lambda: recv(a, 1, 1, 3))


def test_a_relay_with_a_certificate_of_the_same_authority_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = authority.end().load()
    with ranks(authority.end().load(), authority.end().load()) as (a, b), in_the_middle(address_of(a), evil) as relay:
        redirect(monkeypatch, lambda _: relay)
        raised, logged = refused([a, b], caplog)
    assert "it refused" in raised
    assert "asked for another job, generation or service" in logged


# The store


def test_the_store_under_tls(authority: Authority) -> None:
    large = os.urandom(1 << 20)
    with TcpStoreServer("127.0.0.1", secret=SECRET, tls=authority.end().load()) as server:
        stores = [TcpStore(*server.address, SECRET, tls=authority.end().load()) for _ in range(2)]
        with contextlib.closing(stores[0]) as one, contextlib.closing(stores[1]) as other:
            in_threads(lambda: other.get("late", soon()), lambda: one.set("late", b"now"))
            one.set("large", large)
            assert other.get("large", soon()) == large
            assert [store.add("counter", 1) for store in stores * 20] == list(range(1, 41))
            assert other.delete("large")
            with pytest.raises(DeadlineExceeded):
                other.get("large", time.monotonic() + 0.05)


def store_error(server: TcpStoreServer, tls: Tls | None) -> str:
    begun = time.monotonic()
    with (
        contextlib.closing(TcpStore(*server.address, SECRET, tls=tls, connect_deadline=soon())) as client,
        pytest.raises(RendezvousError) as caught,
    ):
        client.set("key", b"")
    assert time.monotonic() - begun < SECONDS / 2, "it was tried again and again"
    return str(caught.value)


def test_a_store_with_tls_and_a_client_without_name_the_reason(files: Files) -> None:
    with TcpStoreServer("127.0.0.1", secret=SECRET, tls=files.load()) as server:
        assert "TLS set at one end only" in store_error(server, None)
        with contextlib.closing(TcpStore(*server.address, SECRET, tls=files.load())) as client:
            client.set("key", b"still served")
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        assert "protocol version" in store_error(server, files.load())
        with contextlib.closing(TcpStore(*server.address, SECRET)) as client:
            client.set("key", b"still served")


def test_a_store_and_a_client_with_certificates_that_do_not_fit(
    authority: Authority, files: Files, strange_files: Files
) -> None:
    trusting = Files(strange_files.certificate, strange_files.key, files.ca)
    with TcpStoreServer("127.0.0.1", secret=SECRET, tls=files.load()) as server:
        assert "certificate is not accepted" in store_error(server, strange_files.load())
        assert "tlsv1 alert unknown ca" in store_error(server, trusting.load())
        assert "certificate expired" in store_error(server, authority.end(expired=True).load())
        with (
            contextlib.closing(TcpStore(*server.address, b"another secret, long", tls=files.load())) as liar,
            pytest.raises(RendezvousError, match="job's secret"),
        ):
            liar.set("key", b"")


def test_a_relay_to_the_store_is_refused(authority: Authority) -> None:
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET, tls=authority.end().load()) as server,
        in_the_middle(server.address, authority.end().load()) as relay,
        contextlib.closing(TcpStore(*relay, SECRET, tls=authority.end().load())) as client,
        pytest.raises(RendezvousError, match="closed by"),
    ):
        client.set("key", b"")


def test_a_client_that_talks_ahead_is_answered_under_tls_too(files: Files) -> None:
    tls = files.load()
    with TcpStoreServer("127.0.0.1", secret=SECRET, tls=tls) as server:
        sock = tls.call(socket.create_connection(server.address, timeout=SECONDS))
        with sock:
            proof = Client(SECRET, tls.bind(sock, wire.PURPOSE))
            sock.sendall(proof.hello)
            answer = b""
            while len(answer) < CHALLENGE_BYTES:
                answer += sock.recv(CHALLENGE_BYTES - len(answer))
            # One record with the proof, a request that is answered, one that waits, and another one.
            requests = [[1, "set", "key", b"value"], [2, "get", "never", 60.0], [3, "add", "counter", 2]]
            sock.sendall(proof.answer(answer) + b"".join(map(wire.encode, requests)))
            expected = wire.encode([1, "ok", None]) + wire.encode([3, "ok", 2])
            said = b""
            while len(said) < len(expected):
                part = sock.recv(4096)
                assert part, said
                said += part
            assert said == expected
        with contextlib.closing(TcpStore(*server.address, SECRET, tls=tls)) as client:
            assert client.get("key", soon()) == b"value"


# Whole jobs


def mixed(comm: Communicator) -> None:
    """Some of everything, its results checked."""
    rank, size = comm.rank, comm.size
    for count in (1, 1000, 700_001):
        x = np.arange(count, dtype=np.float64) + rank
        assert np.array_equal(comm.allreduce(x), size * np.arange(count) + size * (size - 1) / 2)
    assert np.array_equal(comm.allgather(np.full(rank, rank)), np.repeat(np.arange(size), np.arange(size)))
    assert np.array_equal(comm.broadcast(np.full(100_000, rank, np.int32), root=1), np.ones(100_000, np.int32))
    assert np.array_equal(comm.alltoall(np.full(size, rank)), np.arange(size))
    assert comm.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
    comm.barrier()
    pending = [comm.allreduce_async(np.full(10_000, rank)) for _ in range(5)]
    for work in pending:
        assert work.wait()[0] == size * (size - 1) / 2


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_collectives_under_tls(transport: str, files: Files) -> None:
    with world_of(transport, 3, **files.settings) as world:
        world.run(mixed)


def test_an_abort_reaches_all_ranks_under_tls(files: Files) -> None:
    def body(comm: Communicator) -> str:
        def go_on() -> None:
            comm.barrier()
            if comm.rank == 1:
                comm.abort("enough of it")
            while True:
                comm.allreduce(np.ones(300_000))

        with pytest.raises(AbortedError) as caught:
            go_on()
        return str(caught.value)

    with world_of("tcp", 3, **files.settings) as world:
        assert all("enough of it" in said for said in world.run(body))


def test_who_goes_on_after_a_failure_does_so_under_tls(files: Files) -> None:
    def body(comm: Communicator) -> float:
        return float(comm.shrink().allreduce(1.0))

    with world_of("tcp", 2, **files.settings) as world:
        assert world.run(body) == [2.0, 2.0]
        for comm in world.communicators:
            transport = comm.current.transport
            assert isinstance(transport, TcpTransport)
            assert transport.group.tls is not None
            assert all(isinstance(lane.sock, TlsSocket) for lane in tcp_link(transport).lanes)


def settings_error(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        collectives.Config.load(settings, environment={})
    return str(caught.value)


def test_settings_are_given_together() -> None:
    assert "tls_key, tls_ca: is needed too" in settings_error(tls_certificate="a.pem")
    assert "tls_certificate: is needed too" in settings_error(tls_key="a.pem", tls_ca="b.pem")
    assert collectives.Config.load({}, environment={}).load_tls() is None


SCRIPT = """
import socket, numpy, collectives
comm = collectives.init()
assert comm.allreduce(numpy.arange(100_000.0))[1] == comm.size
print("rank", comm.rank, "is done")
"""


def test_ronde_run_under_tls(files: Files, tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w") as file:
        file.write(SCRIPT)
    settings = [f"--set={key}={value}" for key, value in files.settings.items()]
    done = ronde("run", "-np", "2", "--transport", "tcp", *settings, script)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"is done") == 2


def test_ronde_run_refuses_bad_certificates_before_it_starts_anything(files: Files) -> None:
    done = ronde("run", "-np", "2", "true", extra={**files.variables, "RONDE_TLS_KEY": "/nowhere/key.pem"})
    assert done.returncode != 0
    assert b"tls_key='/nowhere/key.pem': cannot be read" in done.stderr
    assert b"Traceback" not in done.stderr


def test_ronde_doctor_tells_of_bad_certificates(files: Files) -> None:
    assert ronde("doctor", extra=files.variables).returncode == 0
    done = ronde("doctor", extra={**files.variables, "RONDE_TLS_CA": "/nowhere/ca.pem"})
    assert done.returncode == 1
    assert b"tls_ca='/nowhere/ca.pem': cannot be read" in done.stdout


def rank_sum() -> float:
    return float(collectives.allreduce(float(collectives.rank())))


def test_run_from_python_under_tls(files: Files) -> None:
    code = (
        "import collectives\n"
        "from tests.security.test_tls_links import rank_sum\n"
        "if __name__ == '__main__':\n"
        "    assert collectives.run(rank_sum, np=2, transport='tcp', timeout=60) == [1.0, 1.0]\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(files.variables), capture_output=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
