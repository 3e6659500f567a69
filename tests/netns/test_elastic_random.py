"""Elastic jobs to which everything happens at random: two short ones; many by python -m tests.netns.elastic_random."""

from __future__ import annotations

import random

import pytest

from tests.collectives.elastic.oracle import Oracle
from tests.netns import cluster
from tests.netns.elastic_jobs import NAMES, WHERE, Line
from tests.netns.elastic_random import MOST_FAULTS, MOST_SLOTS, Process, Scene, Tally, history, judged, run_job
from tests.netns.elastic_training import digest, empty_sizes

PLACES = {where.name: where for where in WHERE}


@pytest.mark.cluster
@pytest.mark.parametrize(("where", "seed"), [("1 host, shm", 1), ("2 hosts", 2)])
def test_a_job_goes_on_whatever_happens(where: str, seed: int) -> None:
    reason = cluster.obstacle()
    if reason is not None:
        pytest.skip(reason)
    course = run_job(PLACES[where], seed, 20.0, Tally())
    assert course.faults == [], "\n".join(course.story)


def line(at: float, words: str, pid: int = 1) -> Line:
    return Line(at, pid, words.split())


def job_of(sizes: list[int]) -> list[Line]:
    """The lines of a job that ends well, whose world has these sizes."""
    steps = [line(step, f"step 0 {size} {step}") for step, size in enumerate(sizes, 1)]
    told = empty_sizes()
    told[: len(sizes)] = sizes
    weights = ",".join(map(str, Oracle().train(sizes).weights))
    done = [line(99, f"done {len(sizes)} {weights} {digest(told)}") for _ in range(sizes[-1])]
    return [line(0, "world 0 2 0"), *steps, *done]


def test_the_oracle_judges_the_parameters_by_the_history() -> None:
    assert judged(job_of([2, 2, 3, 1, 2]), ended=True) == []
    other = [line(0, "world 0 2 0"), *job_of([2, 2, 3, 2, 2])[1:6], *job_of([2, 2, 3, 1, 2])[6:]]
    assert [text.split()[0] for text in judged(other, ended=True)] == ["rank", "rank"]
    assert judged(job_of([2, 2])[:-1], ended=True) == ["1 of 2 ranks have come to the end"]


def test_a_step_counts_as_it_was_the_last_time() -> None:
    steps = [line(1, "step 0 3 1"), line(2, "step 1 3 2"), line(3, "world 0 2 1"), line(4, "step 0 2 2")]
    assert history(steps) == [3, 2]
    with pytest.raises(ValueError, match="all steps"):
        history([line(1, "step 0 3 2")])


def test_a_state_that_is_lost_is_wrong() -> None:
    steps = [line(at, f"step 0 2 {at}") for at in range(1, 6)]
    assert judged([*steps, line(6, "world 0 2 4")], ended=False) == []
    assert judged([*steps, line(6, "world 0 2 0")], ended=False) == ["5 steps were lost in a change of ranks"]


@pytest.mark.parametrize("seed", range(20))
def test_events_spare_the_state_and_the_slots(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(NAMES[0], NAMES, dict.fromkeys(NAMES[:2], 2), most=4, spares=1)
    kinds = set()
    for _ in range(40):
        running = {
            pid: Process(name, slot, has_state=True)
            for pid, (name, slot) in enumerate((name, slot) for name in scene.used for slot in range(scene.used[name]))
        }
        scene.settled()
        for _ in range(3):
            event = scene.choose(chance, running)
            if event is None:
                break
            scene.note(event)
            kinds.add(event.kind)
            assert set(running) - scene.doomed, "one that has the state is left"
            assert scene.used[NAMES[0]] >= 1
            assert sum(scene.slots.values()) <= MOST_SLOTS
            assert max(scene.faults.values(), default=0) <= MOST_FAULTS
        for name in scene.refused:
            scene.slots[name] = 0
        scene.refused.clear()
        scene.away.clear()
    assert len(kinds) > 5
