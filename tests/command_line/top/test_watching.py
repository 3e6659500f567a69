"""Jobs whose worlds follow one another, as records that are made up."""

from __future__ import annotations

import io
import os
import sys

import pytest

from collectives.flight import FlightRecord
from frontends.command_line.cli import main
from frontends.top import Watched, find, jobs
from transports.errors import ConfigError

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


def test_of_jobs_with_one_beginning_the_one_that_runs_is_meant() -> None:
    over, runs = record("node1-1", 0, 2, 1001), record("node1-2", 0, 2, 1002)
    over.close()
    assert find("node1").name == "node1-2"
    assert find("node1-1").name == "node1-1"
    runs.close()
    with pytest.raises(ConfigError, match="node1-1"):
        find("node1")
    with pytest.raises(ConfigError):
        find("")


def test_the_stack_of_what_is_no_rank_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    job = record("job", 0, 2, 1001)
    for rank in ("2", "-1"):
        assert main(["top", "--stack", rank, "--job", "job"]) == 2
        assert "0 to 1" in capsys.readouterr().err
    assert main(["top", "--stack", "1", "--job", "job"]) == 0
    assert capsys.readouterr().out.endswith("\n")
    job.close()


def test_a_terminal_without_a_character_shows_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = FlightRecord.create(
        "job", 0, {"size": 2, "pid": 1001, "program": "caf\N{LATIN SMALL LETTER E WITH ACUTE}.py"}
    )
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert main(["top", "--list"]) == 0
    assert b"caf?.py" in written.getvalue()
    job.close()
