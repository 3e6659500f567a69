"""Bootstrap: stores by URL, and the meeting of the ranks."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.transports.stores import soon
from transports.base import Group, Member
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.packed import pack
from transports.rendezvous import bootstrap
from transports.rendezvous.bootstrap import (
    give_up,
    join,
    open_store,
    pack_member,
    this_member,
)
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.store import Store, pack_table

SECRET = b"a secret of some length"


@pytest.fixture
def store() -> Iterator[Store]:
    with contextlib.closing(MemoryStore()) as store:
        yield store


def meet(stores: Sequence[Store], generation: int = 0) -> list[Group]:
    """The groups that as many ranks as there are stores get, each in a thread."""
    size = len(stores)
    with ThreadPoolExecutor(size) as pool:
        meetings = [
            pool.submit(join, rank, size, stores[rank], secret=SECRET, generation=generation, deadline=soon())
            for rank in range(size)
        ]
        return [meeting.result(60) for meeting in meetings]


# The store


def test_urls_of_stores(tmp_path: Path) -> None:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        for url, kind in ((server.url, TcpStore), ((tmp_path / "a b").as_uri(), FileStore), ("memory:", MemoryStore)):
            with contextlib.closing(open_store(url, SECRET, soon())) as store:
                assert type(store) is kind
                store.set("key", b"value")
                assert store.get("key", soon()) == b"value"
    assert os.listdir(tmp_path) == ["a b"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory:x",
        "/tmp/x",
        "file:",
        "file:x",
        "file://host/x",
        "file:///x?y",
        "http://h:1",
        "redis://h:1",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^store=.*tcp://.*file:///.*memory:"):
        open_store(url, SECRET, soon())


def test_opening_does_no_io(tmp_path: Path) -> None:
    open_store("tcp://192.0.2.1:9", SECRET, soon()).close()
    open_store((tmp_path / "store").as_uri(), SECRET, soon()).close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="3 bytes"):
        open_store("tcp://192.0.2.1:9", b"abc", soon())


# The member


def test_member_is_the_calling_process() -> None:
    member = this_member()
    assert (member.hostname, member.pid) == (socket.gethostname(), os.getpid())
    assert member == this_member()


@pytest.fixture
def forget_host() -> Iterator[None]:
    bootstrap.host_identity.cache_clear()
    yield
    bootstrap.host_identity.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm")
@pytest.mark.usefixtures("forget_host")
def test_host_depends_on_the_mount_of_shared_memory_not_on_the_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    def host() -> str:
        bootstrap.host_identity.cache_clear()
        return this_member().host

    real, here = os.stat, host()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    assert host() == here
    monkeypatch.setattr(os, "stat", lambda path: real("/proc" if path == "/dev/shm" else path))
    elsewhere = host()
    assert elsewhere != here

    def missing(path: str, **options: Any) -> os.stat_result:
        if path == "/dev/shm":
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", missing)
    fallback = host()
    assert fallback not in (here, elsewhere)
    monkeypatch.setattr(uuid, "getnode", lambda: 1 << 40)  # there is no network card: it is random
    without = host()
    monkeypatch.setattr(uuid, "getnode", lambda: 1 << 40 | 5)
    assert host() == without
    monkeypatch.setattr(socket, "gethostname", lambda: "a-third-container")
    assert host() not in (here, elsewhere, fallback)


# The meeting


def test_ranks_meet(store: Store) -> None:
    groups = meet([store] * 5)
    for rank, group in enumerate(groups):
        assert (group.rank, group.size, group.secret, group.generation) == (rank, 5, SECRET, 0)
        assert group.members == (this_member(),) * 5
        group.store.set(f"from {rank}", b"%d" % rank)
    for group in groups:
        assert [group.store.get(f"from {rank}", soon()) for rank in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_members_stand_in_the_order_of_ranks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member(f"host {rank % 2}", f"node{rank}", 100 + rank) for rank in range(4)]
    outcomes: list[Future[Group]] = []
    with ThreadPoolExecutor(4) as pool:
        for rank in (2, 0, 3, 1):
            monkeypatch.setattr(bootstrap, "this_member", functools.partial(members.__getitem__, rank))
            outcomes.append(pool.submit(join, rank, 4, store, deadline=soon()))
            store.get(f"generation-0/members/row/{rank}", soon())
        assert all(outcome.result(30).members == tuple(members) for outcome in outcomes)


def test_ranks_with_other_terms_are_named_on_all_ranks(store: Store) -> None:
    terms = ["over tcp", "", "over shm"]
    with ThreadPoolExecutor(3) as pool:
        outcomes = [pool.submit(join, rank, 3, store, deadline=soon(), terms=terms[rank]) for rank in range(3)]
    for outcome in outcomes:
        with pytest.raises(ConfigError, match="do not fit together") as caught:
            outcome.result(30)
        assert f"rank 0 ({this_member()}) has over tcp, rank 2 ({this_member()}) has over shm" in str(caught.value)


def test_world_of_one(store: Store) -> None:
    group = join(0, 1, store, deadline=soon())
    assert (group.rank, group.size, group.secret, group.generation) == (0, 1, b"", 0)
    assert group.members == (this_member(),)
    group.store.set("key", b"value")


def test_generations_and_the_meeting_keep_to_themselves(store: Store) -> None:
    first = join(0, 1, store, generation=0, deadline=soon())
    second = join(0, 1, store, generation=1, deadline=soon())
    for key in ("members", "key"):
        first.store.set(key, b"first")
        with pytest.raises(DeadlineExceeded):
            second.store.get(key, 0.0)


@pytest.mark.parametrize("shared", [True, False])
def test_64_ranks_meet_over_tcp(shared: bool) -> None:
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server, contextlib.ExitStack() as opened:

        def client() -> Store:
            return opened.enter_context(contextlib.closing(open_store(server.url, SECRET, soon())))

        stores = [client()] * 64 if shared else [client() for _ in range(64)]
        assert [group.rank for group in meet(stores)] == list(range(64))


def test_ranks_meet_in_a_directory(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        stores = [opened.enter_context(contextlib.closing(FileStore(tmp_path / "store"))) for _ in range(8)]
        assert [group.rank for group in meet(stores)] == list(range(8))


def test_the_others_meet_without_a_rank_that_was_given_up(store: Store) -> None:
    with ThreadPoolExecutor(2) as pool:
        there = [pool.submit(join, rank, 4, store, secret=SECRET, generation=None, deadline=soon()) for rank in (1, 3)]
        give_up(store, 0, 4)
        give_up(store, 2, 4)
        groups = [found.result(60) for found in there]
    assert [(group.rank, group.size, group.numbers) for group in groups] == [(0, 2, (1, 3)), (1, 2, (1, 3))]
    with pytest.raises(RendezvousError, match=r"launcher .*rank 2 of 4\b.*process"):
        join(2, 4, store, secret=SECRET, deadline=soon())


def test_a_rank_that_has_entered_is_not_given_up(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, 0, 2, store, secret=SECRET, deadline=soon())
        while not any(store.rows("generation-0/members")):
            time.sleep(0.001)
        give_up(store, 0, 2)
        assert join(1, 2, store, secret=SECRET, deadline=soon()).size == 2
        assert list(first.result(60).numbers) == [0, 1]
    give_up(store, 0, 2)  # the meeting is over


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_is_not_in_the_table_was_given_up(store: Store, alone: bool) -> None:
    given_up = pack([])
    store.set("generation-0/members", pack_table([given_up, given_up if alone else pack_member(this_member())]))
    with pytest.raises(RendezvousError, match=r"launcher .*rank 0 of 2\b.*process"):
        join(0, 2, store, generation=0, deadline=soon())


def test_all_missing_ranks_are_named(store: Store) -> None:
    with pytest.raises(DeadlineExceeded, match=r"^ranks 0-2, 4, 5 of 6 .* s \(rank 3 \(") as caught:
        join(3, 6, store, deadline=soon(0.05))
    assert caught.value.peer == 0


@pytest.mark.parametrize(
    ("patience", "text"), [(-1.0, "0"), (0.0625, "0.062"), (2.5, "2.5"), (30.0, "30"), (1800.0, "1800")]
)
def test_time_that_was_given_is_told(store: Store, patience: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(key: str, deadline: float) -> bytes:
        raise DeadlineExceeded(key)

    monkeypatch.setattr(store, "get", late)
    with monkeypatch.context() as stopped:
        stopped.setattr(time, "monotonic", lambda: 100.0)
        meeting = bootstrap.Meeting(0, 2, this_member(), store, 100.0 + patience)
    with pytest.raises(DeadlineExceeded) as caught:
        meeting.result()
    assert f" within {text} s" in str(caught.value)


def test_whoever_gives_up_first_speaks_for_all(store: Store) -> None:
    with ThreadPoolExecutor(2) as pool:
        patient = {rank: pool.submit(join, rank, 4, store, deadline=soon(60)) for rank in (0, 3)}
        for rank in patient:
            store.get(f"generation-0/members/row/{rank}", soon())
        text = r"^rank 2 of 4 .* s \(rank 1 \("
        with pytest.raises(DeadlineExceeded, match=text):
            join(1, 4, store, deadline=soon(0.05))
        for rank, meeting in patient.items():
            with pytest.raises(DeadlineExceeded, match=text) as caught:
                meeting.result(30)
            assert (caught.value.rank, caught.value.peer) == (rank, 2)
    with pytest.raises(DeadlineExceeded, match=text):
        join(2, 4, store, deadline=soon(60))
    assert len(meet([store] * 4, generation=1)) == 4


def test_two_processes_of_one_rank_both_learn_of_each_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "this_member", lambda: Member("h", "node1", 11))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, 2, 4, store, deadline=soon(60))
        store.get("generation-0/members/row/2", soon())
        monkeypatch.setattr(bootstrap, "this_member", lambda: Member("h", "node2", 22))
        text = r"rank 2 of 4: node1, pid 11, and node2, pid 22"
        with pytest.raises(RendezvousError, match=text):
            join(2, 4, store, deadline=soon(60))
        with pytest.raises(RendezvousError, match=text):
            first.result(30)


def test_duplicate_that_comes_late_does_not_disturb_the_group(store: Store) -> None:
    table = meet([store] * 2) and store.get("generation-0/members", soon())
    with pytest.raises(RendezvousError, match=r"processes .*rank 1 of 2"):
        join(1, 2, store, deadline=soon())
    assert store.get("generation-0/members", soon()) == table


def test_duplicate_of_a_rank_that_died_at_once(store: Store) -> None:
    store.set("generation-0/members/size", b"2")
    store.add("generation-0/members/taken/1", 1)
    with pytest.raises(RendezvousError, match=r"rank 1 of 2: .*without a description, and "):
        join(1, 2, store, deadline=soon())


@pytest.mark.parametrize(("founder", "other"), [((0, 3), (1, 4)), ((0, 8), (1, 2)), ((0, 2), (2, 3))])
def test_sizes_that_differ_are_refused_on_both_sides(
    store: Store, founder: tuple[int, int], other: tuple[int, int]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, *founder, store, deadline=soon(60))
        store.get("generation-0/members/row/0", soon())
        text = rf"size .*rank 0 \(.*\) says {founder[1]}, rank {other[0]} \(.*\) says {other[1]}$"
        with pytest.raises(RendezvousError, match=text):
            join(*other, store, deadline=soon(60))
        with pytest.raises(RendezvousError, match=text):
            first.result(30)


def test_all_came_but_the_last_died_before_it_said_so(store: Store) -> None:
    for rank in (0, 2):
        store.put_row("generation-0/members", rank, 3, pack_member(this_member()))
    store.add("generation-0/members/count", -1)
    with pytest.raises(DeadlineExceeded, match=r"all 3 ranks came.*announce"):
        join(1, 3, store, deadline=soon(0.02))


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x05", b"\x93\x01\x02\x03", b"\x81\xa7members\x92\x01\x02"])
def test_junk_in_the_store_is_an_error(store: Store, junk: bytes) -> None:
    for value in (junk, pack_table([junk, junk])):
        scoped = store.prefixed(f"with {value.hex()}")
        scoped.set("generation-0/members", value)
        with pytest.raises(RendezvousError, match=r"store holds"):
            join(1, 2, scoped, deadline=soon())


def test_table_of_another_size_is_an_error(store: Store) -> None:
    store.set("generation-0/members", pack_table([pack_member(this_member())] * 3))
    with pytest.raises(RendezvousError, match="table of ranks"):
        join(1, 2, store, deadline=soon())


def test_store_that_goes_away_ends_the_meeting() -> None:
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET) as server,
        contextlib.closing(open_store(server.url, SECRET, soon())) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        meeting = pool.submit(join, 0, 2, store, deadline=soon(60))
        while store.rows("generation-0/members") == []:
            time.sleep(0.001)
        server.close()
        with pytest.raises(RendezvousError, match=server.url):
            meeting.result(30)


@pytest.mark.parametrize(
    ("rank", "size", "generation", "text"),
    [
        (0, 0, 0, "size=0: .* 1 or more"),
        (2, 2, 0, "rank=2: .* 0 to 1"),
        (-1, 2, 0, "rank=-1: .* 0 to 1"),
        (0, 2, -1, "generation=-1: .* 0 or more"),
    ],
)
def test_bad_arguments_are_named(store: Store, rank: int, size: int, generation: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        join(rank, size, store, generation=generation, deadline=soon())
    with pytest.raises(ConfigError, match="3 bytes"):
        join(0, 1, store, secret=b"abc", deadline=soon())
