"""`ronde simulate` from the command line to its files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from collectives.planning import Rules
from frontends.command_line.cli import main
from tests.collectives.launch.launcher import RONDE

TOPOLOGY = '[[hosts]]\nranks = 2\nnic = "10Gbit"\n'


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_times_of_several_sizes_and_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(TOPOLOGY)
    assert main(["simulate", "allreduce", "--topology", str(path), "--ranks", "4..20", "--size", "1K..1M"]) == 0
    rows = table(capsys.readouterr().out)
    assert [row[0] for row in rows[::6]] == ["4", "8", "16", "20"]
    assert [int(row[1]) for row in rows[:6]] == [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]
    times = [float(row[2]) for row in rows[:6]]
    assert times == sorted(times)
    assert rows[5][-1] in ("vector", "exact")


def test_columns_of_large_numbers_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "alltoall", "--ranks", "16", "--size", "1T"]) == 0
    ranks, size, *_, engine = capsys.readouterr().out.splitlines()[-1].split()
    assert (ranks, size, engine) == ("16", str(16 * -(-(1 << 40) // 16)), "exact")


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--ranks", "8", "--size", "64M", "--algorithm", "ring"]
    assert main([*words, "--what-if", "nic=50Gbit"]) == 0
    [row] = table(capsys.readouterr().out)
    ratio = next(float(word) for word in reversed(row) if "." in word)
    assert 0.4 < ratio < 1
    assert main([*words, "--what-if", "algorithm=tree"]) == 0
    assert "tree" in capsys.readouterr().out


def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rules, timeline = tmp_path / "rules.toml", tmp_path / "call.json"
    files = ["--rules", str(rules), "--timeline", str(timeline)]
    assert main(["simulate", "--ranks", "6", "--size", "1K,1M", *files]) == 0
    capsys.readouterr()
    assert Rules.read(str(rules)).tells_link("tcp")
    events = json.loads(timeline.read_text())
    assert {event["pid"] for event in events} == set(range(6))
    begun = sorted(event["id"] for event in events if event["ph"] == "b")
    assert begun == sorted(event["id"] for event in events if event["ph"] == "e")
    assert begun


@pytest.mark.processes
def test_a_plot(tmp_path: Path) -> None:
    """In a process of its own: matplotlib keeps font files open."""
    pytest.importorskip("matplotlib", reason="it needs ronde[plot]")
    words = [*RONDE, "simulate", "--ranks", "4,8", "--size", "1K..1M", "--plot"]
    subprocess.run([*words, tmp_path / "times.svg"], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "times.svg").read_text().count('<g id="line2d_') > 4


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ranks", "8..4"], "must rise"),
        (["--ranks", "none"], "must be a number of ranks"),
        (["--size", "1X"], "must be a positive number of bytes"),
        (["--size", "1025T"], "must be a positive number of bytes, such as 4, 64K, 1M or 1G, at most 1024T"),
        (["--size", "99999999999999999999999999T"], "must be a positive number of bytes"),
        (["--algorithm", "none"], "it must be one of"),
        (["--algorithm", "windowed"], "windows"),
        (["--ranks", "128", "--size", "1K", "--timeline", "x.json"], "at most"),
        (["--fusion", "1M"], "--fusion 1048576: is for training"),
    ],
)
def test_bad_command_lines(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", "--topology", str(tmp_path / "missing.toml")]) == 2
    assert "missing.toml" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("[[hosts]]\ncount = -1\n")
    assert main(["simulate", "--topology", str(tmp_path / "bad.toml")]) == 2
    assert "count=-1: must be a whole number, 1 to 1048576" in capsys.readouterr().err
    words = ["simulate", "--ranks", "4", "--size", "1K"]
    for option in ("--rules", "--timeline"):
        with pytest.raises(SystemExit) as ended:
            main([*words, option, str(tmp_path / "no" / "file")])
        assert ended.value.code == 2
        assert "there is no folder" in capsys.readouterr().err
