"""`ronde simulate --trace` and `--layers`: recorded steps and tables of layers, and errors for bad files."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, ConfigError
from collectives.operations import array_sizes
from frontends.command_line.cli import main
from frontends.command_line.training import read_layers, read_trace
from tests.collectives.launch.launcher import RONDE
from tests.worlds import world_of

CSV = "name, bytes, backward, forward\n# a comment\nfirst, 64K, 2ms, 1ms\npool, 0, 0.001, 0.001\nlast, 40, 0.003, 3ms\n"
TOML = """
layers = [
    {name = "first", bytes = 65536, backward = "2ms", forward = 1e-3},
    {name = "pool", bytes = 0, backward = 1e-3, forward = 1e-3},
    {name = "last", bytes = 40, backward = 3e-3, forward = "3ms"},
]
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Timelines of two ranks: six steps of two gradients; rank 1 is late with the second."""
    directory = tmp_path_factory.mktemp("trace")

    def body(comm: Communicator) -> None:
        comm.broadcast_async(np.zeros(4), 0, name="parameters").wait()
        for number in range(6):
            comm.allreduce(np.zeros(3))  # without a name: no gradient
            first = comm.allreduce_async(np.zeros(100, np.float32), name="first")
            time.sleep(0.03 if comm.rank else 0.001)
            second = comm.grouped_allreduce_async([np.zeros((2, 3)), np.zeros(5, np.int32)], name="second")
            first.wait()
            second.wait()
            if number == 3:
                comm.allreduce_async(np.zeros(1), name="accuracy").wait()

    with world_of("local", 2, timeline=str(directory / "t.json")) as world:
        world.run(body)
    return directory


def test_a_recorded_step(recorded: Path) -> None:
    step, about = read_trace(recorded)
    assert [gradient.name for gradient in step.gradients] == ["first", "second"]
    assert [array_sizes(gradient.signature) for gradient in step.gradients] == [(400,), (48, 20)]
    first, second = (gradient.ready for gradient in step.gradients)
    assert second - first > 0.025  # of the slowest rank
    assert step.computation == second
    assert "4 steps of 2 ranks" in about  # without the first, and the one that has another operation


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_the_command_replays_a_trace(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--trace", str(recorded), "--ranks", "2..64", "--what-if", "far.latency=500us"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "2 gradients, 468 bytes" in said
    table = rows(said)
    assert [row[0] for row in table] == ["2", "4", "8", "16", "32", "64"]
    times = [float(row[2]) for row in table]
    assert times == sorted(times)
    assert all(float(row[-1]) > 1 for row in table)  # the ratio
    assert all(0 < float(row[5].rstrip("%")) < 100 for row in table)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("suffix", ["csv", "toml"])
def test_a_table_of_layers(suffix: str, mark: str, tmp_path: Path) -> None:
    """`mark` is what spreadsheets write before the text."""
    path = tmp_path / f"model.{suffix}"
    path.write_text(mark + (CSV if suffix == "csv" else TOML), "utf-8")
    step, _ = read_layers(path)
    assert [(gradient.name, pytest.approx(gradient.ready)) for gradient in step.gradients] == [
        ("last", 0.008),
        ("first", 0.011),
    ]
    assert step.computation == pytest.approx(0.011)
    assert step.nbytes == 65576


def test_the_command_takes_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.csv"
    path.write_text(CSV.replace("64K", "64M"))
    words = ["simulate", "--layers", str(path), "--ranks", "8"]
    assert main(words) == 0
    [slow] = rows(capsys.readouterr().out)
    assert main([*words, "--what-if", "nic=100Gbit,algorithm=ring"]) == 0
    [both] = rows(capsys.readouterr().out)
    assert both[:6] == slow
    assert float(both[-1]) < 0.7
    assert main([*words, "--fusion", "0"]) == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", "", "no layers"),
        ("m.csv", "name, bytes\na, 1\n", r"m.csv, line 1: 'backward' "),
        ("m.csv", "name, bytes, backwards\na, 1, 2\n", r"line 1: .*'backwards'; .*name, bytes"),
        ("m.csv", "name, bytes, backward, bytes\na, 1, 2, 3\n", r"line 1: .*column .*once"),
        ("m.csv", "name, bytes, backward\n\na, 1\n", r"line 3: .*2 values, .*3"),
        ("m.csv", "name, bytes, backward\na, 1.5, 2\n", r"line 2: bytes='1.5': .*number of bytes"),
        ("m.csv", f"name, bytes, backward\na, {10**30}, 2\n", r"line 2: bytes='10*': .*, 0 to 1024T"),
        ("m.toml", f"[[layers]]\nname='a'\nbytes={2**51}\nbackward=1\n", r"bytes=\d*: .*, 0 to 1024T"),
        ("m.csv", f"name, bytes, backward\n{'a' * 200_000}, 1, 2\n", r"m.csv: .*CSV: field larger"),
        ("m.csv", "name, bytes, backward\na, 1, -2\n", r"line 2: backward='-2': .*seconds"),
        ("m.csv", "name, bytes, backward\na, 1, inf\n", r"line 2: backward='inf': .*seconds"),
        ("m.csv", "name, bytes, backward\na, 1, 2\na, 1, 2\n", r"line 3: name='a': "),
        ("m.csv", "name, bytes, backward\na, 0, 2\n", "no layer .*bytes"),
        ("m.toml", "layers = 3 4\n", r"m.toml: .*TOML: .*line 1"),
        ("m.toml", "layers = 3", r"tables \[\[layers\]\]"),
        ("m.toml", "layer = 3", "has 'layer'"),
        ("m.toml", "[[layers]]\nname = 'a'\nbytes = true\nbackward = 1", r"\[\[layers\]\] 1: bytes=True: "),
        ("m.toml", "[[layers]]\nname = 'a'\nbytes = 4\nbackward = []", r"backward=\[\]: .*seconds"),
        ("m.json", "{}", r".*\.csv or \.toml"),
    ],
)
def test_bad_tables_of_layers(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_layers(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--layers .*none.csv: .*No such file"):
        read_layers(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"none: .*directory"):
        read_trace(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"--trace .*\*\.json"):
        read_trace(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"other.json: .*timeline"):
        read_trace(tmp_path)


def copied(recorded: Path, target: Path, change: Any) -> None:
    """Copy timelines; `change` gets the events of each, which it alters."""
    for path in recorded.glob("*.json"):
        events = json.loads(path.read_text())
        change(events)
        (target / path.name).write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")


def test_traces_that_do_not_suffice(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "t.rank0.json").write_bytes((recorded / "t.rank0.json").read_bytes())
    with pytest.raises(ConfigError, match=r"timelines of ranks \[1\] of 2"):
        read_trace(tmp_path)

    def forget(events: list[dict[str, Any]]) -> None:
        for event in events:
            event.get("args", {}).pop("signature", None)

    copied(recorded, tmp_path, forget)
    with pytest.raises(ConfigError, match=r"'parameters' .*no signature"):
        read_trace(tmp_path)

    def once(events: list[dict[str, Any]]) -> None:
        events[:] = [event for event in events if event.get("name") not in ("first", "second")]

    copied(recorded, tmp_path, once)
    with pytest.raises(ConfigError, match=r"rank 0 .*no .*step"):
        read_trace(tmp_path)

    def spoil(events: list[dict[str, Any]]) -> None:
        for event in events:
            if "signature" in event.get("args", {}):
                event["args"]["signature"]["dtypes"] = ["float33"]

    copied(recorded, tmp_path, spoil)
    with pytest.raises(ConfigError, match=r"'parameters': .*readable signature"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["reduce", "--trace", "x"], "reduce: cannot be combined with --trace"),
        (["--layers", "x", "--size", "1M"], "--size: cannot be combined with --layers"),
        (["--layers", "x", "--rules", "y"], "--rules: cannot be combined"),
        (["--layers", "x", "--timeline", "y"], "--timeline: cannot be combined"),
        (["--layers", "x", "--trace", "y"], "not allowed with argument"),
        (["--layers", "x", "--fusion", "-1"], "must be a positive number of bytes"),
    ],
)
def test_bad_command_lines(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", *words])
    assert text in capsys.readouterr().err


@pytest.mark.processes
def test_a_chart(tmp_path: Path) -> None:
    """In a process of its own: matplotlib keeps font files open."""
    pytest.importorskip("matplotlib", reason="it needs ronde[plot]")
    (tmp_path / "m.csv").write_text(CSV)
    words = [*RONDE, "simulate", "--layers", tmp_path / "m.csv", "--ranks", "2..8", "--plot", tmp_path / "c.svg"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "c.svg").read_text().count('<g id="line2d_') > 4
