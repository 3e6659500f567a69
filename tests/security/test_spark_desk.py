"""The driver's door for Spark's tasks, before anything is known of who knocks. Spark itself is not needed."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import frontends
from collectives.config import Config
from collectives.launch import Place
from tests.security.certificates import Files
from transports.errors import ConnectError

SECONDS = 60.0


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module without its package, which imports PySpark."""
    package = ModuleType("frontends.spark")
    package.__path__ = [str(Path(frontends.__path__[0]) / "spark")]
    before = [name for name in sys.modules if name.startswith("frontends.spark")]
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "frontends.spark", package)
    for name in ("link", "desk"):
        monkeypatch.setitem(sys.modules, f"frontends.spark.{name}", None)
        del sys.modules[f"frontends.spark.{name}"]
    return importlib.import_module("frontends.spark.desk")


def knock(desk: Any) -> socket.socket:
    return socket.create_connection(desk.server_address, SECONDS)


def ends(link: socket.socket) -> bool:
    """True if the other end closes the connection in time."""
    link.settimeout(SECONDS)
    try:
        while link.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def meet(desk: Any, module: ModuleType, task: int) -> None:
    """Be a task."""
    with desk.invitation.accept() as link:
        link.send(module.Arrival(task, Place("n", "a"), 1, ("a", 1)))
        number, message = desk.events.get(timeout=SECONDS)
        assert (number, message.task) == (task, task)
    assert desk.events.get(timeout=SECONDS)[1] == module.Gone()


def test_l5_a_silent_or_slow_connection_is_closed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_SECONDS", 0.5)
    with (
        module.Desk("127.0.0.1", "127.0.0.1", Config()) as desk,
        knock(desk) as silent,
        knock(desk) as slow,
        knock(desk) as wrong,
    ):
        wrong.sendall(b"\0\0\0\4nope")
        began = time.monotonic()
        try:
            while time.monotonic() - began < SECONDS:
                slow.sendall(b"\0")
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - began < SECONDS
        assert ends(silent)
        assert ends(wrong)
        meet(desk, module, 1)


def test_l5_silent_connections_are_limited_and_tasks_get_in(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNKNOWN", 20)
    monkeypatch.setattr(module, "KNOWN_SECONDS", SECONDS)
    monkeypatch.setattr(module, "SHORTEST_SECONDS", 0.02)
    before = threading.active_count()
    with module.Desk("127.0.0.1", "127.0.0.1", Config()) as desk:
        links = [knock(desk) for _ in range(100)]
        try:
            meet(desk, module, 1)
            until = time.monotonic() + SECONDS
            while threading.active_count() > before + 25:
                assert time.monotonic() < until
                time.sleep(0.02)
            assert all(ends(link) for link in links[:70])
        finally:
            for link in links:
                link.close()


def test_l5_a_task_that_is_known_may_take_its_time(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = threading.Event()
    receive = module.Link.receive

    def listen(link: Any) -> Any:
        known.set()
        return receive(link)

    monkeypatch.setattr(module.Link, "receive", listen)
    with (
        module.Desk("127.0.0.1", "127.0.0.1", Config()) as desk,
        desk.invitation.accept() as link,
    ):
        assert known.wait(SECONDS)
        monkeypatch.setattr(module, "KNOWN_SECONDS", 0.0)
        desk.service_actions()
        link.send(module.Arrival(1, Place("n", "a"), 1, ("a", 1)))
        assert desk.events.get(timeout=SECONDS)[0] == 1


def test_a_task_that_does_not_know_the_key_is_refused(module: ModuleType) -> None:
    with module.Desk("127.0.0.1", "127.0.0.1", Config()) as desk:
        stranger = dataclasses.replace(desk.invitation, key=bytes(32))
        with pytest.raises((ConnectError, OSError)):
            stranger.accept()
        meet(desk, module, 1)


def test_a_desk_of_a_stranger_is_refused(module: ModuleType) -> None:
    """A task sends nothing to a driver that does not prove that it knows the key."""
    with (
        module.Desk("127.0.0.1", "127.0.0.1", Config()) as desk,
        module.Desk("127.0.0.1", "127.0.0.1", Config()) as other,
    ):
        misled = dataclasses.replace(desk.invitation, address=other.invitation.address)
        with pytest.raises(ConnectError, match="job's secret"):
            misled.accept()
        assert desk.events.empty()
        assert other.events.empty()


def test_messages_under_tls(module: ModuleType, files: Files) -> None:
    """Large ones at the same time in both directions, by two threads at each end."""
    config = Config(tls_certificate=files.certificate, tls_key=files.key, tls_ca=files.ca)
    text = "x" * 1_000_000
    with module.Desk("127.0.0.1", "127.0.0.1", config) as desk:
        with desk.invitation.accept() as link:
            link.send(module.Arrival(7, Place("n", "a"), 1, ("a", 1)))
            assert desk.events.get(timeout=SECONDS)[0] == 7

            def talk(send: Callable[[Any], None]) -> None:
                for _ in range(20):
                    send(module.Line(text))

            sends = link.send, functools.partial(desk.send, 7)
            writers = [threading.Thread(target=talk, args=(send,)) for send in sends]
            for writer in writers:
                writer.start()
            assert all(link.receive().text == text for _ in range(20))
            assert all(desk.events.get(timeout=SECONDS)[1].text == text for _ in range(20))
            for writer in writers:
                writer.join(SECONDS)
        assert desk.events.get(timeout=SECONDS)[1] == module.Gone()


def test_an_end_without_certificates_is_refused_under_tls(
    module: ModuleType, files: Files, strange_files: Files
) -> None:
    config = Config(tls_certificate=files.certificate, tls_key=files.key, tls_ca=files.ca)
    others = (), (strange_files.certificate, strange_files.key, strange_files.ca)
    with module.Desk("127.0.0.1", "127.0.0.1", config) as desk:
        for tls in others:
            with pytest.raises((ConnectError, OSError)):
                dataclasses.replace(desk.invitation, tls=tls).accept()
        meet(desk, module, 1)
