"""`ronde bench`: the table, the check of results, the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import COLLECTIVES
from tests.collectives.launch.launcher import ronde


@pytest.mark.processes
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_timed_and_right(tmp_path: Path, collective: str) -> None:
    file = tmp_path / "out.json"
    done = ronde(
        "bench", collective, "-np", "3", "--transport", "local", "--max", "1K", "--factor", "16",
        "--seconds", "0.01", "--json", str(file),
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0, said + done.stderr.decode()
    assert f"# {collective}, 3 ranks over local" in said
    for column in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"):
        assert column in said
    assert "# wrong elements: 0" in said
    report = json.loads(file.read_text())
    assert report["machine"]["numpy"]
    assert [row["wrong"] + row["inplace_wrong"] for row in report["rows"]] == [0] * len(report["rows"])
    assert all(row["time"] > 0 for row in report["rows"])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--algorithm", "magic"], 2, "--algorithm magic: for allreduce it must be one of"),
        (["--dtype", "float99"], 2, "float99"),
        (["--dtype", "object"], 2, "dtype object cannot be communicated"),
        (["--min", "1M", "--max", "1K"], 2, "--min 1048576: must not be greater than --max 1024"),
        (["--max", "1000000T"], 2, "must not be greater than the memory of this machine"),
        (["--factor", "1"], 2, "'1': must be an integer, 2 or more"),
        (["--root", "2"], 2, "--root 2: must be a rank, 0 to 1"),
        (["--seconds", "inf"], 2, "'inf': must be a number of seconds"),
        (["--warmup", "-1"], 2, "'-1': must be an integer, 0 or more"),
        (["-np", "100000"], 2, "'100000': must be an integer, 1 or more"),
        (["--json", "no/such/folder.json"], 2, "there is no folder 'no/such'"),
        (["--plot", "times.exe"], 2, "'times.exe': must end with one of .png, .svg, .pdf"),
        (["--op", "band"], 2, "op='band': not defined for float32"),
        (["--max", "lots"], 2, "'lots': must be a positive number of bytes"),
        (["--transport", "carrier-pigeon"], 2, "transport='carrier-pigeon': unknown"),
    ],
)
def test_bad_arguments(arguments: list[str], status: int, text: str) -> None:
    extra = {} if "--transport" in arguments else {"RONDE_TRANSPORT": "local"}
    done = ronde("bench", *arguments, extra=extra)
    assert done.returncode == status
    assert text in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_sizes() -> None:
    assert [byte_count(text) for text in ("4", "64K", "1m", "2G")] == [4, 65536, 1 << 20, 2 << 30]
