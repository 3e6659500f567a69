"""The timeline: its events, its format, and the files that remain after failures."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, ConfigError, RondeError
from collectives.algorithms import algorithms
from collectives.compression import Int8
from collectives.metering.events import Trace, now
from collectives.metering.recorder import rank_path
from collectives.metering.timeline import Header, Timeline
from collectives.metering.trace_file import Event
from collectives.operations.clock_sync import compare_clocks
from collectives.planning.plan import Call
from frontends.command_line import cli
from frontends.command_line.timeline import is_merged, lanes_of, merge, read
from tests.collectives.launch.launcher import ronde
from tests.worlds import World, Worlds, executor_of, world_of

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def traced(world: World, path: Path, body: Callable[[Communicator], object]) -> list[Path]:
    """Run `body` on every rank while timelines are written; returns the files."""

    def record(comm: Communicator) -> None:
        comm.start_timeline(path)
        try:
            body(comm)
        finally:
            comm.stop_timeline()

    world.run(record)
    return [rank_path(path, rank) for rank in range(world.size)]


def tracks(events: Events) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def on(events: Events, track: str, rank: int | None = None) -> Events:
    """The events of a track in order of time, without metadata."""
    names = tracks(events)
    found = [e for e in events if "ts" in e and names[e["pid"], e["tid"]] == track and rank in (None, e["pid"])]
    return sorted(found, key=lambda e: e["ts"])


def check(events: Events) -> None:
    """The demands of the format: every event has a track, events of one track nest, every begin has an end."""
    names = tracks(events)
    open_pairs: dict[tuple[int, str, str], float] = {}
    complete: dict[tuple[int, int], Events] = defaultdict(list)
    for e in events:
        if e["ph"] == "M":
            continue
        assert names[e["pid"], e["tid"]] == e["cat"]
        assert e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0
            complete[e["pid"], e["tid"]].append(e)
        elif e["ph"] == "b":
            assert (e["pid"], e["cat"], e["id"]) not in open_pairs
            open_pairs[e["pid"], e["cat"], e["id"]] = e["ts"]
        else:
            assert e["ph"] == "e"
            assert e["ts"] >= open_pairs.pop((e["pid"], e["cat"], e["id"]))
    assert not open_pairs
    for track in complete.values():
        ends: list[float] = []
        for e in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= e["ts"] + 5e-4:
                ends.pop()
            assert not ends or e["ts"] + e["dur"] <= ends[-1] + 5e-4, f"{e} overlaps with another of its track"
            ends.append(e["ts"] + e["dur"])


# ---- events


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "direct"])
def test_allreduce_steps_are_those_of_the_algorithm(worlds: Worlds, tmp_path: Path, algorithm: str) -> None:
    world = worlds.get("local", 3)
    files = traced(world, tmp_path / "t.json", lambda comm: comm.allreduce(np.ones(300), algorithm=algorithm))
    sent = 0
    for rank, file in enumerate(files):
        events = json.loads(file.read_text())
        check(events)
        (call,) = on(events, "collectives")
        assert call["name"] == "allreduce"
        assert call["pid"] == rank
        assert call["args"]["call"] == f"allreduce(float64, 300 elements, op=sum, algorithm={algorithm})"
        assert call["args"]["algorithm"] == algorithm
        assert call["args"]["bytes"] == 2400
        steps = on(events, "steps")
        executor = executor_of(world.communicators[rank])
        plan = executor.planner.plan(Call("allreduce", np.dtype(np.float64), (300,), "sum", algorithm=algorithm))
        assert [(step["name"], step["args"]["kind"]) for step in steps] == [
            (step.label, step.kind.name.lower()) for step in plan.program.instructions
        ]
        for step, instruction in zip(steps, plan.program.instructions, strict=True):
            assert step["args"].get("peer", -1) == instruction.peer
            assert call["ts"] <= step["ts"]
            assert step["ts"] + step["dur"] <= call["ts"] + call["dur"] + 1e-3
        sent += sum(step["args"]["bytes"] for step in steps if step["args"]["kind"] == "send")
    assert sent == algorithms("allreduce")[algorithm].traffic(plan.geometry) * 2400


def test_calls_before_and_after_the_timeline_are_absent(worlds: Worlds, tmp_path: Path) -> None:
    world = worlds.get("local", 2)
    (file, _) = traced(world, tmp_path / "t.json", lambda comm: comm.barrier())
    before = file.read_bytes()
    world.run(lambda comm: comm.allreduce(np.ones(3)))
    assert file.read_bytes() == before
    assert [e["name"] for e in on(json.loads(before), "collectives")] == ["barrier"]
    assert not any(comm.trace.on for comm in world.communicators)


def test_split_communicators_have_tracks_of_their_own_and_peers_are_ranks_of_the_world(
    worlds: Worlds, tmp_path: Path
) -> None:
    world = worlds.get("local", 4)

    def body(comm: Communicator) -> None:
        child = comm.split(comm.rank % 2)
        child.allreduce(np.ones(1 << 14), algorithm="ring")
        child.close()

    files = traced(world, tmp_path / "t.json", body)
    for rank, file in enumerate(files):
        events = json.loads(file.read_text())
        check(events)
        (track,) = {name for name in tracks(events).values() if name.startswith("steps of communicator ")}
        assert {e["args"].get("peer", rank) for e in on(events, track)} == {(rank + 2) % 4, rank}


def test_parts_of_an_operation_name_the_operation(worlds: Worlds, tmp_path: Path) -> None:
    (file, _) = traced(worlds.get("local", 2), tmp_path / "t.json", lambda comm: Int8().allreduce(comm, np.ones(5000)))
    calls = on(json.loads(file.read_text()), "collectives")
    assert [call["name"] for call in calls] == ["alltoall", "allgather"]
    assert all("within allreduce(float64 (5000,), op=sum, Int8(" in call["args"]["call"] for call in calls)


def test_named_operations_show_queue_negotiation_and_fusion(worlds: Worlds, tmp_path: Path) -> None:
    """Negotiated, queued, run; small ones together. What the engine runs is on tracks of its own."""
    names = [f"tensor {number}" for number in range(6)]

    def body(comm: Communicator) -> None:
        works = [comm.allreduce_async(np.ones(10), name=name) for name in names]
        works.append(comm.allgather_async(np.ones(3), name="gathered"))
        comm.allreduce(np.ones(20))
        for work in works:
            work.wait()

    files = traced(worlds.get("local", 2), tmp_path / "t.json", body)
    for file in files:
        events = json.loads(file.read_text())
        check(events)
        for track in ("negotiation", "queue", "operations"):
            assert {e["name"] for e in on(events, track)} == {*names, "gathered"}, track
        for name in names:
            moments = [
                [e["ts"] for e in on(events, track) if e["name"] == name]
                for track in ("negotiation", "queue", "operations")
            ]
            (submitted, agreed), (queued, began), (begun, ended) = moments
            assert submitted <= agreed == queued <= began == begun <= ended
        fused = [name for e in on(events, "fusion") if e["ph"] == "b" for name in e["args"]["names"]]
        assert set(fused) <= set(names)
        assert len(fused) == len(set(fused))
        assert [e["args"]["call"] for e in on(events, "collectives")] == ["allreduce(float64, 20 elements, op=sum)"]
        assert "allgather" in {e["name"] for e in on(events, "named collectives")}


def test_trace_span_mark_and_add(worlds: Worlds, tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        began = now()
        with comm.trace.span("fusion", "pack", bytes=np.int64(3)), comm.trace.span("fusion", "inner"):
            comm.trace.mark("negotiation", "ready")
        comm.trace.add("queue", "first", began, name="w")
        comm.trace.add("queue", "second", began, now())

    (file, _) = traced(worlds.get("local", 2), tmp_path / "t.json", body)
    events = json.loads(file.read_text())
    check(events)
    assert [(e["ph"], e["name"]) for e in on(events, "queue") if e["ph"] == "b"] == [("b", "first"), ("b", "second")]
    assert [e["ph"] for e in on(events, "negotiation")] == ["b", "e"]
    (packed,) = (e for e in on(events, "fusion") if e["ph"] == "b" and e["name"] == "pack")
    assert str(packed["args"]["bytes"]) == "3"


def test_trace_drops_events_while_no_timeline_is_written() -> None:
    trace = Trace("")
    with trace.span("fusion", "pack"):
        trace.mark("a", "b")
        trace.add("a", "b", now())
    assert not trace.on


def test_trace_takes_events_of_several_threads_at_once(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "t.json", Header(0, 1, "host", 1, 0, 0))
    trace = Trace("")
    trace.write_to(timeline)

    def work(number: int) -> None:
        for _ in range(1500):
            with trace.span("queue", f"of thread {number}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    timeline.close()
    events = json.loads(timeline.path.read_text())
    check(events)
    counts = Counter(e["name"] for e in on(events, "queue") if e["ph"] == "b")
    assert counts == {f"of thread {number}": 1500 for number in range(4)}


# ---- failures


def test_failed_allreduce_ends_with_the_failed_step(tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(RondeError):
                comm.allreduce(np.ones(1 << 16), algorithm="ring", timeout=0.2)

    with world_of("local", 2) as world:
        file, _ = traced(world, tmp_path / "t.json", body)
    events = json.loads(file.read_text())
    check(events)
    (call,) = on(events, "collectives")
    assert call["args"]["failed"] is True
    last = on(events, "steps")[-1]
    assert last["args"]["kind"] == "await"
    assert last["dur"] > 1e5


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="kills with a signal")
def test_killed_rank_leaves_a_readable_timeline(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, time\nimport numpy as np\nimport collectives as ronde\n"
        "comm = ronde.init()\n"
        "comm.allreduce(np.ones(9))\n"
        "comm.allreduce(np.ones(9))\n"
        f"while comm.rank == 1 and open({str(tmp_path / 'run-1.json')!r}).read().count('\"allreduce\"') < 2:\n"
        "    time.sleep(0.05)\n"
        "if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "comm.barrier()\n"
    )
    done = ronde("run", "-np", "2", "--set", f"timeline={tmp_path / 'run-{rank}.json'}", sys.executable, str(script))
    assert done.returncode == 128 + signal.SIGKILL
    files = [tmp_path / "run-0.json", tmp_path / "run-1.json"]
    assert not files[1].read_text().rstrip().endswith("]")
    assert [e["name"] for e in on(read(files[1]), "collectives")] == ["allreduce"] * 2
    json.loads(files[0].read_text())
    assert on(read(files[0]), "collectives")[-1]["args"].get("failed")
    assert cli.main(["timeline", "merge", str(tmp_path / "all.json"), *map(str, files)]) == 0
    check(json.loads((tmp_path / "all.json").read_text()))


def test_full_disk_ends_the_timeline_and_no_call(
    worlds: Worlds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    os.symlink("/dev/full", tmp_path / "t-0.json")
    world = worlds.get("local", 2)
    traced(world, tmp_path / "t-{rank}.json", lambda comm: comm.barrier())
    assert "ends here: it cannot be written" in caplog.text
    json.loads((tmp_path / "t-1.json").read_text())
    assert world.sound


# ---- start and stop


def test_start_timeline_is_refused_while_one_is_written_and_for_a_split(worlds: Worlds, tmp_path: Path) -> None:
    world = worlds.get("local", 2)

    def body(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=r"path='other.json': .*t.rank"):
            comm.start_timeline("other.json")
        child = comm.split(0)
        with pytest.raises(ValueError, match=r"start_timeline: .*world communicator"):
            child.start_timeline("other.json")
        child.close()
        comm.stop_timeline()
        comm.stop_timeline()

    traced(world, tmp_path / "t.json", body)
    assert world.sound


def test_start_timeline_with_a_bad_path(worlds: Worlds, tmp_path: Path) -> None:
    world = worlds.get("local", 2)

    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="path=3: must be a path"):
            comm.start_timeline(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"path=.*: must name a file"):
            comm.start_timeline("")
        with pytest.raises(OSError, match="nowhere"):
            comm.start_timeline(tmp_path / "nowhere" / "t.json")
        comm.barrier()

    world.run(body)
    assert world.sound
    with (
        pytest.raises(ConfigError, match=r"timeline='.*nowhere.*': .*No such file"),
        world_of("local", 1, timeline=str(tmp_path / "nowhere" / "t.json")),
    ):
        pass


def test_setting_timeline_starts_it_and_close_stops_it(tmp_path: Path) -> None:
    with world_of("local", 2, timeline=str(tmp_path / "t.json")) as world:
        world.run(lambda comm: comm.barrier())
    for rank in range(2):
        events = json.loads((tmp_path / f"t.rank{rank}.json").read_text())
        assert [e["name"] for e in on(events, "collectives")] == ["barrier"]


def test_start_timeline_compares_the_clocks_of_several_hosts(tmp_path: Path) -> None:
    with world_of("auto", 2, hosts="ab") as world:
        world.run(lambda comm: comm.start_timeline(tmp_path / "t"))
    zero, one = (read(tmp_path / f"t.rank{rank}")[0]["args"] for rank in range(2))
    assert (zero["offset"], zero["error"]) == (0, 0)
    assert abs(one["offset"]) <= one["error"]
    assert 0 < one["error"] < 10**9


# ---- merging


def test_merge_of_all_ranks(worlds: Worlds, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(comm: Communicator) -> None:
        for _ in range(3):
            comm.allreduce(np.ones(5000), algorithm="ring")
            comm.barrier()

    files = traced(worlds.get("local", 3), tmp_path / "t.json", body)
    out = tmp_path / "all.json"
    assert cli.main(["timeline", "merge", str(out), *map(str, files)]) == 0
    assert capsys.readouterr().out.endswith("events of ranks 0, 1, 2\n")
    events = json.loads(out.read_text())
    check(events)
    times = [e["ts"] for e in events if "ts" in e]
    assert times == sorted(times)
    assert times[0] == 0
    assert {e["pid"] for e in events} == {0, 1, 2}
    assert len([e for e in events if e["name"] == "process_name"]) == 3
    for number in range(3):  # no rank leaves a barrier before all have entered it
        entered = max(on(events, "collectives", rank)[2 * number + 1]["ts"] for rank in range(3))
        left = [on(events, "collectives", rank)[2 * number + 1] for rank in range(3)]
        assert all(e["ts"] + e["dur"] >= entered for e in left)
    before = set(tmp_path.iterdir())
    assert cli.main(["timeline", "merge", str(out), str(files[1])]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "missing: ranks 0, 2"
    assert set(tmp_path.iterdir()) == before


def test_lanes_of_all_ranks(worlds: Worlds, tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(np.ones(5000), algorithm="ring")
        comm.barrier()

    _, events = merge(traced(worlds.get("local", 2), tmp_path / "t.json", body))
    lanes = lanes_of(events, 0.0, math.inf)
    assert list(lanes) == ["rank 0 collectives", "rank 0 steps", "rank 1 collectives", "rank 1 steps"]
    for rank in range(2):
        calls, steps = lanes[f"rank {rank} collectives"], lanes[f"rank {rank} steps"]
        assert [kind for kind, _, _ in calls] == ["allreduce", "barrier"]
        assert {kind for kind, _, _ in steps} <= {"send", "recv", "await", "copy", "reduce", "wait", "signal"}
        (_, first, lasted), (_, second, _) = calls
        assert first + lasted <= second
        assert lanes_of(events, 0.0, (first + lasted + second) / 2)[f"rank {rank} collectives"] == calls[:1]
        assert lanes_of(events, (first + lasted + second) / 2, math.inf)[f"rank {rank} collectives"] == calls[1:]


@pytest.mark.long
def test_draw(worlds: Worlds, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'ronde[plot]'")
    files = traced(worlds.get("local", 2), tmp_path / "t.json", lambda comm: comm.barrier())
    out = tmp_path / "all.svg"
    assert cli.main(["timeline", "draw", str(out), *map(str, files)]) == 0
    assert capsys.readouterr().out.endswith("boxes of 2 ranks\n")
    assert out.read_text().count("rank 1 steps") == 1
    assert cli.main(["timeline", "draw", str(out), str(files[0]), "--begin", "1e6"]) == 2
    assert "--begin=1e+06, --end=inf: no collective lies between these milliseconds" in capsys.readouterr().err
    assert cli.main(["timeline", "draw", str(out), str(files[0]), "--begin", "2", "--end", "1"]) == 2
    assert "--begin=2: must be less than --end=1" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["timeline", "draw", str(tmp_path / "all.nonsense"), *map(str, files)])
    assert "all.nonsense': must end with one of .png, .svg, .pdf" in capsys.readouterr().err


def test_drawing_names_the_command_that_installs_matplotlib(
    worlds: Worlds, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = traced(worlds.get("local", 2), tmp_path / "t.json", lambda comm: comm.barrier())
    with pytest.raises(SystemExit) as ended:
        cli.main(["timeline", "draw", str(tmp_path / "all.svg"), *map(str, files)])
    assert ended.value.code == 2
    assert "needs matplotlib: pip install 'ronde[plot]'" in capsys.readouterr().err


def test_merge_overwrites_no_timeline_of_a_rank(
    worlds: Worlds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = traced(worlds.get("local", 2), tmp_path / "t.json", lambda comm: comm.barrier())
    kept = files[0].read_bytes()
    for words in (files, [files[0], *files]):  # OUT was forgotten; OUT is one of the files
        assert cli.main(["timeline", "merge", *map(str, words)]) == 2
        assert f"OUT {files[0]}: is the timeline of a rank" in capsys.readouterr().err
        assert files[0].read_bytes() == kept
    for words in (files[:1], files[:1], files):  # what was merged before is overwritten
        assert cli.main(["timeline", "merge", str(tmp_path / "all.json"), *map(str, words)]) == 0


def test_merge_aligns_clocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files whose clocks are a day apart: the headers say so, and the events meet."""
    day, moment = 86_400 * 10**9, now()
    for rank, offset in ((0, 0), (1, -day)):
        clock = SimpleNamespace(perf_counter_ns=lambda offset=offset: now() - offset)
        monkeypatch.setattr("collectives.metering.trace_file.time", clock)
        timeline = Timeline(tmp_path / f"{rank}.json", Header(rank, 2, f"host{rank}", 7, offset, 5000 * rank))
        timeline.put([Event("collectives", "barrier", moment - offset, moment - offset + 10, {})])
        timeline.close()
    _, events = merge([tmp_path / "1.json", tmp_path / "0.json"])
    zero, one = on(events, "collectives")
    assert (zero["pid"], one["pid"]) == (0, 1)
    assert zero["ts"] == one["ts"]
    cli.main(["timeline", "merge", str(tmp_path / "all"), str(tmp_path / "0.json"), str(tmp_path / "1.json")])
    assert "agree within 5 us" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("ph", None), ("pid", "0"), ("ts", "1"), ("ts", None), ("ts", float("inf")), ("dur", None), ("cat", 1)],
        *[("ts", 1e308), ("name", None), ("args", []), ("args", {}), ("args", {"kind": 1})],
    ],
)
def test_a_damaged_event_is_named(field: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    timeline = Timeline(path, Header(0, 1, "h", 7, 0, 0))
    timeline.put([Event("steps", "send", now(), now() + 10, {"kind": "send"})])
    timeline.close()
    events = json.loads(path.read_text())
    step = next(event for event in events if event.get("cat") == "steps")
    step[field] = value
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    with pytest.raises(ConfigError, match=r"0\.json: .*damaged: \{"):
        merge([path])


@pytest.mark.parametrize("field", [*Header._fields, "zero"])
def test_a_header_has_all_its_fields(field: str, tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    Timeline(path, Header(0, 1, "h", 7, 0, 0)).close()
    events = json.loads(path.read_text())
    del events[0]["args"][field]
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    with pytest.raises(ConfigError, match=r"0.json: .*timeline of a rank"):
        merge([path])


def test_a_merged_file_is_told_from_that_of_a_rank(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    for rank, name in enumerate(files):
        timeline = Timeline(Path(name), Header(rank, 2, "h", 7, 0, 0))
        timeline.put([Event("collectives", "barrier", now(), now() + 10, {})])
        timeline.close()
    assert cli.main(["timeline", "merge", str(tmp_path / "all.json"), *files]) == 0
    assert [is_merged(path) for path in sorted(tmp_path.glob("*.json"))] == [False, False, True]


def test_merge_refuses_files_that_do_not_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, header in (("a", Header(0, 2, "h", 1, 0, 0)), ("b", Header(1, 3, "h", 1, 0, 0))):
        Timeline(tmp_path / name, header).close()
    (tmp_path / "text").write_text("no timeline\n")
    (tmp_path / "other").write_text('[{"name": "ronde", "args": {}},\n')

    def said(*names: str) -> str:
        assert cli.main(["timeline", "merge", str(tmp_path / "out"), *(str(tmp_path / name) for name in names)]) == 2
        return capsys.readouterr().err

    assert "text: is not the timeline of a rank" in said("a", "text")
    assert "other: is not the timeline of a rank" in said("other")
    assert "none: cannot be read" in said("none")
    assert "is a timeline of rank 0, as " in said("a", "a")
    assert "belong to different jobs" in said("a", "b")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as ended:
        cli.main(["timeline", "merge", str(tmp_path / "no" / "out"), str(tmp_path / "a")])
    assert ended.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["timeline", "--help"], ["timeline", "merge", "--help"]):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        assert left.value.code == 0
        said = capsys.readouterr().out
        assert "ronde timeline merge all.json run.rank*.json" in said
        assert all(len(line) <= 120 for line in said.splitlines())


# ---- clocks


def test_clock_offsets_are_measured(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process have one clock; told apart by what is added to it, the offset must be found again."""
    ahead = threading.local()
    monkeypatch.setattr("collectives.operations.clock_sync.now", lambda: now() + ahead.nanoseconds)

    def body(comm: Communicator) -> tuple[int, int]:
        def measure(peers: Any) -> tuple[int, int]:
            ahead.nanoseconds = comm.rank * 10**12
            return compare_clocks(peers)

        return comm.compose(measure, "a comparison of clocks")

    for rank, (offset, error) in enumerate(worlds.get("local", 3).run(body)):
        assert abs(offset + rank * 10**12) <= error
        assert error <= 10**9
