"""`ronde bench`: the table, the check of results, the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frontends.command_line.bench import COLLECTIVES, parse_size
from tests.collectives.launch.launcher import ronde


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


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--algorithm", "magic"], 2, "algorithm='magic': for allreduce it must be one of"),
        (["--dtype", "float99"], 2, "float99"),
        (["--op", "band"], 2, "op='band': not defined for float32"),
        (["--max", "lots"], 2, "'lots': must be a positive number of bytes"),
        (["--transport", "carrier-pigeon"], 1, "transport='carrier-pigeon': unknown"),
    ],
)
def test_bad_arguments(arguments: list[str], status: int, text: str) -> None:
    extra = {} if "--transport" in arguments else {"RONDE_TRANSPORT": "local"}
    done = ronde("bench", *arguments, extra=extra)
    assert done.returncode == status
    assert text in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_sizes() -> None:
    assert [parse_size(text) for text in ("4", "64K", "1m", "2G")] == [4, 65536, 1 << 20, 2 << 30]
