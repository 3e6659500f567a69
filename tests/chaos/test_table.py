"""The table counts cases, and goes where it belongs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.chaos.campaign import describe, for_threads, kinds
from tests.chaos.case import Case
from tests.chaos.faults import FAULTS, TRANSPORTS
from tests.chaos.table import Tally, machine, markers, write
from tests.chaos.verdict import Finding, Outcome

KILL = Case("processes", "tcp", "kill", 3, 7)


def test_counts_and_times() -> None:
    tally = Tally()
    tally.add(Outcome(KILL, True, 2, 2, 0.1, 0.02, ()))
    tally.add(Outcome(KILL, True, 2, 1, 0.3, 0.04, (Finding("culprit", ""), Finding("culprit", ""))))
    tally.add(Outcome(KILL, True, 0, 0, None, None, (Finding("hang", ""), Finding("leak", ""))))
    tally.add(Outcome(KILL, False, 0, 0, None, None, ()))
    assert tally.failures == 2
    text = tally.table()
    row = next(line for line in text.splitlines() if line.startswith("kill"))
    assert row.split() == ["kill", "tcp", "3", "1", "1", "75", "%", "200", "300", "30", "40"]
    assert "\n\n0 in every row: wrong, alarms, stuck, late" in text
    assert "1 more, in which the fault did not come to strike" in text


def test_a_failure_says_how_to_repeat_it() -> None:
    text = describe(Outcome(KILL, True, 2, 2, 0.1, 0.02, (Finding("late", "by far"),)))
    assert "late: by far" in text
    assert "python -m tests.chaos case processes/tcp/kill/3/7" in text


def test_it_goes_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = markers("one")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        write(page, "new", "one")
    assert page.read_text() == f"before\n{begin}\n\n```\nnew\n```\n\n{end}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match=r"page.md: .*begin one.*end one"):
        write(page, "new", "one")
    assert page.read_text() == "nothing"


@pytest.mark.processes
def test_the_machine_is_named() -> None:
    assert "Python" in machine()


@pytest.mark.parametrize("bed", ["threads", "processes"])
def test_every_fault_is_tried_on_every_transport(bed: str) -> None:
    chosen = kinds(bed, 300, Random(1))  # type: ignore[arg-type]
    assert set(chosen) == {(t, fault) for where, fault in FAULTS if where == bed for t in TRANSPORTS[where]}
    assert 250 < len(chosen) < 350
    assert chosen == kinds(bed, 300, Random(1))  # type: ignore[arg-type]
    assert {fault for _, fault in kinds(bed, 30, Random(1), ["kill", "tcp"])} == {"kill"}  # type: ignore[arg-type]


def test_the_cases_depend_on_the_seed_alone() -> None:
    assert for_threads(100, 5) == for_threads(100, 5)
    assert for_threads(100, 5) != for_threads(100, 6)
