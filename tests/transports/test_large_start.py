"""The cost of a start, counted in simulated worlds of 10,000 ranks on 157 hosts: no processes, no sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.counting import CountingStore
from tests.transports.stores import soon
from transports.auto import AutoTransport
from transports.base import Group, Member
from transports.packed import pack
from transports.rendezvous.bootstrap import Meeting, enter_next, pack_member
from transports.rendezvous.memory import MemoryStore
from transports.shm.link import ShmLink
from transports.tcp.addresses import exchange
from transports.tcp.link import TcpLink

SIZE = 10_000
PER_HOST = 64
MEMBERS = tuple(
    Member(f"{rank // PER_HOST:032x}", f"node{rank // PER_HOST:04}.cluster.example", 10_000 + rank, 5_000_000 + rank, 7)
    for rank in range(SIZE)
)


@pytest.fixture
def store() -> Iterator[CountingStore]:
    store = CountingStore(MemoryStore())
    yield store
    store.close()


def enter(rank: int, store: CountingStore) -> tuple[int, Meeting]:
    """Let a rank enter its next meeting."""

    def meeting_of(number: int) -> Meeting:
        return Meeting(rank, SIZE, MEMBERS[rank], store.prefixed(f"generation-{number}"), soon())

    return enter_next(rank, store, meeting_of)


@pytest.mark.long
def test_meeting_costs_two_requests_per_rank(store: CountingStore) -> None:
    """Both are those of a table, of which a proxy of the store makes two for all ranks below it."""
    meetings = [enter(rank, store) for rank in range(SIZE)]
    assert store.requests == {"put_row": SIZE}
    assert store.sent < 100 * SIZE
    for generation, meeting in meetings[:3]:
        assert (generation, tuple(meeting.result().values())) == (0, MEMBERS)
    assert store.requests == {"put_row": SIZE, "get": 3}
    table = store.received // 3
    assert table < 20 * SIZE, "the table is compressed, since most of its rows are alike"


@pytest.mark.long
def test_another_meeting_costs_four_requests_more(store: CountingStore) -> None:
    for rank, member in enumerate(MEMBERS):
        store.inner.put_row("generation-0/members", rank, SIZE, pack_member(member))
    assert enter(7, store)[0] == 1
    assert store.requests == {"put_row": 2, "rows": 1, "add": 1, "peek": 1}


def test_a_rank_that_gives_up_reads_the_rows_once(store: CountingStore) -> None:
    for rank in range(0, SIZE, 2):
        Meeting(rank, SIZE, MEMBERS[rank], store, soon()).enter()
    before = store.total
    meeting = Meeting(1, SIZE, MEMBERS[1], store, 0.0)
    meeting.enter()
    with pytest.raises(Exception, match=r"^ranks 3, 5, 7, .*, 65 and 4967 more of 10000 did not come"):
        meeting.result()
    assert store.total - before == 4, "its row, the table, the rows, and the decision"


@pytest.mark.parametrize("rank", [0, 1, 5_000, SIZE - 1])
def test_addresses_cost_two_requests_per_rank(store: CountingStore, rank: int) -> None:
    addresses = [(f"10.7.{other // PER_HOST}.1", 1024 + other * 7 % 60_000) for other in range(SIZE)]
    for other in range(SIZE):
        if other != rank:
            store.inner.put_row("tcp/addresses", other, SIZE, pack(addresses[other]))
    group = Group(rank, MEMBERS, store)
    assert exchange(group, range(SIZE), addresses[rank], soon()) == dict(enumerate(addresses))
    assert store.requests == {"put_row": 1, "get": 1}
    assert store.received < 10 * SIZE


@pytest.mark.parametrize("place", [0, PER_HOST - 1])
def test_ranks_of_a_host_agree_with_two_requests_each(store: CountingStore, place: int) -> None:
    here = tuple(range(PER_HOST, 2 * PER_HOST))
    for other in range(PER_HOST):
        if other != place:
            store.inner.put_row(f"auto/usable/{here[0]}", other, PER_HOST, b"")
    transport = AutoTransport(Group(here[place], MEMBERS, store))
    assert [type(link) for link in transport._choose(soon())] == [ShmLink, TcpLink]
    assert store.requests == {"put_row": 1, "get": 1}
