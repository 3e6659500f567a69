"""The table of elastic jobs: some cells are measured here, all of them by python -m tests.netns.elastic_table."""

from __future__ import annotations

import pytest

from tests.netns import cluster
from tests.netns.elastic_jobs import WHERE, Line, Where, longest_pause, steps_lost
from tests.netns.elastic_table import EVENTS, Cell, happen, table

PLACES = {where.name: where for where in WHERE}
BY = {event.name: event for event in EVENTS}
ONE, TWO, THREE = PLACES["1 host, shm"], PLACES["2 hosts"], PLACES["3 hosts"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("where", "event"), [(ONE, "terminated"), (TWO, "preempted"), (TWO, "cut_off"), (THREE, "store_replaced")]
)
def test_a_job_goes_on_after_an_event(where: Where, event: str) -> None:
    reason = cluster.obstacle()
    if reason is not None:
        pytest.skip(reason)
    cell = happen(where, BY[event])
    assert cell.wrong == [], cell.words


def line(at: float, words: str) -> Line:
    return Line(at, 1, words.split())


def test_a_step_that_is_computed_again_is_lost() -> None:
    done = [line(1.0, "world 0 2 0"), line(2.0, "step 0 2 1"), line(2.5, "step 1 2 2")]
    assert steps_lost([*done, line(4.0, "world 0 1 1"), line(5.0, "step 0 1 2")]) == 1
    assert steps_lost([*done, line(4.0, "world 0 1 2"), line(5.0, "step 0 1 3")]) == 0


def test_the_longest_pause_begins_before_the_event() -> None:
    steps = [line(at, f"step 0 2 {at:.0f}") for at in (1.0, 2.0, 7.0, 8.0, 11.0)]
    assert longest_pause([*steps, line(30.0, "step 1 2 9")], 3.0) == 5.0
    assert longest_pause(steps, 7.5) == 3.0


def test_the_table_says_what_ends_the_job() -> None:
    text = table({(ONE.name, "rank_killed"): Cell(1, 0.25, 0.5), (TWO.name, "store_killed"): Cell(until=14.0)})
    assert text == (
        "|  | 1 host, shm | 2 hosts |\n| --- | --- | --- |\n"
        "| a rank gets SIGKILL | 1, 0.25 s (0.5 s) | - |\n"
        "| the launcher's host is switched off [1] | - | ends, 14.0 s |\n\n"
        f"[1] {BY['store_killed'].ends}."
    )
