"""Metrics of a communicator."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator
from collectives.planning.tally import Tally
from tests.worlds import World, Worlds, kept_plans, living, world_of


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def counted(world: World, body: Any) -> list[dict[str, Any]]:
    """The metrics of each rank after `body`."""

    def run(comm: Communicator) -> dict[str, Any]:
        comm.reset_metrics()
        body(comm)
        return comm.metrics()

    return world.run(run)


def test_metrics_count_calls_bytes_and_algorithms(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(100, np.float32)
        for _ in range(50):
            comm.allreduce(x)
        comm.allreduce(np.ones(30_000), algorithm="ring")
        comm.allreduce_async(x).wait()
        comm.allgather(np.ones(comm.rank + 1))
        comm.alltoall(np.ones(6), [1, 2, 3])
        comm.reduce(x, root=1)
        comm.barrier()

    for metrics in counted(worlds.get("local", 3), body):
        done = metrics["collectives"]
        assert {name: entry["calls"] for name, entry in done.items()} == {
            "allreduce": 52,
            "allgather": 1,
            "alltoall": 1,
            "reduce": 1,
            "barrier": 1,
        }
        assert done["allreduce"]["bytes"] == 51 * 400 + 240_000
        assert done["allreduce"]["algorithms"]["ring"] == 1
        assert sum(done["allreduce"]["algorithms"].values()) == 52
        assert done["allgather"]["bytes"] == 6 * 8
        assert done["alltoall"]["bytes"] == 6 * 8
        assert done["barrier"]["bytes"] == 0
        assert {name: entry["calls"] for name, entry in metrics["parts"].items()} == {"allgather": 1, "alltoall": 1}
        assert all(entry["seconds"] > 0 for entry in done.values())
        assert set(metrics["waited"]) <= {0, 1, 2}


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_metrics_count_moved_bytes(worlds: Worlds, algorithm: str) -> None:
    """A ring sends 2 (p - 1) / p of the data; directly, a rank reads that of all others."""
    metrics = counted(worlds.get("local", 4), lambda comm: comm.allreduce(np.ones(400), algorithm=algorithm))
    moved = [each["collectives"]["allreduce"]["moved"] for each in metrics]
    assert moved == [3200 * 2 * 3 / 4 if algorithm == "ring" else 3200 * 3] * 4


def test_metrics_count_plans_made_and_reused(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        for size in (11, 12, 11, 12, 11):
            comm.allreduce(np.ones(size, np.int16), "max")

    for metrics in counted(worlds.get("local", 2), body):
        assert metrics["plans"] == {"made": 2, "reused": 3}


@pytest.mark.long
def test_metrics_keep_the_counts_of_dropped_plans(worlds: Worlds) -> None:
    """More sizes than plans are kept: those that are dropped are counted all the same."""

    def body(comm: Communicator) -> None:
        for size in range(1, 1501):
            comm.broadcast(np.ones(size, np.int8))
        gc.collect()

    before = living(Tally)
    for metrics in counted(worlds.get("local", 1), body):
        entry = metrics["collectives"]["broadcast"]
        assert (entry["calls"], entry["bytes"]) == (1500, 1500 * 1501 // 2)
    assert living(Tally) - before < 1000


def test_metrics_estimate_seconds_from_sampled_calls(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes 5 us per look at it, a call without steps takes 5 us; the estimate after 5000 calls is near
    5000 times that, though only one in a hundred was timed."""
    looks = 0

    def clock() -> int:
        nonlocal looks
        looks += 1
        return looks * 5000

    world = worlds.get("local", 1)
    monkeypatch.setattr("collectives.execution.executor.now", clock)
    monkeypatch.setattr("collectives.metering.meter.now", itertools.count(0, 2500).__next__)  # so long takes a report
    x = np.ones(3)
    (metrics,) = counted(world, lambda comm: [comm.allreduce(x, out=x) for _ in range(5000)])
    assert 25 < looks / 2 < 100
    assert metrics["collectives"]["allreduce"]["seconds"] == pytest.approx(0.025, rel=0.05)


def test_metrics_count_the_seconds_waited_for_each_rank(worlds: Worlds) -> None:
    """Rank 2 comes late to the first call of a plan, which is timed."""
    gate = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 2:
            gate.wait(0.25)
        comm.gather(np.ones(77, np.int16), root=0, algorithm="linear")

    world = worlds.get("local", 3)
    waited = counted(world, body)[0]["waited"]
    assert waited[2] > 0.1
    assert waited.get(1, 0) < waited[2]


def test_metrics_of_a_split_are_its_own(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        child = comm.split(0)
        child.barrier()
        assert child.metrics()["collectives"]["barrier"]["calls"] == 1
        child.close()

    for metrics in counted(worlds.get("local", 2), body):
        assert "barrier" not in metrics["collectives"]


def test_metrics_count_events_by_name(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        comm.meter.count("stalls")
        comm.meter.count("stalls", 2)

    assert [each["events"] for each in counted(worlds.get("local", 2), body)] == [{"stalls": 3}] * 2


@pytest.mark.long
def test_metrics_count_a_stall_once_on_each_rank_that_waits() -> None:
    gate = threading.Event()

    def body(comm: Communicator) -> dict[str, int]:
        if comm.rank == 1:
            gate.wait(2.5)
        comm.barrier()
        events: dict[str, int] = comm.metrics()["events"]
        return events

    with world_of("local", 2, stall=0.2) as world:
        assert world.run(body) == [{"stalls": 1}, {}]


def test_metrics_count_a_failed_call() -> None:
    def body(comm: Communicator) -> dict[str, Any]:
        if comm.rank == 0:
            with pytest.raises(ronde.RondeError):
                comm.allreduce(np.ones(5), timeout=0.1)
        return comm.metrics()

    with world_of("local", 2) as world:
        assert world.run(body)[0]["collectives"]["allreduce"]["calls"] == 1


def test_reset_metrics_counts_from_zero(worlds: Worlds) -> None:
    world = worlds.get("local", 2)
    counted(world, lambda comm: comm.barrier())
    empty = {"collectives": {}, "parts": {}, "waited": {}, "plans": {"made": 0, "reused": 0}, "events": {}}
    assert counted(world, lambda comm: None) == [empty, empty]


def test_metrics_functions_of_the_package(worlds: Worlds, tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        ronde.reset_metrics()
        ronde.start_timeline(tmp_path / "t")
        ronde.barrier()
        ronde.stop_timeline()
        assert ronde.metrics()["collectives"]["barrier"]["calls"] == 1
        assert "ronde_calls_total" in ronde.metrics_text()

    worlds.get("local", 2).run(body)


LINE = re.compile(r'^(ronde_[a-z_]+_total)\{([a-z_]+="[^"]*",?)+\} ([0-9.e+-]+)$')


def test_metrics_text_has_the_format_of_prometheus(worlds: Worlds) -> None:
    """The text format 0.0.4: HELP and TYPE once before the samples of a metric, which stand together."""

    def body(comm: Communicator) -> str:
        comm.reset_metrics()
        comm.allreduce(np.ones(3))
        comm.allgather(np.ones(comm.rank))
        comm.meter.count("stalls")
        return comm.metrics_text()

    for rank, text in enumerate(worlds.get("local", 2).run(body)):
        assert text.endswith("\n")
        seen: list[str] = []
        for line in text.splitlines():
            if line.startswith("# HELP "):
                seen.append(line.split()[2])
            elif line.startswith("# TYPE "):
                assert line == f"# TYPE {seen[-1]} counter"
            else:
                match = LINE.match(line)
                assert match, line
                assert match[1] == seen[-1]
                float(match[3])
        assert len(seen) == len(set(seen))
        tags = f'rank="{rank}",communicator="0"'
        assert f'ronde_events_total{{{tags},event="stalls"}} 1\n' in text
        assert re.search(rf'ronde_bytes_total{{{tags},collective="allreduce",algorithm="\w+",part="no"}} 24\n', text)


def test_metrics_time_every_long_call_and_do_not_multiply_a_rare_wait(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment, took, x = 0, 0, np.ones(3)

    def clock() -> int:
        nonlocal moment
        moment += took
        return moment

    def body(comm: Communicator) -> None:
        nonlocal took
        for nanoseconds in [*range(1_000_000, 1_000_100), *[2_000] * 1000, *[10**9] * 1000]:
            took = nanoseconds
            comm.allreduce(x, out=x)

    monkeypatch.setattr("collectives.execution.executor.now", clock)
    monkeypatch.setattr("collectives.metering.meter.now", itertools.count(0, 2500).__next__)  # so long takes a report
    (metrics,) = counted(worlds.get("local", 1), body)
    seconds = metrics["collectives"]["allreduce"]["seconds"]
    assert (
        1000 - 512 <= seconds <= 1000 + 100 * 0.0010001 + 1000 * 2e-6
    )  # some long calls come before the first timed one


def test_meter_runs_no_python_code_when_a_plan_is_freed() -> None:
    """Python raises nothing out of callbacks of weak references, so an interrupt in one would be lost."""

    def rank(comm: Communicator) -> None:
        comm.allreduce(1)
        ends = [end for plan in kept_plans(comm) for end in weakref.getweakrefs(plan)]
        assert ends
        assert all(isinstance(end.__callback__, types.BuiltinMethodType) for end in ends)

    with world_of("local", 1) as world:
        world.run(rank)
