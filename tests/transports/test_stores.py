"""One contract for all stores, and what the file and the TCP store promise beyond it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.transports.stores import SECRET, soon
from transports.errors import DeadlineExceeded, RendezvousError
from transports.rendezvous import file as file_module
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import MAX_KEY_BYTES, MAX_VALUE_BYTES, Store

Opener = Callable[[], Store]


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        yield server


@pytest.fixture(params=["memory", "file", "file without flock", "tcp", "prefix"])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens the store under test; called again, opens it as another rank does."""
    with contextlib.ExitStack() as opened:
        if request.param in ("memory", "prefix"):
            memory = opened.enter_context(contextlib.closing(MemoryStore()))
            yield (lambda: memory) if request.param == "memory" else (lambda: memory.prefixed("some").prefixed("place"))
        elif request.param == "tcp":
            server = opened.enter_context(TcpStoreServer("127.0.0.1", secret=SECRET))
            yield lambda: opened.enter_context(contextlib.closing(TcpStore(*server.address, SECRET)))
        else:
            if request.param == "file without flock":
                monkeypatch.setattr(file_module, "fcntl", None)
            yield lambda: opened.enter_context(contextlib.closing(FileStore(tmp_path / "a" / "store")))


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()


def test_set_get_and_replace(opener: Opener) -> None:
    one, other = opener(), opener()
    for value in (b"first", b"", bytes(range(256))):
        one.set("key", value)
        assert other.get("key", soon()) == value
        assert one.get("key", 0.0) == value


def test_any_key_is_its_own(store: Store) -> None:
    longest = "k" * (MAX_KEY_BYTES - len("some/place/"))
    keys = ["a", "A", "a/b", "a_b", "..", "../a", "/a", " ", "\n", "\0", "é", "e\u0301", "%61", longest, longest[1:]]
    for number, key in enumerate(keys):
        store.set(key, b"%d" % number)
    assert [store.get(key, soon()) for key in keys] == [b"%d" % number for number in range(len(keys))]


def test_get_waits_until_another_sets(opener: Opener) -> None:
    store, other = opener(), opener()
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(store.get, key, soon()) for key in ("key", "key", "counter")]
        assert not wait(waits, 0.05).done
        other.set("unrelated", b"x")
        other.set("key", b"value")
        other.add("counter", 7)
        assert [waiting.result(30) for waiting in waits] == [b"value", b"value", b"7"]


def test_waiting_get_delays_no_other_call(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "late", soon())
        for number in range(20):
            assert store.add("counter", 1) == number + 1
        assert not waiting.done()
        store.set("late", b"now")
        assert waiting.result(30) == b"now"


@pytest.mark.parametrize("patience", [-1.0, 0.0, 0.05])
def test_deadline_names_the_key_and_leaves_the_store_usable(store: Store, patience: float) -> None:
    with pytest.raises(DeadlineExceeded, match=r"'(some/place/)?missing' was not set"):
        store.get("missing", time.monotonic() + patience)
    store.set("missing", b"here")
    assert store.get("missing", time.monotonic() + patience) == b"here"


def test_deadline_may_be_far_away(opener: Opener) -> None:
    store, other = opener(), opener()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "key", math.inf)
        assert not wait([waiting], 0.02).done
        other.set("key", b"value")
        assert waiting.result(30) == b"value"


def test_add_is_atomic_over_threads(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(lambda number: stores[number % 4].add("counter", 1), range(80), timeout=60))
    assert sorted(totals) == list(range(1, 81))
    assert stores[0].get("counter", soon()) == b"80"
    assert stores[1].add("counter", -100) == -20


def test_add_takes_counters_only(store: Store) -> None:
    store.set("text", b"text")
    with pytest.raises(ValueError, match=r"text'.* not a counter"):
        store.add("text", 1)
    assert store.get("text", soon()) == b"text"
    assert store.add("big", 2**63 - 1) == 2**63 - 1
    for amount in (1, 2**80):
        with pytest.raises(ValueError, match=f"amount={amount}"):
            store.add("big", amount)
    assert store.get("big", soon()) == b"9223372036854775807"


def test_delete(opener: Opener) -> None:
    one, other = opener(), opener()
    assert one.delete("key") is False
    one.set("key", b"value")
    one.add("counter", 5)
    assert other.delete("key") is True
    assert other.delete("counter") is True
    assert one.delete("key") is False
    with pytest.raises(DeadlineExceeded):
        one.get("key", 0.0)
    assert one.add("counter", 1) == 1


def test_prefixes_do_not_see_each_other(store: Store) -> None:
    a, b = store.prefixed("a"), store.prefixed("b")
    store.set("key", b"outer")
    a.set("key", b"of a")
    assert a.add("counter", 1) == b.add("counter", 1) == 1
    with pytest.raises(DeadlineExceeded):
        b.get("key", 0.0)
    assert b.delete("key") is False
    assert (store.get("key", soon()), store.get("a/key", soon())) == (b"outer", b"of a")
    a.close()
    assert store.get("a/key", soon()) == b"of a"


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1), "\ud800"])
def test_bad_keys_are_refused(store: Store, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.set(key, b""),
        lambda: store.get(key, soon()),
        lambda: store.add(key, 1),
        lambda: store.delete(key),
    ]
    if type(store).__name__ == "PrefixStore" and not key:
        calls = [lambda: store.prefixed(key)]
    for call in calls:
        with pytest.raises(ValueError):
            call()


def test_values_have_a_limit(store: Store) -> None:
    largest = os.urandom(MAX_VALUE_BYTES)
    store.set("key", largest)
    assert store.get("key", soon()) == largest
    with pytest.raises(ValueError, match="1048577 bytes"):
        store.set("key", largest + b"x")
    assert store.get("key", soon()) == largest


@pytest.mark.parametrize("kind", ["memory", "file", "tcp"])
def test_close_ends_waits_and_later_calls(kind: str, tmp_path: Path, server: TcpStoreServer) -> None:
    stores: dict[str, Store] = {
        "memory": MemoryStore(),
        "file": FileStore(tmp_path / "store"),
        "tcp": TcpStore(*server.address, SECRET),
    }
    store = stores[kind]
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(store.get, f"never {number}", soon()) for number in range(2)]
        assert not wait(waits, 0.05).done
        store.close()
        for waiting in waits:
            with pytest.raises(RendezvousError, match="closed"):
                waiting.result(30)
    store.close()
    for call in (lambda: store.set("k", b""), lambda: store.get("k", soon()), lambda: store.delete("k")):
        with pytest.raises(RendezvousError, match="closed"):
            call()
    with pytest.raises(RendezvousError, match="closed"):
        store.add("k", 1)
