"""Certificates and sockets under TLS: what they accept, and that they behave like sockets without."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.certificates import Authority, Files
from transports import tls
from transports.errors import ConfigError
from transports.tls import Tls, TlsSocket


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback, which do not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as opened:
        near = opened.enter_context(socket.create_connection(listener.getsockname()))
        far = opened.enter_context(listener.accept()[0])
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        yield near, far


@contextmanager
def link(ours: Tls, theirs: Tls) -> Iterator[tuple[TlsSocket, TlsSocket]]:
    """The same under TLS, the handshake done. Raises what an end raises that does not accept the other."""
    with connection() as (near, far), ours.dial(near) as client, theirs.accept(far) as server:
        while not all([client.shake(), server.shake()]):
            pass
        yield client, server


def recv(end: TlsSocket, count: int) -> bytes:
    """Read, once there is something to be read."""
    assert end.pending() or select.select([end], [], [], 20)[0]
    return end.recv(count)


def error_of(ours: Tls, theirs: Tls) -> str:
    """The error of the end that refuses the other."""
    with pytest.raises(ssl.SSLError) as caught, link(ours, theirs):
        pass
    return tls.explain(caught.value)


# Who is accepted


def test_ends_of_one_authority_accept_each_other(authority: Authority) -> None:
    with link(authority.end().load(), authority.end().load()) as (client, server):
        assert client.version() == server.version() == "TLSv1.3"
        client.send(b"question")
        assert recv(server, 100) == b"question"
        server.send(b"answer")
        assert recv(client, 100) == b"answer"


def test_another_authority_is_refused(files: Files, strange_files: Files) -> None:
    mixed = Files(strange_files.certificate, strange_files.key, files.ca).load()
    assert "certificate is not accepted: " in error_of(files.load(), strange_files.load())
    assert "certificate is not accepted: " in error_of(files.load(), mixed)
    assert "certificate is not accepted: " in error_of(mixed, files.load())


def test_an_expired_certificate_is_refused(authority: Authority, files: Files) -> None:
    expired = authority.end(expired=True).load()
    assert error_of(files.load(), expired) == "its certificate is not accepted: certificate has expired"
    assert error_of(expired, files.load()) == "its certificate is not accepted: certificate has expired"


def test_an_end_without_a_certificate_is_refused(files: Files) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca)
    with connection() as (near, far), files.load().accept(far) as server:
        client = context.wrap_socket(near, do_handshake_on_connect=False)

        def shake() -> None:
            while not server.shake():
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()

        with client, pytest.raises(ssl.SSLError) as caught:
            shake()
        assert "did not return a certificate" in tls.explain(caught.value)


def test_older_versions_are_refused(files: Files) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.certificate, files.key)
    with connection() as (near, far), files.load().accept(far) as server:
        client = context.wrap_socket(near, do_handshake_on_connect=False)
        with client, pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
            server.shake()


def test_the_purpose_is_bound_to_both_certificates(authority: Authority) -> None:
    ends = [authority.end().load() for _ in range(2)]
    purposes = []
    for ours, theirs in (ends, ends[::-1], (ends[0], ends[0])):
        with link(ours, theirs) as (client, server):
            assert ours.bind(client, b"store") == theirs.bind(server, b"store")
            purposes.append(ours.bind(client, b"store"))
    assert len(set(purposes)) == 3


# Files


def broken(files: Files, where: Path) -> dict[str, tuple[Files, str]]:
    junk, empty = where / "junk", where / "empty"
    junk.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    empty.write_bytes(b"")
    good = files.certificate, files.key, files.ca
    missing = str(where / "missing.pem")
    return {
        "no certificate": (Files(missing, *good[1:]), f"tls_certificate={missing!r}: .*No such file"),
        "no key": (Files(good[0], missing, good[2]), f"tls_key={missing!r}: .*No such file"),
        "no authority": (Files(*good[:2], missing), f"tls_ca={missing!r}: .*No such file"),
        "a directory": (Files(good[0], str(where), good[2]), "tls_key=.*: .*directory"),
        "a NUL": (Files(good[0], "a\0b", good[2]), "tls_key=.*: .*null"),
        "empty certificate": (Files(str(empty), *good[1:]), "tls_certificate=.*empty': .*no certificate"),
        "junk certificate": (Files(str(junk), *good[1:]), "tls_certificate=.*junk', tls_key=.*: "),
        "key as certificate": (Files(good[1], *good[1:]), "tls_certificate=.*key.pem': .*no certificate"),
        "empty key": (Files(good[0], str(empty), good[2]), "tls_key=.*empty': "),
        "empty authority": (Files(*good[:2], str(empty)), "tls_ca=.*empty': .*no certificates"),
        "junk authority": (Files(*good[:2], str(junk)), "tls_ca=.*junk': .*no certificates"),
    }


def test_errors_name_the_setting_the_file_and_the_reason(files: Files, tmp_path: Path) -> None:
    for what, (bad, text) in broken(files, tmp_path).items():
        with pytest.raises(ConfigError, match=text):
            print(what, bad.load())


def test_a_key_of_another_certificate_is_refused(authority: Authority, files: Files) -> None:
    other = authority.end()
    with pytest.raises(ConfigError, match=r"tls_key=.*: .*tls_certificate="):
        Tls(files.certificate, other.key, files.ca)


def test_an_encrypted_key_is_refused_without_a_prompt(files: Files, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    secret = serialization.BestAvailableEncryption(b"passphrase")
    form = serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(ConfigError, match=r"tls_key=.*encrypted"):
        Tls(files.certificate, str(locked), files.ca)


# How the sockets behave


def blocked(call: Callable[[], object]) -> bool:
    try:
        call()
    except BlockingIOError:
        return True
    return False


def test_a_read_fills_its_buffer_and_the_rest_is_pending(files: Files) -> None:
    with link(files.load(), files.load()) as (client, server):
        assert client.send(bytes(1000)) == 1000
        assert len(recv(server, 999)) == 999
        assert tls.pending(server)
        assert server.recv(10) == b"\0"
        assert not tls.pending(server)
        assert blocked(lambda: server.recv(10))
        for _ in range(3):
            client.send(bytes(10_000))
        client.close()
        everything = b""
        while part := recv(server, 100_000):
            everything += part
        assert everything == bytes(30_000)
        assert len(recv(server, 100_000)) == 0


def test_the_end_comes_after_all_sent_bytes(files: Files) -> None:
    with link(files.load(), files.load()) as (client, server):
        client.send(b"last words")
        client.close()
        assert recv(server, 100) == b"last words"
        assert recv(server, 100) == b""
        assert recv(server, 100) == b""


def test_a_broken_connection_is_noticed_after_all_received_bytes(files: Files) -> None:
    with link(files.load(), files.load()) as (client, server):
        server.send(b"never read")
        assert select.select([client], [], [], 20)[0]
        client.send(b"last words")
        client.close()  # with something unread: a reset
        assert recv(server, 100) == b"last words"
        with contextlib.suppress(ConnectionResetError):  # many versions of Python make an end of it
            assert recv(server, 100) == b""


def test_changed_bytes_are_an_error(files: Files) -> None:
    with link(files.load(), files.load()) as (client, server):
        os.write(client.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ssl.SSLError, match=r"BAD_RECORD|bad record"):
            recv(server, 100)


@given(st.lists(st.integers(0, 70_000), max_size=30), st.integers())
def test_written_bytes_are_read_however_they_are_cut(files: Files, lengths: list[int], seed: int) -> None:
    """A writer that tries again with what was left and more, as lanes do, and a reader with buffers of any size."""
    rng = random.Random(seed)
    pieces = [rng.randbytes(length) for length in lengths]
    expected = b"".join(pieces)
    waiting, got = [memoryview(piece) for piece in pieces if piece], bytearray()
    known = min(len(waiting), 1)
    with link(files.load(), files.load()) as (client, server):
        while len(got) < len(expected):
            if known and rng.random() < 0.7:
                known = min(len(waiting), known + rng.randrange(3))
                try:
                    sent = client.sendmsg(waiting[:known])
                except BlockingIOError:
                    assert tls.midway(client)
                    sent = 0
                while sent:
                    part = min(sent, len(waiting[0]))
                    waiting[0] = waiting[0][part:]
                    sent -= part
                    if not waiting[0]:
                        del waiting[0]
                        known = max(known - 1, min(len(waiting), 1))
            else:
                buffer = bytearray(rng.choice([1, 24, 512, 1 << 14, 100_000]))
                with contextlib.suppress(BlockingIOError):
                    got += buffer[: server.recv_into(buffer)]
        assert got == expected


def test_one_call_writes_a_bounded_part(files: Files) -> None:
    with link(files.load(), files.load()) as (client, server):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        assert client.send(bytes(4 << 20)) <= 1 << 18


@pytest.mark.parametrize(("sent", "hint"), [(b"\x15\x03\x01\x00\x02", True), (b"\x16\x03", True), (b"RONDE", False)])
def test_records_of_tls_are_recognized(sent: bytes, hint: bool) -> None:
    assert ("at one end only" in tls.suspicion(sent)) is hint


def test_importing_settings_reads_no_certificates() -> None:
    """Without TLS its files are no concern."""
    code = "import collectives; assert collectives.Config.load(environment={}).load_tls() is None"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
