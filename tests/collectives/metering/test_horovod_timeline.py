"""The timeline that Horovod would have written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, Config, ConfigError
from tests.worlds import world_of


def lanes(events: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """The phases and names of the events of each operation, in the order of the file."""
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name" and "name" in e["args"]}
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] in "BE":
            found[names[event["pid"]]].append((event["ph"], event.get("name", "")))
    return found


def phases(kind: str) -> list[tuple[str, str]]:
    begun = [("B", kind), ("B", "QUEUE"), ("E", ""), ("B", f"RONDE_{kind}"), ("E", ""), ("E", "")]
    return [("B", f"NEGOTIATE_{kind}"), ("E", ""), *begun]


def body(comm: Communicator) -> None:
    comm.allreduce_async(np.ones((2, 3), np.float32), name="allreduce.x").wait()
    comm.allreduce_async(np.ones((2, 3), np.float32), name="allreduce.x").wait()
    comm.allreduce_async(np.ones(4), "adasum", name="adasum").wait()
    comm.grouped_allreduce_async([np.ones(2)] * 2, name="grouped").wait()
    comm.allgather_async(np.ones(2), name="allgather.y").wait()
    comm.reduce_scatter_async(np.ones(2), name="scattered").wait()
    comm.barrier_async(name="barrier").wait()


@pytest.mark.parametrize("cycles", [False, True])
def test_events_of_horovod_in_exactly_this_file(tmp_path: Path, cycles: bool) -> None:
    file = tmp_path / "timeline.json"

    def record(comm: Communicator) -> None:
        comm.start_timeline(file, "horovod-cycles" if cycles else "horovod")
        body(comm)
        comm.stop_timeline()

    with world_of("local", 2) as world:
        world.run(record)
    assert list(tmp_path.iterdir()) == [file]
    events = json.loads(file.read_text())
    assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1e15
    assert lanes(events) == {
        "allreduce.x": phases("ALLREDUCE") * 2,
        "adasum": phases("ADASUM"),
        "grouped": phases("ALLREDUCE"),
        "allgather.y": phases("ALLGATHER"),
        "scattered": phases("REDUCESCATTER"),
        "barrier": phases("BARRIER"),
    }
    for number in range(1, 7):
        lane = [event for event in events if event["ph"] in "BEX" and event["pid"] == number]
        times = [event["ts"] for event in lane]
        assert times == sorted(times)
        ready = [event["name"] for event in lane if event["ph"] == "X"]
        assert sorted(ready) == sorted(["0", "1"] * (2 if number == 1 else 1)), "each rank becomes ready"
        assert lane[0]["name"].startswith("NEGOTIATE_")
        assert lane[1]["ph"] == "X"
    assert next(e["args"] for e in events if e["ph"] == "E" and "args" in e) == {"dtype": "float32", "shape": "[2, 3]"}
    marks = [event for event in events if event.get("name") == "CYCLE_START"]
    assert len(marks) == 7 * cycles
    assert all((mark["ph"], mark["s"]) == ("i", "g") for mark in marks)


def test_s2_an_event_is_in_the_file_though_no_other_follows(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"

    def record(comm: Communicator) -> bool:
        comm.start_timeline(file, "horovod")
        comm.allreduce_async(np.ones(2), name="the only one").wait()
        end = time.monotonic() + 60
        while comm.rank == 0 and "the only one" not in file.read_text() and time.monotonic() < end:
            time.sleep(0.02)
        seen = comm.rank != 0 or "the only one" in file.read_text()
        comm.barrier_async().wait()
        comm.stop_timeline()
        return seen

    with world_of("local", 2) as world:
        assert all(world.run(record))


def test_styles() -> None:
    assert Config.load({"timeline_style": "horovod"}).timeline_style == "horovod"
    with pytest.raises(ConfigError, match=r"timeline_style='chrome': .*ronde, horovod, horovod-cycles"):
        Config.load({"timeline_style": "chrome"})
    with world_of("local", 1) as world, pytest.raises(ValueError, match=r"style='chrome': .*ronde, horovod"):
        world.communicators[0].start_timeline("t", "chrome")
