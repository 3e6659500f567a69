"""Ranks that an engine places: their seats, and a process that takes one."""

from __future__ import annotations

import os
import pickle

import pytest

import collectives
from collectives.launch import (
    Failure,
    GuestJob,
    Occupant,
    Place,
    Success,
    call_as_rank,
    dump,
    in_rank_order,
    load,
    own_settings,
)

HERE = Place("node-a", "127.0.0.1")
THERE = Place("node-b", "127.0.0.1")


def test_ranks_are_sorted_by_node_and_know_their_neighbours() -> None:
    assert in_rank_order([HERE, THERE, HERE, THERE]) == [0, 2, 1, 3]
    with GuestJob() as job:
        seats = job.seats([HERE, THERE, HERE])
    assert [(seat.rank, seat.job.local_rank, seat.job.local_size) for seat in seats] == [
        (0, 0, 2),
        (2, 0, 1),
        (1, 1, 2),
    ]
    assert len({seat.job.store for seat in seats}) == 1


def test_newcomers_have_numbers_of_their_own() -> None:
    with GuestJob() as job:
        first = job.seats([HERE, THERE])
        job.let_ranks_come(1, 3)
        with pytest.raises(ValueError, match="maximum=1: must be at least minimum=2"):
            job.let_ranks_come(2, 1)
        seats = [job.newcomer(HERE), job.newcomer(HERE), job.newcomer(THERE)]
    assert [(seat.rank, seat.job.joins, seat.job.local_rank) for seat in seats] == [
        (2, True, 1),
        (3, True, 2),
        (4, True, 1),
    ]
    assert {(seat.job.store, seat.job.secret) for seat in seats} == {(first[0].job.store, first[0].job.secret)}


def test_the_secret_travels_but_is_not_shown() -> None:
    with GuestJob() as job, GuestJob() as other:
        seat, strange = job.seats([HERE])[0], other.seats([HERE])[0]
    copied = pickle.loads(pickle.dumps(seat))
    assert copied == seat
    assert copied.job.secret != strange.job.secret
    assert seat.job.secret.hex() not in repr(seat)
    assert repr(seat.job.secret) not in repr(seat)


def test_an_occupant_is_the_rank_and_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_LAUNCHER", "none")
    before = dict(os.environ)
    with GuestJob({"COLOUR": "green"}) as job:
        with Occupant(job.seats([HERE])[0]) as rank:
            rank.connect()
            world = collectives.world()
            rank.connect()
            assert collectives.world() is world
            assert rank.call(lambda x, y: (os.environ["COLOUR"], world.size, x + y), [1], {"y": 2}) == ("green", 1, 3)
            with pytest.raises(RuntimeError, match="another job already"):
                Occupant(job.seats([HERE])[0]).__enter__()
        assert not collectives.is_initialized()
        assert os.environ == before


def test_an_error_aborts_the_world_and_does_not_end_the_worker() -> None:
    with GuestJob() as job, Occupant(job.seats([HERE])[0]) as rank:
        rank.connect()
        with pytest.raises(RuntimeError, match=r"rank 0 raised SystemExit: 3"):
            rank.call(exit, [3])
    assert not collectives.is_initialized()


def _prints(first: int, second: int, *, last: int) -> int:
    print("begun")
    print("no end", end="")
    return first + 10 * second + 100 * last


def test_a_task_is_the_rank_and_its_outcome_has_any_error(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    joined: list[int] = []

    def told() -> None:
        joined.append(collectives.size())

    with GuestJob() as job:
        seat = job.seats([HERE])[0]
        work = pickle.dumps((_prints, [2], {"last": 3}))
        outcome, rank = call_as_rank(seat, work, lines.append, pickle.dumps, first=[1], connected=told)
    assert (load(0, outcome), rank, lines, joined) == (Success(0, 321), 0, ["begun", "no end"], [1])
    assert capsys.readouterr().out == "begun\nno end"
    for broken, text in [(b"no pickle", ""), (pickle.dumps((int, ["seven"], {})), "seven")]:
        with GuestJob() as job:
            failed = load(0, call_as_rank(job.seats([HERE])[0], broken, lines.append, pickle.dumps)[0])
        assert isinstance(failed, Failure)
        assert text in str(failed.error)
        assert "Traceback" in failed.trace
    assert not collectives.is_initialized()


def test_bad_places_and_settings() -> None:
    with GuestJob() as job, pytest.raises(ValueError, match="at least one worker"):
        job.seats([])
    given = {"RONDE_LOG_LEVEL": "info", "RONDE_SECRET": "ab" * 32, "RONDE_RANK": "1", "PATH": "/bin"}
    assert own_settings(given) == {"RONDE_LOG_LEVEL": "info"}


def test_outcomes_of_another_pickler() -> None:
    pickled: list[object] = []

    def pickler(value: object) -> bytes:
        pickled.append(value)
        return pickle.dumps(value)

    assert load(1, dump(Success(1, "x"), pickler)) == Success(1, "x")
    assert pickled == [Success(1, "x")]
