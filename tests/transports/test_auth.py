"""The handshake, without sockets."""

from __future__ import annotations

import pytest

from transports import auth
from transports.errors import ConfigError, ConnectError

SECRET = b"0123456789abcdef"


def shake(client: auth.Client, server: auth.Server) -> None:
    server.verify(client.answer(server.challenge(client.hello)))


def test_messages_have_the_lengths_that_are_promised() -> None:
    client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
    challenge = server.challenge(client.hello)
    proof = client.answer(challenge)
    assert (len(client.hello), len(challenge), len(proof)) == (
        auth.HELLO_BYTES,
        auth.CHALLENGE_BYTES,
        auth.PROOF_BYTES,
    )
    server.verify(proof)
    assert SECRET not in client.hello + challenge + proof


def test_client_refuses_a_server_without_the_secret() -> None:
    with pytest.raises(ConnectError, match="job's secret"):
        shake(auth.Client(SECRET, b"p"), auth.Server(SECRET[::-1], b"p"))


def test_server_refuses_a_client_without_the_secret() -> None:
    client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
    server.challenge(client.hello)
    for guess in (b"", bytes(auth.PROOF_BYTES)):
        with pytest.raises(ConnectError, match="job's secret"):
            server.verify(guess)


def test_challenge_sent_back_is_no_proof() -> None:
    client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
    challenge = server.challenge(client.hello)
    with pytest.raises(ConnectError):
        server.verify(challenge[auth.NONCE :])


def test_another_purpose_is_refused() -> None:
    with pytest.raises(ConnectError, match="another job"):
        shake(auth.Client(SECRET, b"store"), auth.Server(SECRET, b"link"))
    with pytest.raises(ConnectError, match=r"refused: .*another job"):
        auth.Client(SECRET, b"store").answer(auth.REFUSAL)


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n\r\n".ljust(auth.HELLO_BYTES), bytes(auth.HELLO_BYTES)])
def test_another_protocol_is_refused(hello: bytes) -> None:
    with pytest.raises(ConnectError, match="does not speak"):
        auth.Server(SECRET, b"p").challenge(hello)


def test_recorded_handshake_is_worthless_on_both_ends() -> None:
    client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
    challenge = server.challenge(client.hello)
    proof = client.answer(challenge)
    later = auth.Server(SECRET, b"p")
    later.challenge(client.hello)
    with pytest.raises(ConnectError):
        later.verify(proof)
    with pytest.raises(ConnectError):
        auth.Client(SECRET, b"p").answer(challenge)


def test_secrets() -> None:
    assert len(auth.new_secret()) >= auth.MIN_SECRET
    assert auth.new_secret() != auth.new_secret()
    assert auth.check_secret(b"") == b""
    assert auth.check_secret(SECRET) == SECRET
    with pytest.raises(ConfigError, match=r"5 bytes: .*16") as caught:
        auth.check_secret(b"short")
    assert "short" not in str(caught.value)
