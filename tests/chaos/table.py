"""Counts what came of many cases, and lays it out as a table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

import collectives
from frontends.command_line import bench
from tests.chaos.faults import FAULTS, TRANSPORTS, Bed
from tests.chaos.verdict import Broken, Outcome

_COUNTED: Final[tuple[tuple[Broken, str], ...]] = (
    ("hang", "hangs"),
    ("wrong", "wrong"),
    ("leak", "leaks"),
    ("alarm", "alarms"),
    ("stuck", "stuck"),
    ("late", "late"),
)
_HEADS: Final = (
    ("", "fault"),
    ("", "transport"),
    ("", "cases"),
    *(("", head) for _, head in _COUNTED),
    ("right", "culprit"),
    ("noticed", "median"),
    ("after ms", "worst"),
    ("recovered", "median"),
    ("in ms", "worst"),
)


@dataclass
class Row:
    """The outcomes of the cases of one kind. Counts are of cases, `asked` and `named` of survivors."""

    bed: Bed
    fault: str
    transport: str
    cases: int = 0
    missed: int = 0
    broken: dict[Broken, int] = field(default_factory=dict)
    asked: int = 0
    named: int = 0
    detections: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a case. One whose fault did not come to strike counts only if something went wrong."""
        if not outcome.struck and not outcome.findings:
            self.missed += 1
            return
        self.cases += 1
        for broken in {finding.broken for finding in outcome.findings}:
            self.broken[broken] = self.broken.get(broken, 0) + 1
        self.asked += outcome.asked
        self.named += outcome.named
        self.detections += [] if outcome.detection is None else [outcome.detection]
        self.recoveries += [] if outcome.recovery is None else [outcome.recovery]

    def cells(self) -> list[str]:
        """Its texts for the columns of the table."""
        share = f"{100 * self.named / self.asked:.4g} %" if self.asked else "-"
        counts = [str(self.broken.get(broken, 0)) for broken, _ in _COUNTED]
        return [
            self.fault,
            self.transport,
            str(self.cases),
            *counts,
            share,
            *_ms(self.detections),
            *_ms(self.recoveries),
        ]


class Tally:
    """The outcomes of a campaign."""

    def __init__(self) -> None:
        self.failures = 0
        self._rows = {
            (bed, fault, transport): Row(bed, fault, transport)
            for bed, fault in FAULTS
            for transport in TRANSPORTS[bed]
        }

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        case = outcome.case
        self._rows[case.bed, case.fault_name, case.transport].add(outcome)
        self.failures += bool(outcome.findings)

    def table(self) -> str:
        """The table: a row for each fault and transport that was tried, and a line of totals for each bed."""
        parts = []
        for bed in TRANSPORTS:
            rows = [row for row in self._rows.values() if row.bed == bed and row.cases]
            if rows:
                cells = [row.cells() for row in (*rows, _total(rows))]
                missed = sum(row.missed for row in rows)
                note = f" ({missed} more, in which the fault did not come to strike, are not counted)" if missed else ""
                parts.append(f"ranks as {bed}{note}\n\n{_lay_out(cells)}")
        return "\n\n".join(parts)


def _total(rows: Iterable[Row]) -> Row:
    rows = list(rows)
    total = Row(rows[0].bed, "all", "all")
    for row in rows:
        total.cases += row.cases
        total.asked += row.asked
        total.named += row.named
        total.detections += row.detections
        total.recoveries += row.recoveries
        for broken, count in row.broken.items():
            total.broken[broken] = total.broken.get(broken, 0) + count
    return total


def _ms(seconds: list[float]) -> tuple[str, str]:
    if not seconds:
        return "-", "-"
    return f"{1e3 * statistics.median(seconds):.0f}", f"{1e3 * max(seconds):.0f}"


def _lay_out(rows: list[list[str]]) -> str:
    """Columns under two lines of heads; words to the left, figures to the right."""
    left_out = zeros(rows, range(3, 3 + len(_COUNTED)))
    shown = [column for column in range(len(_HEADS)) if column not in left_out]
    lines = [[line[column] for column in shown] for line in (*zip(*_HEADS, strict=True), *rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]

    def line(cells: Iterable[str]) -> str:
        parts = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    texts = [line(cells) for cells in lines]
    rule = "-" * max(map(len, texts))
    note = said_of_zeros(_HEADS[column][1] for column in left_out)
    return "\n".join([*texts[:2], rule, *texts[2:-1], rule, texts[-1]]) + note


def zeros(rows: Sequence[Sequence[str]], columns: Iterable[int]) -> list[int]:
    """Those of the columns that have 0 in every row. A table leaves them out."""
    return [column for column in columns if all(row[column] == "0" for row in rows)]


def said_of_zeros(heads: Iterable[str]) -> str:
    """The line under a table that names the columns left out; nothing if there are none."""
    names = ", ".join(heads)
    return f"\n\n0 in every row: {names}" if names else ""


def machine() -> str:
    """The machine of the campaign, in one line."""
    return (
        f"{bench.machine()['cpu']}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, NumPy {np.__version__}, Ronde {collectives.__version__}"
    )


def write(path: Path, text: str, name: str, *, fence: str = "```\n") -> None:
    """Put `text` between the markers of that name in a file, in a fence. Raises ValueError if they are not there."""
    begin, end = markers(name)
    before, found, rest = path.read_text("utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path}: must hold the lines {begin} and {end}, between which the table goes")
    path.write_text(f"{before}{begin}\n\n{fence}{text}\n{fence}\n{end}{after}", "utf-8")


def markers(name: str) -> tuple[str, str]:
    """The lines between which a table of that name stands."""
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"
