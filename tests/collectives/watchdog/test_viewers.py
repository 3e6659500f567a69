"""Viewers ask the ranks of a job through its store, and cannot harm it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectives.flight import Digest, Door, FlightRecord, digest_of, read_door, unpack_digest, worlds
from collectives.watchdog import Viewer
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes
from transports.errors import RendezvousError
from transports.store import Place

pytestmark = pytest.mark.usefixtures("own_folder")


def soon() -> float:
    return time.monotonic() + 10


def observed(rank: int, url: str) -> None:
    with member(rank, 2, url) as comm:
        for _ in range(40):
            comm.allreduce(np.ones(4))
        if rank == 0:
            (folder,) = worlds()
            door = read_door(folder)
            assert door is not None
            assert (folder / "door").stat().st_mode & 0o777 == 0o600
            assert door.hosts == ((0, 1),)
            viewer = Viewer(door, 5.0)
            try:
                (digest,) = viewer.digests([1], soon()).values()
                assert [record.rank for record in digest.records] == [0, 1]
                assert all(record.calls["0-0"].newest >= 40 for record in digest.records)
                assert next(digest.records[1].entries("0-0")).text.collective == "allreduce"
                assert abs(digest.now - time.perf_counter_ns()) < 10e9
                answer = viewer.answer(1, soon())
                assert answer is not None
                assert "in observed" in answer.stack
                assert viewer.digests([7], time.monotonic() + 0.1) == {}  # there is no such rank
            finally:
                viewer.close()
        comm.barrier()


@pytest.mark.processes
def test_a_viewer_gets_the_records_of_a_host_and_the_stack_of_a_rank() -> None:
    with meeting_place() as url:
        run_processes(observed, 2, url, timeout=120)
    (folder,) = worlds()
    assert read_door(folder) is None


def flooded(rank: int, url: str) -> int:
    with member(rank, 2, url) as comm:
        if rank == 0:
            (folder,) = worlds()
            door = read_door(folder)
            assert door is not None
            viewers = [Viewer(door, 5.0) for _ in range(3)]
            for _ in range(50):
                for viewer in viewers:
                    viewer.digests([0, 1], 0.0)  # and do not wait for the answers
            assert viewers[0].digests([1], soon())
            for viewer in viewers:
                viewer.close()
        comm.barrier(timeout=60)
        return int(comm.allreduce(np.ones(1))[0])


@pytest.mark.processes
def test_a_flood_of_questions_does_nothing_to_the_job() -> None:
    with meeting_place() as url:
        assert run_processes(flooded, 2, url, timeout=120) == [2, 2]


@pytest.fixture
def recorded() -> Iterator[Path]:
    """The folder of a world of four ranks, with thousands of calls."""
    made = []
    for rank in range(4):
        record = FlightRecord.create("world", rank, {"size": 4, "pid": os.getpid(), "hostname": "here"})
        log = record.call_log("0-0", 4, rank, "")
        for number in range(1, 3001):
            at = 40 + (number & 2047) * 3
            log.words[at : at + 3] = memoryview(np.array([1, 1000 * number, 1000 * number + 10]))
            log.words[0] = number
        record.describe(1, ["allreduce(float32, 3 elements)", "allreduce", 12, "ring", 1, -1, "train.py:3"])
        made.append(record)
    assert made[0].path is not None
    yield made[0].path.parent
    for record in made:
        record.close()


def test_a_digest_has_the_newest_calls_and_keeps_its_bound(recorded: Path) -> None:
    whole = digest_of(recorded)
    data = whole.pack(1 << 20)
    found = unpack_digest(data)
    assert [record.rank for record in found.records] == [0, 1, 2, 3]
    assert found.loads.keys() == whole.loads.keys()
    for record in found.records:
        calls = record.calls["0-0"]
        assert (calls.newest, int(calls.numbers[-1]), len(calls.numbers)) == (3000, 3000, 256)
        assert next(iter(record.entries("0-0"))).text.line == "train.py:3"
    assert len(data) > 2000
    small = whole.pack(2000)
    assert len(small) <= 2000
    assert all(record.calls["0-0"].newest == 3000 for record in unpack_digest(small).records)
    assert len(whole.pack(100)) <= 100  # then without records


def test_a_digest_can_be_put_on_another_clock(recorded: Path) -> None:
    before, after = digest_of(recorded), digest_of(recorded).shifted(1_000_000)
    first, moved = (next(iter(digest.records[0].entries("0-0"))) for digest in (before, after))
    assert (moved.began, moved.ended) == (first.began + 1_000_000, (first.ended or 0) + 1_000_000)


@pytest.mark.parametrize("data", [b"", b"x", Digest(0, (), {}).pack(1000)[:-3], b"\x78\x01"])
def test_other_bytes_are_no_digest(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_digest(data)


def test_a_door_of_other_bytes_is_none(tmp_path: Path) -> None:
    (tmp_path / "door").write_bytes(b"\x93\x01\x02")
    assert read_door(tmp_path) is None


def test_a_viewer_of_a_store_that_has_ended_says_so() -> None:
    viewer = Viewer(Door(Place("tcp://127.0.0.1:1", b"store", "group/"), b"x" * 16, (), ((0, 1),)), 1.0)
    with pytest.raises(RendezvousError):
        viewer.digests([0], time.monotonic() + 1)
    viewer.close()
