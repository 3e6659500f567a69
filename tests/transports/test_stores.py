"""One contract for all stores, and what the file and the TCP store promise beyond it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.transports.stores import SECRET, soon
from transports.errors import DeadlineExceeded, RendezvousError
from transports.rendezvous import file as file_module
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.proxy import proxy_of
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import MAX_KEY_BYTES, MAX_VALUE_BYTES, MOST_AWAITED, Store, pack_table, read_rows, read_table

Opener = Callable[[], Store]


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        yield server


@pytest.fixture(params=["memory", "file", "file without flock", "tcp", "proxy", "prefix"])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens the store under test; called again, opens it as another rank does."""
    with contextlib.ExitStack() as opened:
        if request.param in ("memory", "prefix"):
            memory = opened.enter_context(contextlib.closing(MemoryStore()))
            yield (lambda: memory) if request.param == "memory" else (lambda: memory.prefixed("some").prefixed("place"))
        elif request.param == "tcp":
            server = opened.enter_context(TcpStoreServer("127.0.0.1", secret=SECRET))
            yield lambda: opened.enter_context(contextlib.closing(TcpStore(*server.address, SECRET)))
        elif request.param == "proxy":  # two hosts with a proxy each, one of which asks the other
            server = opened.enter_context(TcpStoreServer("127.0.0.1", secret=SECRET))
            first = opened.enter_context(proxy_of(server.url, SECRET, below=3, deadline=soon()))
            second = opened.enter_context(proxy_of(first.url, SECRET, below=1, deadline=soon()))
            turns = itertools.cycle([first, second])
            yield lambda: opened.enter_context(contextlib.closing(TcpStore(*next(turns).address, SECRET)))
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
    with pytest.raises(DeadlineExceeded, match=r"'(some/place/)?missing' "):
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
    with pytest.raises(ValueError, match=r"text'.* 4 bytes .*counter"):
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


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_l15_what_is_under_a_prefix_is_forgotten(kind: str, server: TcpStoreServer) -> None:
    store: Store = MemoryStore() if kind == "memory" else TcpStore(*server.address, SECRET)
    with contextlib.closing(store):
        part = store.prefixed("old")
        for key in ("a", "b/c", "kept"):
            part.set(key, b"value")
        part.put_row("table", 0, 2, b"row")
        part.put_row("full", 0, 1, b"row")
        store.set("older", b"value")
        store.set("old", b"value")
        store.prefixed("very").set("old/a", b"value")
        store.forget("old", ["old/kept"])
        assert part.peek_all(["a", "b/c", "kept", "full"]) == [None, None, b"value", None]
        assert part.rows("table") == []
        assert store.peek_all(["older", "old", "very/old/a"]) == [b"value"] * 3
        part.put_row("table", 0, 1, b"new")
        assert read_table(part.get("table", 0.0)) == [b"new"]
        store.prefixed("very").forget("old")
        assert store.peek("very/old/a") is None


def test_the_first_default_stays(opener: Opener) -> None:
    stores = [opener() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for key in ("a", "b", "c"):
            answers = [pool.submit(store.set_default, key, b"%d" % rank) for rank, store in enumerate(stores)]
            (answer,) = {future.result(30) for future in answers}
            assert answer in [b"%d" % rank for rank in range(6)]
            assert stores[0].set_default(key, b"late") == stores[1].get(key, soon()) == answer
    stores[0].set("empty", b"")
    assert stores[1].set_default("empty", b"late") == b""


def test_table_has_a_value_when_all_rows_are_there(opener: Opener) -> None:
    stores = [opener() for _ in range(5)]
    rows = [b"", b"a", bytes(range(256)), b"same", b"same"]
    assert stores[0].rows("table") == []
    stores[3].put_row("table", 3, 5, rows[3])
    assert stores[0].rows("table") == [None, None, None, rows[3], None]
    assert stores[0].peek("table") is None
    with ThreadPoolExecutor(5) as pool:
        others = [
            pool.submit(stores[place].gather, "table", place, 5, rows[place], soon())
            for place in range(5)
            if place != 3
        ]
        assert [other.result(30) for other in others] == [rows] * 4
    assert read_table(stores[3].get("table", soon())) == rows
    assert stores[3].rows("table") == rows


def test_table_refuses_a_second_row_and_another_size(opener: Opener) -> None:
    one, other = opener(), opener()
    one.put_row("table", 0, 2, b"first")
    with pytest.raises(ValueError, match=r"place=0: .*table '.*table'"):
        other.put_row("table", 0, 2, b"second")
    for size in (1, 3):
        with pytest.raises(ValueError, match=rf"size={size}: table '.*table' .*2 places"):
            other.put_row("table", size - 1, size, b"second")
    assert other.rows("table") == [b"first", None]
    other.put_row("table", 1, 2, b"last")
    assert read_table(one.get("table", soon())) == [b"first", b"last"]


def test_table_that_got_another_value_before_keeps_it(opener: Opener) -> None:
    one, other = opener(), opener()
    one.put_row("table", 0, 2, b"first")
    assert other.set_default("table", b"too late") == b"too late"
    with pytest.raises(ValueError, match="no table"):
        one.gather("table", 1, 2, b"last", soon())
    assert other.get("table", soon()) == b"too late"


@pytest.mark.parametrize(
    ("place", "size", "row"), [(-1, 2, b""), (2, 2, b""), (0, 0, b""), (0, 1 << 21, b""), (0, 1, bytes((1 << 16) + 1))]
)
def test_bad_rows_are_refused(store: Store, place: int, size: int, row: bytes) -> None:
    with pytest.raises(ValueError, match=r"place=|size=|row of 65537 bytes"):
        store.put_row("table", place, size, row)
    assert store.rows("table") == []


def test_peek_all(opener: Opener) -> None:
    one, other = opener(), opener()
    one.set("a", b"1")
    one.add("b", 2)
    assert other.peek_all(["a", "b", "c"]) == [b"1", b"2", None]
    assert other.peek_all([]) == []


@pytest.mark.parametrize("keys", [("key",), ("other", "key"), ("key", "other", "third")])
def test_awaited_values_are_waited_for_in_slices(opener: Opener, keys: tuple[str, ...]) -> None:
    one, other = opener(), opener()
    with contextlib.closing(one.awaited(*keys)) as awaited:
        for _ in range(3):
            assert awaited.wait(time.monotonic() + 0.01) is None
        for value in (b"value", b"again"):
            other.set("key", value)
            assert awaited.wait(soon()) == (keys.index("key"), value)
            other.delete("key")
            assert awaited.wait(time.monotonic() + 0.01) is None
        if len(keys) > 1:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(awaited.wait, soon())
                assert not wait([waiting], 0.02).done
                other.set("other", b"at last")
                assert waiting.result(30) == (keys.index("other"), b"at last")
    with pytest.raises(ValueError, match="awaited at once"):
        one.awaited(*map(str, range(MOST_AWAITED + 1)))
    awaited = one.awaited("late")
    other.set("late", b"seen")
    found, end = None, soon()
    while found is None and time.monotonic() < end:
        found = awaited.wait(0.0)  # as of a caller that is late each time
    assert found == (0, b"seen")
    awaited = one.awaited("never")
    assert awaited.wait(time.monotonic() + 0.01) is None
    awaited.close()
    other.set("key", b"last")
    assert one.peek("key") == b"last"


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\xc1junk", pack_table([b"a"])[:-1], b"\xc1" + zlib.compress(b"\x05")])
def test_junk_is_no_table(junk: bytes) -> None:
    with pytest.raises(ValueError, match="table"):
        read_table(junk)


def test_table_that_lacks_rows_is_not_complete() -> None:
    with pytest.raises(ValueError, match="rows"):
        read_table(pack_table([b"a", None]))
    assert read_rows(pack_table([b"a", None])) == [b"a", None]


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
        lambda: store.set_default(key, b""),
        lambda: store.put_row(key, 0, 1, b""),
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
