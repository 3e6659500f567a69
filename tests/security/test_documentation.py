"""The statements of docs/security.md agree with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.security.certificates import Files
from tests.security.test_tls import link, recv
from transports import auth, errors, matching, packed, store
from transports.rendezvous import book, server, wire
from transports.shm import board, exposing
from transports.tcp import Options, frames, handshake, listener

PAGE = (Path(__file__).parent.parent.parent / "docs" / "security.md").read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_certificates_are_made_as_shown(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("ca.key", "node1.key", "node2.key"))
    one, other = (
        Files(str(tmp_path / f"{node}.pem"), str(tmp_path / f"{node}.key"), str(tmp_path / "ca.pem"))
        for node in ("node1", "node2")
    )
    for ours, theirs in ((one, other), (other, one)):
        with link(ours.load(), theirs.load()) as (client, end):
            client.send(b"hello")
            assert recv(end, 5) == b"hello"


def row(of: str) -> str:
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {of}")]
    return found


def test_the_limits_are_those_in_the_table() -> None:
    strangers = row("connections that are not authenticated yet")
    assert f"{listener.MAX_UNAUTHENTICATED} for each listener" in strangers
    assert f"after {handshake.CROWDED_SECONDS:g} s" in strangers
    assert (server.MAX_UNAUTHENTICATED, server.CROWDED_SECONDS) == (
        listener.MAX_UNAUTHENTICATED,
        handshake.CROWDED_SECONDS,
    )
    assert f"{Options().handshake_timeout:g} s" in row("time for the authentication")
    assert f"the store {server.HANDSHAKE_SECONDS:g} s" in row("time for the authentication")
    proof = auth.HELLO_BYTES + auth.PROOF_BYTES
    assert f"{proof + frames.HEADER.size} to a rank, {proof} to the store" in row(
        "bytes read before the authentication"
    )
    assert f"| {listener.MAX_REFUSALS_LOGGED} for" in row("refusals that are logged")
    stored = f"{store.MAX_KEY_BYTES} bytes, {store.MAX_VALUE_BYTES >> 20} MiB, {book.MAX_STORED >> 20} MiB"
    assert stored in row("a key, a value, all values of the store")
    assert f"1 MiB and {wire.MAX_FRAME - (1 << 20)} bytes" in row("a frame to or from the store")
    cause = row("the cause of an abort")
    assert f"{errors.LONGEST_TEXT} characters" in cause
    assert f"{frames.MAX_CONTROL_BYTES >> 10} KiB, in shared memory {board.CAUSE_BYTES >> 10} KiB" in cause
    early = row("frames that came before their receive")
    assert (
        f"{Options().max_parked_bytes >> 30} GiB together (`max_parked_bytes`), {matching.MAX_UNEXPECTED_FRAMES:,}"
        in early
    )
    assert f"{frames.MAX_CONNECTIONS} from each rank" in row("connections for pieces of large messages")
    assert f"{packed.MAX_BYTES >> 20} MiB, {packed.MAX_ITEMS:,} items" in row("packed values")
    offers = row("offers of windows")
    assert f"{exposing.MAX_OFFER_BYTES >> 10} KiB each, {exposing.MAX_OFFERS} unanswered" in offers
