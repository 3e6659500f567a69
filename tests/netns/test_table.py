"""The table of launchers: one cell of it is measured here, all of them by python -m tests.netns.table."""

from __future__ import annotations

import pytest

from tests.netns import table
from tests.netns.launchers import LAUNCHERS

BY = {launcher.name: launcher for launcher in LAUNCHERS}
EVENTS = {event.name: event for event in table.EVENTS}


@pytest.mark.long
def test_a_rank_is_killed_on_nodes_started_by_hand() -> None:
    cell = table.happen(BY["hand"], EVENTS["rank_killed"])
    assert (table.wrong(BY["hand"], EVENTS["rank_killed"], cell), cell.code, cell.left) == ("", 137, []), cell.words


def test_what_is_wrong_is_said() -> None:
    cell = table.Cell(None, 1.0, 0, False, ["python on beta"])
    assert table.wrong(BY["ssh"], EVENTS["rank_killed"], cell) == (
        "left python on beta; exit code 0; the culprit is not named"
    )
    assert table.wrong(BY["ssh"], None, table.Cell(1.0, 1.0, 1, True)) == "wrong result"


def test_launchers_that_leave_something_behind_have_a_note() -> None:
    left = table.Cell(None, 7.0, None, True, ["srun on alpha", "srun on alpha"])
    assert table.wrong(BY["srun"], EVENTS["cut_off"], left) == ""
    assert table.table({("srun", "cut_off"): left, ("ssh", "cut_off"): table.Cell(11.0, 11.0, 255, True)}) == (
        "|  | `ronde run -H`, ssh | srun |\n"
        "| --- | --- | --- |\n"
        "| the other host is cut off | 11.0 s, 255 | 7.0 s [1] |\n\n"
        f"[1] Left: srun on alpha. {table.NOTES['srun', 'cut_off']}."
    )


def test_notes_are_about_cells_that_there_are() -> None:
    assert table.NOTES.keys() <= {(launcher, event) for launcher in BY for event in EVENTS}
