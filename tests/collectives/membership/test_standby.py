"""The store is lost: a majority of the ranks goes on with a standby, and never both sides of a partition."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from collectives import (
    Communicator,
    Config,
    ConfigError,
    DeadlineExceeded,
    RendezvousError,
    RondeError,
    connect,
    wait_to_join,
)
from collectives.membership import set_bounds
from collectives.membership.registry import Registry
from collectives.membership.standby import Standby, has_majority, standby_ranks
from tests.collectives.membership.changes import SECONDS
from tests.collectives.membership.shrinks import compute
from tests.collectives.membership.test_partition import FarStore
from tests.worlds import COMPILED, SECRET
from transports.base import Group, Member
from transports.rendezvous import MemoryStore, TcpStore, join, parse_url, server
from transports.store import Store

SIZE = 5
BOTH = ["local", "tcp"]


def config(transport: str, standbys: int = 2, **settings: Any) -> Config:
    given = {"transport": transport, "timeout": SECONDS, "calibrate": False, "compiled": COMPILED, **settings}
    return Config.load({**given, "standbys": standbys, "tcp": {"interface": "lo"}}, environment={})


def on_ranks(
    body: Callable[[Communicator], Any], settings: Config, stores: Callable[[int], Store], size: int = SIZE
) -> list[Any]:
    """The results of `body` on the ranks, each a thread; `stores` gives the store of a rank."""

    def rank(number: int) -> Any:
        deadline = time.monotonic() + SECONDS
        comm = connect(join(number, size, stores(number), secret=SECRET, deadline=deadline), settings, deadline)
        with comm:
            compute(comm, list(range(size)))
            return body(comm)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


class Loss:
    """The loss of the store, and of one of `size` ranks with its host."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "LINGER_SECONDS", 0.0)
        self.cut = threading.Event()
        self.store = MemoryStore()
        self._gone = threading.Barrier(size)

    def far(self, _: int) -> Store:
        """The store, as it is for every rank."""
        return FarStore(self.store, self.cut)

    def survived(self, comm: Communicator, lost: int) -> bool:
        """Lose a rank and the store; False on that rank."""
        self._gone.wait(SECONDS)
        self.cut.set()
        if comm.rank == lost:
            comm.abort("its host is switched off")
            comm.close()
        self._gone.wait(SECONDS)
        return comm.rank != lost


def regrouped(comm: Communicator, timeout: float = 1.0) -> Communicator:
    """The next generation. A rank that has closed before the store was lost is awaited until the time-out."""
    new = comm.regroup(timeout=timeout)
    assert new is not None
    return new


def numbers(comm: Communicator) -> list[int]:
    return list(comm.transport.group.numbers)


@pytest.mark.long
@pytest.mark.parametrize("transport", BOTH)
def test_ranks_go_on_after_the_store_and_rank_0_are_lost(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss(SIZE, monkeypatch)

    def body(comm: Communicator) -> list[int] | None:
        if not loss.survived(comm, 0):
            return None
        new = regrouped(comm)
        with new:
            assert new.transport.group.generation == comm.transport.group.generation + 1
            compute(new, [1, 2, 3, 4])
            return numbers(new)

    found = on_ranks(body, config(transport), loss.far)
    assert found == [None, *[[1, 2, 3, 4]] * 4]


def test_a_close_whose_messages_are_not_taken_ends_the_standbys_too() -> None:
    """The fixture of all tests finds threads and sockets that are left."""
    store, closed, settings = MemoryStore(), threading.Barrier(SIZE), config("local", local={"eager_bytes": 0})

    def rank(number: int) -> None:
        deadline = time.monotonic() + SECONDS
        comm = connect(join(number, SIZE, store, secret=SECRET, deadline=deadline), settings, deadline)
        compute(comm, list(range(SIZE)))
        if number == 0:
            comm.send_async(np.ones(4), 1)
            with pytest.raises(DeadlineExceeded):
                comm.close(flush=0.01)
        closed.wait(SECONDS)
        if number != 0:
            comm.close()

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(rank, range(SIZE)))


def test_without_a_standby_the_loss_of_the_store_ends_the_job() -> None:
    cut, store, lost = threading.Event(), MemoryStore(), threading.Barrier(SIZE)

    def body(comm: Communicator) -> None:
        lost.wait(SECONDS)
        cut.set()
        with pytest.raises(RendezvousError, match=r"rank . .*process that serves it$"):
            comm.regroup()

    on_ranks(body, config("local", 0), lambda _: FarStore(store, cut))


@pytest.mark.long
def test_leavers_newcomers_and_bounds_go_by_the_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that goes by the store of a job goes by the standby that took its place."""
    loss, urls = Loss(SIZE, monkeypatch), list[str]()
    set_bounds(loss.store, 2, 4)

    def end(comm: Communicator) -> list[int]:
        with comm:
            compute(comm, [1, 3, 4, 5])
            return numbers(comm)

    def newcomer() -> list[int]:
        with contextlib.closing(TcpStore(*parse_url(urls[0]), SECRET)) as own:
            return end(wait_to_join(own, secret=SECRET, config=config("local"), timeout=SECONDS))

    def body(comm: Communicator) -> list[int] | None:
        if not loss.survived(comm, 0):
            return None
        new = regrouped(comm)
        if new.rank == 0:
            job = new.transport.group.parent_store
            assert isinstance(job, TcpStore)
            roster = Registry(job).read()
            assert (roster.minimum, roster.maximum) == (2, 4)
            urls.append(job.url)
        new.barrier()
        if new.rank == 1:
            new.leave("it was told to")
        while not new.changes_pending():
            new.barrier()
        small = new.regroup()
        if small is None:
            return None
        assert numbers(small) == [1, 3, 4]
        came = pool.submit(newcomer) if small.rank == 0 else None
        while not small.changes_pending():
            small.barrier()
        found = end(regrouped(small))
        assert came is None or came.result(SECONDS) == found
        return found

    with ThreadPoolExecutor(1) as pool:
        found = on_ranks(body, config("local"), loss.far)
    assert found == [None, [1, 3, 4, 5], None, [1, 3, 4, 5], [1, 3, 4, 5]]


@pytest.mark.long
def test_a_standby_is_lost_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the store with rank 0; then the rank whose standby took its place."""
    size = 7
    loss, gone = Loss(size, monkeypatch), threading.Barrier(size - 1)

    def body(comm: Communicator) -> list[int] | None:
        if not loss.survived(comm, 0):
            return None
        new = regrouped(comm)
        if comm.rank == 1:  # it serves the store
            new.abort("its host is switched off too")
            new.close()
            gone.wait(SECONDS)
            return None
        gone.wait(SECONDS)
        newer = regrouped(new)
        with newer:
            compute(newer, [2, 3, 4, 5, 6])
            return numbers(newer)

    found = on_ranks(body, config("local"), loss.far, size)
    assert found == [None, None, *[[2, 3, 4, 5, 6]] * 5]


@pytest.mark.long
@pytest.mark.parametrize(
    ("far", "goes_on"),
    [
        pytest.param({3, 4}, [0, 1, 2], id="majority with the store"),
        pytest.param({1, 2, 3, 4}, [1, 2, 3, 4], id="majority without the store, without rank 0"),
        pytest.param({0, 1, 2}, [0, 1, 2], id="majority without the store, with rank 0"),
        pytest.param({0, 1, 2, 3, 4}, [0, 1, 2, 3, 4], id="all without the store"),
    ],
)
def test_the_majority_goes_on_and_nobody_else(far: set[int], goes_on: list[int]) -> None:
    cut, store, lost = threading.Event(), MemoryStore(), threading.Barrier(SIZE)

    def body(comm: Communicator) -> str:
        lost.wait(SECONDS)
        if comm.rank in far:
            cut.set()
        elif far:  # the messages of the other side do not come
            with pytest.raises(RondeError):
                comm.allreduce(np.ones(3), timeout=0.3)
        try:
            new = regrouped(comm, 0.5)
        except RendezvousError as error:
            return error.message
        with new:
            compute(new, goes_on)
            return "goes on"

    found = on_ranks(body, config("local"), lambda rank: FarStore(store, cut) if rank in far else store)
    assert [rank for rank, outcome in enumerate(found) if outcome == "goes on"] == goes_on
    for rank in set(range(SIZE)) - set(goes_on):
        assert f"{SIZE - len(goes_on)} of {SIZE} ranks are left, no majority" in found[rank]


def test_of_two_halves_the_one_with_rank_0_goes_on() -> None:
    cut, store, lost = threading.Event(), MemoryStore(), threading.Barrier(4)

    def body(comm: Communicator) -> list[int] | str:
        lost.wait(SECONDS)
        if comm.rank < 2:
            cut.set()
        try:
            new = regrouped(comm, 0.5)
        except RendezvousError as error:
            return error.message
        with new:
            return numbers(new)

    found = on_ranks(body, config("local"), lambda rank: FarStore(store, cut) if rank < 2 else store, 4)
    assert found[:2] == [[0, 1], [0, 1]]
    assert all("2 of 4 ranks are left, no majority" in str(text) for text in found[2:])


def test_the_store_is_lost_between_verdict_and_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that could not connect the generation of a verdict agree again, in a standby."""
    cut, store, lost, decided = threading.Event(), MemoryStore(), threading.Barrier(SIZE), threading.Barrier(SIZE - 1)
    share = Standby.share

    def share_late(self: Standby, group: Group, deadline: float) -> None:
        if group.generation == 1:
            decided.wait(SECONDS)
            cut.set()
        share(self, group, deadline)

    monkeypatch.setattr(Standby, "share", share_late)

    def body(comm: Communicator) -> tuple[int, list[int]] | None:
        lost.wait(SECONDS)
        if comm.rank == 0:
            comm.abort("it has had enough")
            return None
        with regrouped(comm) as new:
            compute(new, [1, 2, 3, 4])
            return new.transport.group.generation, numbers(new)

    found = on_ranks(body, config("local"), lambda _: FarStore(store, cut))
    assert found == [None, *[(2, [1, 2, 3, 4])] * 4]


def test_ranks_that_could_not_connect_need_the_majority_of_both_generations() -> None:
    """Three of five ranks agree on a generation of their own and newcomers; it is never connected. Newcomers are the
    majority of that generation, but may not go on without one of the ranks that have connected the last."""
    old, new = [0, 1, 2, 3, 4], [0, 1, 2, 5, 6, 7, 8]
    sides = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [0, 5, 6, 7], [0, 1, 2, 5]]
    assert [[has_majority(members, side) for members in (old, new)] for side in sides] == [
        [True, False],
        [False, False],
        [False, True],
        [False, True],
        [True, True],
    ]
    assert has_majority([7, 3], [7])
    assert not has_majority([7, 3], [3])


def test_standbys_are_on_other_hosts_than_the_store() -> None:
    def chosen(hosts: str, count: int) -> list[int]:
        members = tuple(Member(host, host, pid, 0, 0) for pid, host in enumerate(hosts))
        return standby_ranks(Group(0, members, MemoryStore()), count)

    assert chosen("aabbcc", 2) == [2, 4]
    assert chosen("aabbcc", 4) == [2, 4, 0, 3]
    assert chosen("aaa", 2) == [0, 1]
    assert chosen("ab", 16) == [1, 0]


@pytest.mark.long
def test_ranks_with_another_number_of_standbys_are_refused() -> None:
    store = MemoryStore()

    def rank(number: int) -> RondeError:
        deadline = time.monotonic() + 1.0
        group = join(number, 2, store, secret=SECRET, deadline=deadline)
        with pytest.raises(RondeError) as caught:
            connect(group, config("tcp", 1 + number), deadline)
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(rank, range(2)))
    assert any("the setting must be the same on all ranks" in error.message for error in errors)


@pytest.mark.parametrize("count", [-1, 17])
def test_bad_numbers_of_standbys(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"standbys={count}: .*0 \(none\) to 16"):
        config("local", count)


def test_no_standby_can_be_reached() -> None:
    group = Group(0, (Member("a", "a", 1, 0, 0),), MemoryStore(), SECRET)
    alone = Standby(1)
    with pytest.raises(RendezvousError, match=r"standby .*store"):
        alone.move(group)
    alone.close()
