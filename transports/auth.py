"""Mutual proof that both ends of a link know the job's secret, without ever sending it.

Challenge and response with HMAC-SHA256 (RFC 2104), sans I/O: three messages of fixed length, the same for every
connection and store access.

    client -> server   HELLO    magic, version, client nonce, purpose digest
    server -> client   CHALLENGE   server nonce, HMAC(secret, "server" + transcript)
    client -> server   PROOF    HMAC(secret, "client" + transcript)

A server that is there for another purpose may say so by REFUSAL in place of the CHALLENGE, before it hangs up.

The transcript holds both nonces and the purpose (the identity of the link: job, ranks, generation), so a recorded
handshake is worthless for any other link. Digests are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from transports import tls
from transports.errors import ConfigError, ConnectError

MAGIC = b"RONDE\x00\x00\x01"
NONCE = 16
DIGEST = 32
HELLO_BYTES = len(MAGIC) + NONCE + DIGEST
CHALLENGE_BYTES = NONCE + DIGEST
REFUSAL = bytes(CHALLENGE_BYTES)
PROOF_BYTES = DIGEST
MIN_SECRET = 16


def new_secret() -> bytes:
    """A fresh per-job secret of 32 random bytes."""
    return os.urandom(32)


def check_secret(secret: bytes) -> bytes:
    """Returns `secret` if it is valid. An empty secret is valid and means that nothing is authenticated.

    Raises ConfigError, which does not show the secret, if it is too short.
    """
    if 0 < len(secret) < MIN_SECRET:
        raise ConfigError(f"the job's secret has {len(secret)} bytes: at least {MIN_SECRET} are needed")
    return secret


def _mac(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, role + transcript, hashlib.sha256).digest()


class Client:
    """The connecting side: send `hello`, feed the challenge, send the proof it returns."""

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        self._secret = secret
        nonce, digest = os.urandom(NONCE), hashlib.sha256(purpose).digest()
        self._transcript = nonce + digest
        self.hello = MAGIC + nonce + digest

    def answer(self, challenge: bytes) -> bytes:
        """The proof for the server's CHALLENGE. Raises ConnectError if it refuses or does not know the secret."""
        if challenge == REFUSAL:
            raise ConnectError("it refused: it belongs to another job or generation, or is another service")
        transcript = self._transcript + challenge[:NONCE]
        if not hmac.compare_digest(challenge[NONCE:], _mac(self._secret, b"server", transcript)):
            raise ConnectError("the other end does not know the job's secret")
        return _mac(self._secret, b"client", transcript)


class Server:
    """The accepting side: feed the HELLO, send the challenge it returns, feed the proof."""

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        self._secret = secret
        self._digest = hashlib.sha256(purpose).digest()
        self._transcript = b""

    def challenge(self, hello: bytes) -> bytes:
        """The CHALLENGE for the client's HELLO. Raises ConnectError for another protocol, version or purpose."""
        if hello[: len(MAGIC)] != MAGIC:
            hint = tls.suspicion(hello)
            raise ConnectError(f"the other end does not speak this version of Ronde's protocol{hint}")
        if not hmac.compare_digest(hello[len(MAGIC) + NONCE :], self._digest):
            raise ConnectError("the other end asked for another job, generation or service")
        nonce = os.urandom(NONCE)
        self._transcript = hello[len(MAGIC) :] + nonce
        return nonce + _mac(self._secret, b"server", self._transcript)

    def verify(self, proof: bytes) -> None:
        """Raises ConnectError if the client does not know the secret."""
        if not hmac.compare_digest(proof, _mac(self._secret, b"client", self._transcript)):
            raise ConnectError("the other end does not know the job's secret")
