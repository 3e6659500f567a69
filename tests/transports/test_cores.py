"""The cores on which ranks wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from transports import core_count, cores, shm, tcp
from transports.base import Group, Member
from transports.cores import Cores
from transports.rendezvous.memory import MemoryStore

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads")


@pytest.fixture(autouse=True)
def whole_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system that says nothing of hardware threads."""
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    cores.by_physical_core.cache_clear()
    yield
    cores.by_physical_core.cache_clear()


def of(rank: int, hosts: str = "aa", *, threads: bool = False) -> Cores:
    members = tuple(Member(host, host, 1 if threads else pid) for pid, host in enumerate(hosts))
    return Cores(Group(rank, members, MemoryStore()))


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("count", range(1, 9))
def test_the_cores_are_dealt_out_evenly(ranks: int, count: int) -> None:
    given = [10 * core for core in range(count)]
    parts = [of(rank, "a" * ranks).part(reversed_of(given)) for rank in range(ranks)]
    assert set().union(*parts) == set(given)
    if count >= ranks:
        assert sum(map(len, parts)) == count
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert {len(part) for part in parts} == {1}
        users = [sum(core in part for part in parts) for core in given]
        assert max(users) - min(users) <= 1


def reversed_of(given: list[int]) -> list[int]:
    return given[::-1]


def test_only_the_ranks_of_the_own_host_count() -> None:
    assert of(1, "bab").part({4, 7}) == {4, 7}
    assert [of(rank, "bab").part({4, 7}) for rank in (0, 2)] == [{4}, {7}]


def test_the_setting_affinity_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    members = tuple(Member("a", "a", pid) for pid in range(2))
    switched_off = Cores(Group(0, members, MemoryStore()), affinity=False)
    monkeypatch.setattr(os, "sched_setaffinity", None)
    with switched_off.kept():
        pass
    with pytest.raises(TypeError), of(0, "aa").kept():
        pass
    for kind in (shm, tcp):
        assert kind.Options().affinity
        transport = kind.create(Group(0, members, MemoryStore()), kind.Options(affinity=False))
        with transport.cores.kept():
            pass


@pytest.mark.parametrize("siblings", ["{0},{4}", "{0}-{0},{4}", ""])
def test_hardware_threads_of_one_core_stay_together(siblings: str, tmp_path: Path) -> None:
    for core in range(8):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        text = siblings.format(*(core % 4 + 4 * (number // 4) for number in range(8)))
        (topology / "thread_siblings_list").write_text(text + "\n")
    parts = [of(rank).part(range(8)) for rank in (0, 1)]
    assert parts == ([{0, 1, 4, 5}, {2, 3, 6, 7}] if siblings else [{0, 1, 2, 3}, {4, 5, 6, 7}])


def test_there_are_enough_cores_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert of(0, "aa").suffice
    assert not of(0, "aaa").suffice
    assert of(1, "aba").suffice
    assert not of(0, "aa", threads=True).suffice


@pytest.mark.parametrize(
    ("masks", "enough"),
    [
        ((0b01, 0b10), True),  # bound by mpirun or Slurm, each to a core of its own
        ((0b01, 0b01), False),
        ((0b1111, 0b01, 0b10), True),
        ((0b1111, 0b01, 0b01), False),  # two of three share a core
        ((0b0011, 0b0011, 0b1100, 0b1100), True),
        ((0b0011, 0b0011, 0b0011, 0b1100), False),
        ((0b11, 0b11, 0b11), False),
    ],
)
def test_ranks_that_a_launcher_has_bound(masks: tuple[int, ...], enough: bool) -> None:
    members = (*(Member("a", "a", pid, cores=mask) for pid, mask in enumerate(masks)), Member("b", "b", 9, cores=1))
    assert [Cores(Group(rank, members, MemoryStore())).suffice for rank in range(len(masks))] == [enough] * len(masks)
    assert Cores(Group(len(masks), members, MemoryStore())).suffice


class System:
    """A fake of the system calls that set the affinity."""

    def __init__(self, patch: pytest.MonkeyPatch, allowed: set[int]) -> None:
        self.bound = allowed
        self.told: list[set[int]] = []
        self.error: OSError | None = None
        patch.setattr(os, "sched_getaffinity", lambda pid: self.bound)
        patch.setattr(os, "sched_setaffinity", self.bind)

    def bind(self, pid: int, mask: set[int]) -> None:
        assert pid == 0
        self.told.append(mask)
        if self.error is not None:
            raise self.error
        self.bound = mask


def test_a_thread_that_sleeps_is_bound_and_free_again_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, {0, 1, 2, 3})
    with of(1).kept():
        assert system.bound == {2, 3}
    assert system.bound == {0, 1, 2, 3}
    with pytest.raises(KeyboardInterrupt), of(0).kept():
        raise KeyboardInterrupt
    assert system.bound == {0, 1, 2, 3}


def test_a_binding_by_other_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, {0, 1})
    with of(0).kept():
        system.bound = {1}
    assert system.bound == {1}


def test_cores_that_are_taken_away_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, {0, 1})
    system.error = OSError("no such cores")
    with of(0).kept():
        pass
    assert system.told == [{0}]


def test_threads_of_one_process_and_a_rank_alone_are_left_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, {0, 1})
    for alone in (of(0, "aa", threads=True), of(0, "ab"), of(0, "a")):
        with alone.kept():
            pass
    assert system.told == []


def test_who_was_away_for_long_moves_but_not_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, {0, 1})
    clock, away = [0.0], [0.0]

    def yield_core() -> None:
        clock[0] += away[0]

    monkeypatch.setattr(cores, "_yield_core", yield_core)
    monkeypatch.setattr("transports.cores.time.monotonic", lambda: clock[0])
    mine = of(1)
    mine.leave()
    assert system.told == []
    away[0] = 1e-4
    mine.leave()
    assert system.told == [{1}, {0, 1}]
    mine.leave()
    assert len(system.told) == 2
    clock[0] += 1.0
    mine.leave()
    assert len(system.told) == 4


def test_the_system_does_it() -> None:
    allowed = os.sched_getaffinity(0)
    mine = of(1, "a" * 3)
    seen = []

    def sleep() -> None:
        with mine.kept():
            seen.append(os.sched_getaffinity(0))
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    assert seen == [mine.part(allowed), allowed]
    assert os.sched_getaffinity(0) == allowed


def test_a_limit_of_a_core_is_not_enough_for_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_count, "core_mask", lambda: 1)
    assert not of(0, "aa").suffice
    assert of(0, "ab").suffice
