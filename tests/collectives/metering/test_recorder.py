"""The timeline of a rank, started and stopped for several meters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectives.metering import Header, Meter, Recorder, Timeline, Trace
from collectives.metering.recorder import rank_path

HEADER = Header(0, 1, "host", 1, 0, 0)


def test_names_of_files() -> None:
    assert rank_path(Path("a/run.json"), 3) == Path("a/run.rank3.json")
    assert rank_path(Path("run-{rank}.json"), 12) == Path("run-12.json")
    assert rank_path(Path("run"), 0) == Path("run.rank0")


def test_attached_meters_record_until_they_are_detached_or_it_stops(tmp_path: Path) -> None:
    recorder = Recorder()
    before, during, leaving = (Meter(Trace(label)) for label in ("before", "during", "leaving"))
    recorder.attach(before)
    recorder.attach(leaving)
    assert not before.trace.on
    recorder.start(lambda: Timeline(tmp_path / "t", HEADER))
    recorder.attach(during)
    for meter in (before, during, leaving):
        assert meter.trace.on
        meter.trace.mark("track", "seen")
    recorder.detach(leaving)
    recorder.detach(leaving)
    leaving.trace.mark("track", "unseen")
    recorder.stop()
    recorder.stop()
    assert not before.trace.on
    before.trace.mark("track", "unseen")
    events = json.loads((tmp_path / "t").read_text())
    marks = [event["cat"] for event in events if event["name"] == "seen" and event["ph"] == "b"]
    assert marks == ["track before", "track during", "track leaving"]
    assert "unseen" not in (tmp_path / "t").read_text()


def test_one_timeline_at_a_time(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.start(lambda: Timeline(recorder.file(tmp_path / "t.json"), HEADER))
    with pytest.raises(ValueError, match=r"path='other': .*t.json "):
        recorder.file("other")
    recorder.stop()
    assert recorder.file("other") == Path("other")


def test_paths_that_are_none() -> None:
    with pytest.raises(TypeError):
        Recorder().file(3)  # type: ignore[arg-type]


def test_file_that_cannot_be_written_leaves_no_timeline(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(OSError, match="nowhere"):
        recorder.start(lambda: Timeline(tmp_path / "nowhere" / "t", HEADER))
    recorder.file("other")
