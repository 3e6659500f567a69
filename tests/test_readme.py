"""The README is short, and its figures are those of benchmarks/results."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
UNITS = {"us": 1e-6, "ms": 1e-3}
SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
FILES = {
    "2 ranks, shared memory": "compare-shm-2",
    "4 ranks, shared memory": "compare-shm-4",
    "2 ranks, arrays in shared memory": "compare-shm-2-windows",
    "2 ranks, TCP": "compare-tcp-2",
}


def rows() -> list[list[str]]:
    """The rows of the table of times."""
    lines = [line for line in README.splitlines() if re.match(r"\| \d+ [KM]?i?B, ", line)]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def test_it_is_two_screens_long_before_more() -> None:
    assert README.index("## More") > 0
    assert README[: README.index("## More")].count("\n") <= 85


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_times_are_the_medians_that_were_measured(row: list[str]) -> None:
    size, name = re.sub(r": \*?a loss", "", row[0]).split(", ", 1)
    number, unit = size.split()
    measured = json.loads((ROOT / f"benchmarks/results/{FILES[name]}.json").read_text("utf-8"))
    (line,) = [
        line
        for line in measured["lines"]
        if line["collective"] == "allreduce" and line["size"] == int(number) * SIZES[unit]
    ]
    shown = dict(zip(("ronde", "openmpi", "mpich", "gloo"), row[1:], strict=True))
    assert {peer for peer, text in shown.items() if text} == set(line["times"])
    for peer, text in shown.items():
        if text:
            value, unit = text.split()
            digits = len(value.partition(".")[2])
            assert f"{statistics.median(line['times'][peer]) / UNITS[unit]:.{digits}f}" == value


def test_the_table_has_a_loss() -> None:
    losses = [row for row in rows() if "a loss" in row[0]]
    assert losses
    assert len(rows()) > len(losses) + 3
