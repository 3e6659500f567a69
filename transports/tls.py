"""TLS between hosts: the certificates of a job, and TLS sockets with the behaviour of plain sockets.

Both ends present a certificate that the job's certificate authority has signed, by TLS 1.3 (RFC 8446) or newer. Names
in certificates are not compared: ranks are found by address, and the job's secret proves membership of the job. The
proof of the secret is bound to the certificates of both ends, like tls-server-end-point (RFC 5929) for one end. A
binding to the connection itself, tls-exporter (RFC 9266), is not available in Python's `ssl`. A machine that has a
certificate of the same authority, but not the key of either end, therefore cannot relay proofs between two ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from transports.errors import ConfigError, ConnectError

_RECORD_BYTES: Final = 1 << 14
"""Maximum size of a TLS record. After a partial write, the same record must be written again."""
_BURST_BYTES: Final = 1 << 18
"""Maximum number of bytes of one write: the caller holds a lock."""
_FOREIGN: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
"""OpenSSL's reasons for data that is not TLS. OpenSSL itself sends no alert in these cases."""
_ONE_SIDED: Final = "is TLS set at one end only?"
REFUSAL: Final = b"\x15\x03\x01\x00\x02\x02\x46"
"""The alert protocol_version (RFC 8446, 6): the answer when only one of the two ends uses TLS."""


class Tls:
    """This end's certificate, and the authority that must have signed the other end's.

    certificate  PEM file with the certificate and the intermediate certificates
    key          PEM file with its private key, not encrypted
    ca           PEM file with the certificates of the trusted authorities

    files   the absolute paths of the three

    The constructor reads the files. Raises ConfigError naming the setting, the file and the problem.
    """

    def __init__(self, certificate: str, key: str, ca: str) -> None:
        self.files = os.path.abspath(certificate), os.path.abspath(key), os.path.abspath(ca)
        named = {"tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
        texts = {setting: _text(setting, path) for setting, path in named.items()}
        self._own = _first_certificate(certificate, texts["tls_certificate"])
        self._serving = _context(ssl.PROTOCOL_TLS_SERVER, TlsSocket, certificate, key, ca)
        self._serving.num_tickets = (
            0  # sessions are never resumed, and a rank that only writes would not read the tickets
        )
        self._dialing = _context(ssl.PROTOCOL_TLS_CLIENT, TlsSocket, certificate, key, ca)

    def accept(self, sock: socket.socket) -> TlsSocket:
        """A TLS connection on an accepted, non-blocking socket, which it takes over. It is non-blocking, too."""
        return cast(TlsSocket, self._serving.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))

    def dial(self, sock: socket.socket) -> TlsSocket:
        """A TLS connection on a connected, non-blocking socket, which it takes over. It is non-blocking, too."""
        return cast(TlsSocket, self._dialing.wrap_socket(sock, do_handshake_on_connect=False))

    def call(self, sock: socket.socket) -> socket.socket:
        """A TLS connection on a connected, blocking socket with a timeout. The handshake is done on return.

        Raises ConnectError if one end refuses the other, OSError if the connection breaks or ends.
        """
        try:
            return self._dialing.wrap_socket(sock)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise ConnectionResetError(explain(error)) from error
        except ssl.SSLError as error:
            raise ConnectError(explain(error)) from error

    def bind(self, sock: socket.socket, purpose: bytes) -> bytes:
        """`purpose`, for `transports.auth`, bound to the certificates of both ends. Call it after the handshake."""
        assert isinstance(sock, ssl.SSLSocket)
        other = sock.getpeercert(binary_form=True)
        assert other is not None
        ends = (self._own, other) if sock.server_side else (other, self._own)
        return purpose + b" under TLS " + b"".join(hashlib.sha256(end).digest() for end in ends)


class TlsSocket(ssl.SSLSocket):
    """A non-blocking TLS connection with the interface of a plain socket: BlockingIOError when it would block, a short
    count only when no more can be read, writes of several buffers.

    Two differences remain. After a read, bytes may be `pending()`, which no selector reports. After a partial write,
    the next write must begin with the remaining bytes and be no shorter (`midway`). The first calls, or `shake`, do
    the handshake. While the connection has a timeout it is an ordinary ssl.SSLSocket.
    """

    midway = False
    """True while a record is partly written."""
    _shaken = False
    _trouble: OSError | None = None

    def shake(self) -> bool:
        """Continue the handshake; True once it is done, False while a message of the other end is missing.

        Raises OSError (ssl.SSLError: see `explain`), ConnectError.
        """
        if not self._shaken:
            try:
                self.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLWantWriteError:  # some hundred bytes into an empty buffer
                raise ConnectError("the connection does not accept the bytes of the TLS handshake") from None
            except ssl.SSLError as error:
                if error.reason in _FOREIGN and self.server_side:
                    with contextlib.suppress(OSError):
                        socket.socket.send(self, REFUSAL)
                raise
            self._shaken = True
        return True

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        if self.gettimeout() != 0.0:
            return super().recv_into(buffer, nbytes, flags)
        if not self.shake():
            raise BlockingIOError
        if self._trouble is not None:
            raise self._trouble
        got = 0
        with memoryview(buffer) as view:
            try:
                while got < len(view):
                    with view[got:] as rest:
                        count = super().recv_into(rest)
                    if not count:
                        break
                    got += count
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not got:
                    raise BlockingIOError from None
            except OSError as error:
                if not got:
                    raise
                self._trouble = error  # raised after the bytes that came before it
        return got

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        buffer = bytearray(buflen)
        return bytes(buffer[: self.recv_into(buffer)])

    def send(self, data: Any, flags: int = 0) -> int:
        if self.gettimeout() != 0.0:
            return super().send(data, flags)
        return self.sendmsg((memoryview(data),))

    def sendmsg(self, buffers: Iterable[memoryview], *args: object) -> int:  # type: ignore[override]
        if not self.shake():
            raise BlockingIOError
        sent = 0
        try:
            for record in _records(buffers):
                count = super().send(record)
                self.midway = False
                sent += count
                if count < len(record) or sent >= _BURST_BYTES:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self.midway = True
            if not sent:
                raise BlockingIOError from None
        except OSError:
            with contextlib.suppress(BlockingIOError):
                self.recv(1)  # raises the alert of the other end, if one came
            raise
        return sent


def pending(sock: socket.socket | None) -> bool:
    """True if TLS holds decrypted bytes of a connection that were not read yet."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0


def midway(sock: socket.socket | None) -> bool:
    """True if the next write of a connection must be the rest of the last one."""
    return isinstance(sock, TlsSocket) and sock.midway


def explain(error: ssl.SSLError) -> str:
    """Explanation of a TLS failure, with the other end as 'it'."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return f"it closed the connection during the handshake of TLS: refused, its process ended, or {_ONE_SIDED}"
    reason = error.reason or "no reason given"
    words = reason.lower().replace("_", " ")
    if "_ALERT_" in reason:
        return f"it refused the handshake of TLS: {words}"
    return f"it does not speak TLS ({words}): {_ONE_SIDED}" if reason in _FOREIGN else f"TLS failed: {words}"


def suspicion(data: bytes | bytearray) -> str:
    """Addition to an error if the bytes that came are a record of TLS (handshake or alert); else empty."""
    return f"; what it sent is TLS: {_ONE_SIDED}" if data[:2] in (b"\x16\x03", b"\x15\x03") else ""


def _records(buffers: Iterable[memoryview]) -> Iterator[memoryview | bytearray]:
    """The bytes of `buffers` in whole records, the last one perhaps shorter; large buffers are not copied."""
    gathered = bytearray()
    for view in buffers:
        start = 0
        if gathered:
            start = min(_RECORD_BYTES - len(gathered), len(view))
            gathered += view[:start]
            if len(gathered) == _RECORD_BYTES:
                yield gathered
                gathered = bytearray()
        while len(view) - start >= _RECORD_BYTES:
            yield view[start : start + _RECORD_BYTES]
            start += _RECORD_BYTES
        gathered += view[start:]
    if gathered:
        yield gathered


def _context(
    protocol: ssl._SSLMethod, kind: type[ssl.SSLSocket], certificate: str, key: str, ca: str
) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.sslsocket_class = kind
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse() -> NoReturn:
        raise ConfigError(f"tls_key={key!r}: is encrypted; it must be readable without a passphrase")

    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"tls_ca={ca!r}: holds no certificates in PEM form ({_reason(error)})") from error
    try:
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key={key!r}: is not the key of tls_certificate={certificate!r}") from error
        raise ConfigError(
            f"tls_certificate={certificate!r}, tls_key={key!r}: cannot be used as certificate and key in PEM form "
            f"({_reason(error)})"
        ) from error
    return context


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _text(setting: str, path: str) -> str:
    try:
        return Path(path).read_text("ascii", errors="replace")
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise ConfigError(f"{setting}={path!r}: cannot be read: {error}") from error


def _first_certificate(path: str, text: str) -> bytes:
    """The first certificate of a PEM text in DER form, as the other end receives it."""
    found = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", text, re.DOTALL)
    try:
        return ssl.PEM_cert_to_DER_cert(found[0]) if found else _nothing(path)
    except ValueError as error:
        raise ConfigError(f"tls_certificate={path!r}: holds a certificate that cannot be read: {error}") from error


def _nothing(path: str) -> NoReturn:
    raise ConfigError(f"tls_certificate={path!r}: holds no certificate in PEM form")
