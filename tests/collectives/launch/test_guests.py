"""Ranks that an engine places: their seats, and a process that takes one."""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import threading
from typing import Any

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
    seconds_of,
    show_line,
    store_keeper,
    variables_of,
)
from collectives.launch.calls.guests import Lines
from transports.errors import RendezvousError

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
        with pytest.raises(ValueError, match=r"maximum=1: .*minimum=2"):
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
            with pytest.raises(RuntimeError, match="another job"):
                Occupant(job.seats([HERE])[0]).__enter__()
        assert not collectives.is_initialized()
        assert os.environ == before


def test_an_error_aborts_the_world_and_does_not_end_the_worker() -> None:
    with GuestJob() as job, Occupant(job.seats([HERE])[0]) as rank:
        rank.connect()
        with pytest.raises(RuntimeError, match=r"rank 0 raised SystemExit: 3"):
            rank.call(exit, [3])
    assert not collectives.is_initialized()


def test_a_rank_that_comes_after_its_job_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_keeper, "REACH_SECONDS", 0.01)
    with GuestJob({"RONDE_CONNECT_TIMEOUT": "600"}) as job:
        seat = job.seats([HERE, THERE])[0]
    with Occupant(seat) as rank, pytest.raises(RendezvousError, match="no connection"):
        rank.connect()


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


def test_output_that_is_no_text_of_utf_8_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine sends UTF-8, and a worker of Dask that cannot is lost; the terminal of the caller may have less."""
    sent: list[str] = []
    own = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape")
    lines = Lines(own, sent.append)
    print("a name: \udcff", file=lines)
    print("and \udcfe", end="", file=lines)
    lines.finish()
    assert sent == ["a name: \\udcff", "and \\udcfe"]
    own.flush()
    assert own.buffer.getvalue() == b"a name: \xff\nand \xfe"  # type: ignore[attr-defined]
    shown = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    show_line(3, "\xfc \udcff")
    shown.flush()
    assert shown.buffer.getvalue() == b"[rank 3] \\xfc \\udcff\n"  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdout", None)  # a process without a terminal may have none
    show_line(3, "nothing")


def test_the_output_of_several_threads_is_whole() -> None:
    sent: list[str] = []
    lines = Lines(io.StringIO(), sent.append)
    other = threading.Thread(target=lines.write, args=("other\n",))

    class Text(str):
        __slots__ = ()

        def __radd__(self, before: str) -> str:
            """Let another thread write in the middle of a write; it waits if it must."""
            other.start()
            other.join(0.1)
            return before + str(self)

    lines.write("begun, ")
    lines.write(Text("ended\n"))
    other.join()
    assert sent == ["begun, ended", "other"]


def test_output_goes_to_the_descriptor_and_the_buffer_of_the_worker() -> None:
    with open(os.devnull, "w", encoding="ascii") as own:
        lines = Lines(own, print)
        assert lines.fileno() == own.fileno()
        assert lines.encoding == "ascii"
        assert lines.buffer.write(b"bytes") == 5


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ([("A", "b")], TypeError),
        ({"A": None}, TypeError),
        ({"A": b"b"}, TypeError),
        ({1: "b"}, TypeError),
        ({"": "b"}, ValueError),
        ({"A=": "b"}, ValueError),
        ({"A": "\0"}, ValueError),
    ],
)
def test_variables_that_no_environment_takes(given: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="env"):
        variables_of("env", given)


def test_variables_are_text_and_times_are_finite() -> None:
    assert variables_of("env", None) == {}
    assert variables_of("env", {"A": 5, "B": "x\ny"}) == {"A": "5", "B": "x\ny"}
    assert seconds_of("timeout", 3) == 3.0
    for endless in (math.inf, 1e300):
        assert 0 < seconds_of("timeout", endless) < threading.TIMEOUT_MAX


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
