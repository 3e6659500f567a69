"""The driver's door for Spark's tasks, before anything is known of who knocks. Spark itself is not needed."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import frontends
from collectives.launch import Place

SECONDS = 60.0


@pytest.fixture
def module() -> Iterator[ModuleType]:
    path = Path(frontends.__path__[0]) / "spark" / "desk.py"
    spec = importlib.util.spec_from_file_location("desk_alone", path)
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["desk_alone"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
        yield found
    finally:
        del sys.modules["desk_alone"]


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
    with Client(desk.invitation.address, authkey=desk.invitation.key) as link:
        link.send(module.Arrival(task, Place("n", "a"), 1, ("a", 1)))
        number, message = desk.events.get(timeout=SECONDS)
        assert (number, message.task) == (task, task)
    assert desk.events.get(timeout=SECONDS)[1] == module.Gone()


def test_l5_a_silent_or_slow_connection_is_closed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_SECONDS", 0.5)
    with (
        module.Desk("127.0.0.1", "127.0.0.1") as desk,
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
    with module.Desk("127.0.0.1", "127.0.0.1") as desk:
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
    monkeypatch.setattr(module, "KNOWN_SECONDS", 5.0)
    with (
        module.Desk("127.0.0.1", "127.0.0.1") as desk,
        Client(desk.invitation.address, authkey=desk.invitation.key) as link,
    ):
        monkeypatch.setattr(module, "KNOWN_SECONDS", 0.0)
        time.sleep(0.5)
        link.send(module.Arrival(1, Place("n", "a"), 1, ("a", 1)))
        assert desk.events.get(timeout=SECONDS)[0] == 1
