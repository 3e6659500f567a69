"""regroup on threads: who comes, who leaves, in which order; the fence; newcomers that fail."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, Config, ConfigError, DeadlineExceeded, PeerLost, RendezvousError, membership
from collectives.membership import Change, History, ask_to_leave, regrouping, set_bounds
from collectives.membership.registry import Registry
from collectives.membership.roster import Newcomer
from collectives.membership.verdict import Verdict
from tests.collectives.membership.changes import SECONDS, job
from tests.collectives.membership.shrinks import THREADS, compute, fail
from tests.worlds import SECRET
from transports.base import Group
from transports.rendezvous import pack_member, this_member


def numbers(comm: Communicator) -> list[int]:
    return list(comm.transport.group.numbers)


@pytest.mark.parametrize("transport", THREADS)
def test_newcomers_come_at_a_boundary_and_are_the_last_ranks(transport: str) -> None:
    def rank(comm: Communicator) -> tuple[int, int, list[int]]:
        compute(comm, [0, 1])
        while not comm.changes_pending():
            assert comm.allreduce(1) == 2
        new = comm.regroup()
        assert new is ronde.world()
        return end(new)

    def end(new: Communicator) -> tuple[int, int, list[int]]:
        compute(new, [0, 1, 7])
        return new.rank, new.size, numbers(new)

    with job(transport) as here:
        ranks = here.start(2, rank)
        came = here.come(end, number=7)
        assert [future.result(SECONDS) for future in [*ranks, came]] == [(n, 3, [0, 1, 7]) for n in range(3)]


@pytest.mark.parametrize("transport", THREADS)
def test_a_loss_and_a_spare_are_one_verdict(transport: str) -> None:
    gate = threading.Barrier(4)

    def rank(comm: Communicator) -> list[int] | None:
        gate.wait(SECONDS)
        if comm.rank == 0:
            comm.abort("it has had enough")
            return None
        fail(comm)
        new = comm.regroup()
        assert new is not None
        assert new.transport.group.generation == comm.transport.group.generation + 1
        compute(new, [1, 2, 3])
        return numbers(new)

    def end(comm: Communicator) -> list[int]:
        compute(comm, [1, 2, 3])
        return numbers(comm)

    with job(transport) as here:
        set_bounds(here.store, 2, 3)
        ranks = here.start(3, rank)
        spare = here.come(end)
        here.wait_for_request(1)
        gate.wait(SECONDS)
        assert [future.result(SECONDS) for future in [*ranks, spare]] == [None, [1, 2, 3], [1, 2, 3], [1, 2, 3]]
        history = History(here.store)
        change = history.wait(time.monotonic() + SECONDS)
        history.close()
        assert change is not None
        assert (change.members, change.came, change.spares) == ((1, 2, 3), (3,), ())
        assert list(change.left) == [0]
        assert change.lost == (0,)


def test_leavers_spares_and_bounds_change_at_once() -> None:
    done = threading.Event()

    def rank(comm: Communicator) -> list[int] | None:
        seat = numbers(comm)
        if comm.rank == 1 and seat == [0, 1, 2, 3]:
            comm.leave("this rank was told to")
        while not done.is_set() or not comm.allreduce(int(done.is_set()), "min"):
            comm.barrier()
            if comm.changes_pending():
                new = comm.regroup()
                if new is None:
                    with pytest.raises(ronde.ClosedError, match=r"rank . .*closed: .*regroup"):
                        comm.barrier()
                    return None
                comm = new
        return numbers(comm)

    with job("local") as here:
        history = History(here.store)
        set_bounds(here.store, 1, 4)
        ranks = here.start(4, rank)
        change = history.wait(time.monotonic() + SECONDS)
        assert change is not None
        assert change.members == (0, 2, 3)
        assert change.left == {1: "this rank was told to"}
        assert change.lost == ()
        newcomers = [here.come(rank, number=10 + number) for number in range(3)]
        members: tuple[int, ...] = ()
        while len(members) < 4:
            change = history.wait(time.monotonic() + SECONDS)
            assert change is not None
            members = change.members
        assert members[:3] == (0, 2, 3)
        assert change.left == {}
        set_bounds(here.store, 1, 2)
        change = history.wait(time.monotonic() + SECONDS)
        assert change is not None
        assert change.members == (0, 2)
        assert set(change.left) == {3, members[3]}
        done.set()
        results = [future.result(SECONDS) for future in ranks]
        assert results == [[0, 2], None, [0, 2], None]
        here.store.close()  # ends the spares
        ended = [future.exception(SECONDS) for future in newcomers]
        assert sorted(type(error).__name__ for error in ended) == ["NoneType", "RendezvousError", "RendezvousError"]
        history.close()


def test_a_rank_that_leaves_tells_the_launcher_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends with 0 next, which is the end of the program unless the launcher knows that it has left."""
    monkeypatch.setattr(regrouping, "_record", lambda group, verdict: None)  # by a rank that is late

    def rank(comm: Communicator) -> int | None:
        if comm.rank == 1:
            comm.leave("this rank was told to")
        while not comm.changes_pending():
            comm.barrier()
        new = comm.regroup()
        return None if new is None else new.size

    with job("local") as here:
        assert [future.result(SECONDS) for future in here.start(2, rank)] == [1, None]
        history = History(here.store)
        change = history.wait(time.monotonic() + 0.01)
        assert change is not None
        assert change.left == {1: "this rank was told to"}
        history.close()


def test_all_leave() -> None:
    def rank(comm: Communicator) -> None:
        while not comm.changes_pending():
            comm.barrier()
        assert comm.regroup() is None

    with job("local") as here:
        ranks = here.start(2, rank)
        ask_to_leave(here.store, [0, 1], "the job is over")
        history = History(here.store)
        change = history.wait(time.monotonic() + SECONDS)
        assert change is not None
        assert (change.members, set(change.left)) == ((), {0, 1})
        for future in ranks:
            future.result(SECONDS)
        history.close()


def test_too_few_wait_for_newcomers_and_give_up_together() -> None:
    def rank(comm: Communicator) -> str:
        comm.barrier()
        if comm.rank == 1:
            comm.abort("enough")
            return "gone"
        fail(comm)
        comm = comm.regroup() or comm
        assert numbers(comm) == [0, 5]
        return lonely(comm)

    def lonely(comm: Communicator) -> str:
        try:
            comm.allreduce(1)
            if comm.rank == 1:
                comm.abort("enough")
                return "gone"
            fail(comm)
            comm.regroup(timeout=0.3)
        except RendezvousError as error:
            return error.message
        return ""

    with job("local") as here:
        set_bounds(here.store, 2, None)
        first, second = here.start(2, rank)
        assert second.result(SECONDS) == "gone"
        assert here.come(lonely, number=5).result(SECONDS) == "gone"
        assert "1 ranks are left, 2 are needed, and too few came within 0.3 s" in first.result(SECONDS)


def test_a_newcomer_that_does_not_fit_is_told() -> None:
    def rank(comm: Communicator) -> None:
        for _ in range(200):
            comm.barrier()
            assert not comm.changes_pending()
            if told.is_set():
                break
            time.sleep(0.01)
        comm.barrier()

    told = threading.Event()
    with job("local") as here, job("tcp") as other:
        other.store = here.store
        ranks = here.start(1, rank)
        error = other.come(rank).exception(SECONDS)
        told.set()
        assert isinstance(error, ConfigError)
        assert "over tcp with calibrate=False, and the ranks have Ronde" in str(error)
        for future in ranks:
            future.result(SECONDS)


def test_a_newcomer_has_a_deadline() -> None:
    with job("local") as here:
        error = here.come(numbers, timeout=0.1).exception(SECONDS)
        assert isinstance(error, DeadlineExceeded)
        assert "no rank admitted this process within 0" in error.message
        ranks = here.start(2, lambda comm: [comm.changes_pending() or comm.barrier() for _ in range(50)])
        assert [set(future.result(SECONDS)) for future in ranks] == [{None}, {None}]  # it is gone: nothing to change


def grow(comm: Communicator) -> list[int]:
    """Compute until a newcomer comes; the numbers then."""
    while numbers(comm)[-1] < 9:
        comm.allreduce(np.ones(10))
        if comm.changes_pending():
            comm = comm.regroup() or comm
    compute(comm, numbers(comm))
    return numbers(comm)


def terms_of(transport: str) -> str:
    return Config.load({"transport": transport, "calibrate": False}, environment={}).terms


def test_a_newcomer_that_dies_while_it_waits_does_not_stop_the_ranks() -> None:
    with job("local") as here:
        ticket = Newcomer("a ticket", 4, pack_member(this_member()), terms_of("local"))
        Registry(here.store).request("join", ticket.fields())  # and it is heard of no more
        ranks = here.start(2, grow)
        here.wait_for_request(1)  # it was found out
        came = here.come(grow, number=9)
        assert [future.result(SECONDS) for future in [*ranks, came]] == [[0, 1, 9]] * 3
        history = History(here.store)
        assert history.wait(time.monotonic() + SECONDS) == Change(1, (0, 1, 9), (9,), {}, ())
        assert history.wait(time.monotonic()) is None
        history.close()


@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_newcomer_that_dies_while_it_connects_harms_nobody(transport: str) -> None:
    def dies(_: object) -> None:
        raise KeyboardInterrupt

    with job(transport, connect_timeout=1.0) as here:
        ranks = here.start(2, grow)
        deadline = time.monotonic() + SECONDS
        with pytest.raises(KeyboardInterrupt):
            membership.wait_to_join(here.store, 4, terms_of(transport), SECRET, deadline, dies)
        came = here.come(grow, number=9)
        assert [future.result(SECONDS) for future in [*ranks, came]] == [[0, 1, 9]] * 3
        history = History(here.store)
        first, second = history.wait(deadline), history.wait(deadline)
        history.close()
        assert first == Change(1, (0, 1, 4), (4,), {}, ())
        assert second is not None
        assert second.members[:2] == (0, 1)
        assert "the ranks could not connect with this newcomer" in second.left[4]


@pytest.mark.long
def test_a_newcomer_that_could_not_connect_applies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, failed = Communicator.connect, threading.Event()

    def fails_once(group: Group, *rest: Any) -> Communicator:
        if group.numbers[group.rank] == 9 and not failed.is_set():
            failed.set()
            raise PeerLost("no luck")
        return connect(group, *rest)

    with job("local", connect_timeout=1.0) as here:
        ranks = here.start(2, grow)
        monkeypatch.setattr(Communicator, "connect", staticmethod(fails_once))
        came = here.come(grow, number=9)
        assert came.result(SECONDS) == [0, 1, 9]
        assert [future.result(SECONDS) for future in ranks] == [[0, 1, 9]] * 2


@pytest.mark.long
def test_a_verdict_is_recorded_although_the_rank_that_was_to_do_so_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher must know of the rank that has left: it takes one that ends for the end of the program otherwise.
    And the roster must be kept.

    Process 1 is lost before it has recorded the verdict. Another one takes its place here, under the same number.
    """
    record, connect, lost, failed = regrouping._record, Communicator.connect, threading.Event(), threading.Event()

    def is_lost(group: Group, verdict: Verdict) -> None:
        if lost.is_set():
            record(group, verdict)
        lost.set()

    def fails_once(group: Group, *rest: Any) -> Communicator:
        if group.generation and group.numbers[group.rank] == 1 and not failed.is_set():
            failed.set()
            raise PeerLost("no luck")
        return connect(group, *rest)

    def rank(comm: Communicator) -> list[int] | None:
        while not comm.changes_pending():
            comm.allreduce(1)
        new = comm.regroup()
        return None if new is None else numbers(new)

    with job("local", connect_timeout=1.0) as here:
        ranks = here.start(3, rank)
        monkeypatch.setattr(regrouping, "_record", is_lost)
        monkeypatch.setattr(Communicator, "connect", staticmethod(fails_once))
        ask_to_leave(here.store, [0], "it is tired")
        assert [future.result(SECONDS) for future in ranks] == [None, [1, 2], [1, 2]]
        history = History(here.store)
        first, second = (history.wait(time.monotonic() + SECONDS) for _ in range(2))
        assert history.wait(time.monotonic() + 0.01) is None
        history.close()
        assert first is not None
        assert second is not None
        assert (first.members, first.left) == ((1, 2), {0: "it is tired"})
        assert (second.members, second.left) == ((1, 2), {})
        assert second.generation == first.generation + 1
        assert Registry(here.store).read().leaving == {}
