"""Stores that cannot be reached, or no longer: who is in haste does not wait for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from transports.errors import AbortedError, RendezvousError
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import Store

SECRET = b"a secret for tests only"
PATIENT = 5.0
"""Seconds that nothing here may take. In haste are 0.2, and 1 for causes; others wait for 10."""


@pytest.fixture
def silent() -> Iterator[Store]:
    """A store whose server takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = TcpStore(*listener.getsockname(), SECRET, connect_deadline=time.monotonic() + 60)
        yield store
        store.close()


@pytest.fixture
def served() -> Iterator[Store]:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        store = TcpStore(*server.address, SECRET)
        yield store
        store.close()


def test_a_time_out_bounds_every_call(silent: Store) -> None:
    begun = time.monotonic()
    limited = silent.prefixed("part").with_timeout(0.2)
    with pytest.raises(RendezvousError, match="store at tcp://"):
        limited.get("key", time.monotonic())
    with pytest.raises(RendezvousError, match="store at tcp://"):
        limited.set("key", b"value")
    assert time.monotonic() - begun < PATIENT


def test_haste_is_a_view_of_the_same_store(served: Store) -> None:
    part = served.prefixed("part")
    part.set("key", b"value")
    assert part.with_timeout(5.0).get("key", time.monotonic()) == b"value"
    assert served.with_timeout(5.0).prefixed("part").add("counter", 2) == 2
    assert part.get("counter", time.monotonic()) == b"2"


def test_a_store_in_memory_is_never_out_of_reach() -> None:
    store = MemoryStore()
    assert store.with_timeout(1.0) is store
    assert store.local_address() is None
    store.close()


def test_an_unreachable_store_is_tried_once_for_a_cause(silent: Store) -> None:
    causes = Causes(silent)
    begun = time.monotonic()
    assert causes.fetch(0.0) is None
    for _ in range(20):
        causes.publish(AbortedError("enough"))
        assert causes.fetch(1.0) is None
    assert time.monotonic() - begun < PATIENT


def test_loopback_leads_nowhere(served: Store) -> None:
    assert served.local_address() is None
    served.set("key", b"value")
    assert served.prefixed("part").local_address() is None
