"""Names of hosts that are resolved late or never."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collectives.launch.job.discovery import DiscoveryError, dns
from tests.collectives.launch.launcher import BOUND, RONDE, environment
from transports import interfaces, names
from transports.errors import DeadlineExceeded, RendezvousError
from transports.launchers.torch_store import TorchStore
from transports.rendezvous import TcpStore


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The servers of names do not answer."""
    over, real = threading.Event(), socket.getaddrinfo

    def resolver(host: Any, port: Any, *args: Any, flags: int = 0, **kwargs: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            over.wait(BOUND)
            raise socket.gaierror(socket.EAI_AGAIN, "no server answers")
        return real(host, port, *args, flags=flags, **kwargs)

    def full(name: str = "") -> str:
        over.wait(BOUND)
        return name

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setattr(socket, "getfqdn", full)
    monkeypatch.setattr(names, "RESOLVE_SECONDS", 0.3)
    yield
    over.set()
    for thread in threading.enumerate():
        if thread.name == "ronde-resolver":
            thread.join(BOUND)


def soon() -> float:
    return time.monotonic() + 0.3


ASKED: list[Callable[[], object]] = [
    lambda: names.resolve("far.example", 1, socket.SOCK_STREAM, soon()),
    lambda: names.connect(("far.example", 1), soon()),
    lambda: TcpStore("far.example", 1, b"0123456789abcdef").with_timeout(0.3).peek("a"),
    lambda: TcpStore("far.example", 1, b"0123456789abcdef").get("a", soon()),
    lambda: TorchStore("far.example", 1, "", soon()),
    lambda: dns("far.example", 1).find(),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.usefixtures("silent")
def test_l16_a_name_is_resolved_within_the_deadline(ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.launch.job.discovery.COMMAND_SECONDS", 0.3)
    monkeypatch.setattr("transports.rendezvous.tcp.ATTEMPT_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises((TimeoutError, RendezvousError, DeadlineExceeded, DiscoveryError)):
        ask()
    assert time.monotonic() - began < BOUND / 2


@pytest.mark.long
@pytest.mark.usefixtures("silent")
def test_l16_without_a_deadline_a_name_has_some_seconds() -> None:
    assert not interfaces.is_own("far.example")
    assert names.full_name() == socket.gethostname()


def test_addresses_and_names_are_resolved() -> None:
    for host in ("127.0.0.1", "localhost"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = host, listener.getsockname()[1]
            names.connect(address, time.monotonic() + BOUND).close()
        with pytest.raises(ConnectionRefusedError):
            names.connect(address, time.monotonic() + BOUND)
    with pytest.raises(UnicodeError):
        names.connect(("x" * 70, 1), time.monotonic() + BOUND)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a listener that drops what its backlog has no room for")
def test_the_next_address_of_a_name_is_tried_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as opened:
        answering = opened.enter_context(socket.create_server(("127.0.0.3", 0)))
        port = answering.getsockname()[1]
        opened.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        opened.enter_context(socket.create_connection(("127.0.0.2", port)))  # the backlog is full
        real = socket.getaddrinfo

        def resolver(host: Any, port: Any, *args: Any, flags: int = 0, **kwargs: Any) -> Any:
            if flags & socket.AI_NUMERICHOST:
                return real(host, port, *args, flags=flags, **kwargs)
            return [each for address in ("127.0.0.2", "127.0.0.3") for each in real(address, port, *args, **kwargs)]

        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        with names.connect(("two.example", port), time.monotonic() + 0.6) as link:
            assert link.getpeername() == ("127.0.0.3", port)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, for a network without lo")
def test_l17_without_loopback_a_job_ends_at_once() -> None:
    began = time.monotonic()
    command = ["unshare", "-n", *RONDE, "run", "-np", "2", sys.executable, "-c", "import ronde; ronde.init()"]
    extra = {"RONDE_CONNECT_TIMEOUT": str(2 * BOUND)}
    ended = subprocess.run(command, env=environment(extra), capture_output=True, timeout=BOUND, check=False)
    assert time.monotonic() - began < BOUND
    assert ended.returncode != 0
    assert b"loopback" in ended.stderr
