"""Waits up to moments that are further away than the system can wait for."""

from __future__ import annotations

import math
import select
import socket
import threading
import time

import pytest

from transports import names
from transports.launchers.pmi import Line
from transports.moments import LONGEST_WAIT, seconds_until, timeouts
from transports.rendezvous import TcpStore, TcpStoreServer


def test_seconds_until_a_moment() -> None:
    now = time.monotonic()
    assert seconds_until(now - 1) == 0
    assert 9 < seconds_until(now + 10) <= 10
    assert seconds_until(now + 1e18) == seconds_until(math.inf) == LONGEST_WAIT


def test_the_system_waits_so_long() -> None:
    with socket.socket() as ready:
        ready.settimeout(LONGEST_WAIT)
    ready_end, other_end = socket.socketpair()
    with ready_end, other_end, select.epoll() as epoll:
        other_end.send(b"x")
        epoll.register(ready_end, select.EPOLLIN)
        assert epoll.poll(LONGEST_WAIT)
    done = threading.Event()
    done.set()
    assert done.wait(LONGEST_WAIT)


@pytest.mark.parametrize("seconds", [3e6, 1e10, 1e18, math.inf])
def test_far_deadlines(seconds: float) -> None:
    deadline, secret = time.monotonic() + seconds, bytes(32)
    with TcpStoreServer("127.0.0.1", secret=secret) as server:
        with names.connect(server.address, deadline):
            pass
        store = TcpStore(*server.address, secret, connect_deadline=deadline)
        store.set("key", b"value")
        assert store.get("key", deadline) == b"value"
        store.close()
    own, launcher = socket.socketpair()
    with own, launcher:
        launcher.send(b"cmd=barrier_out rc=0\n")
        assert Line(own.fileno()).ask("cmd=barrier_in", "barrier_out", deadline)


def test_what_has_come_is_read_after_the_deadline_too() -> None:
    """The process may have been stopped until then. What comes later is not waited for."""
    ready, other = socket.socketpair()
    with ready, other:
        other.send(b"in time")
        left = timeouts(time.monotonic())
        ready.settimeout(next(left))
        assert ready.recv(16) == b"in time"
        with pytest.raises(TimeoutError):
            next(left)
