"""Jobs whose worlds follow one another, as records that are made up."""

from __future__ import annotations

import os
import sys

import pytest

from collectives.flight import FlightRecord
from frontends.top import Watched, jobs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="records are locked and mapped as Linux does it")


def record(world: str, rank: int, size: int, pid: int) -> FlightRecord:
    return FlightRecord.create(world, rank, {"size": size, "pid": pid, "host": "here", "hostname": "here"})


def test_a_viewer_goes_on_with_the_next_world_of_the_same_processes() -> None:
    before = [record("before", rank, 3, 1000 + rank) for rank in range(3)]
    assert before[0].path is not None
    watched = Watched(before[0].path.parent)
    assert not watched.look().over
    for one in before:
        one.close()
    assert watched.look().over
    other = record("other", 0, 2, 5000)
    assert {one.facts["world"] for one in watched.look().records} == {"before"}
    after = [record("after", rank, 2, 1000 + rank) for rank in range(2)]
    look = watched.look()
    assert not look.over
    assert [(one.facts["world"], one.rank) for one in look.records] == [("after", 0), ("after", 1)]
    watched.close()
    for one in (*after, other):
        one.close()


def test_of_worlds_that_share_processes_the_largest_is_the_job() -> None:
    pid = os.getpid()
    made = [record("whole", 0, 8, pid), record("part", 0, 2, pid), record("another", 0, 4, pid + 1)]
    assert {job.name for job in jobs()} == {"whole", "another"}
    for one in made:
        one.close()
