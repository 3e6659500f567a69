"""Made failures: the explanation of the records names the kind, the rank and the call.

Each is played by ranks that are processes; at its end every process is killed or has ended, as after a real failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from collectives import Communicator, RondeError
from collectives.flight import CLOSED, FAILED, SAVED, FlightRecord, Record, read, records, worlds
from collectives.observing import STOPPED, Explanation, Failure, explain
from frontends.command_line import why
from frontends.command_line.cli import main
from tests.collectives.observing.made import MadeWorld, described
from tests.collectives.ranks import await_failure, meeting_place, member
from tests.processes import run_processes

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_folder")]
FORMS = [("shm", "off"), ("shm", "on"), ("tcp", "off"), ("tcp", "on")]
X = np.ones(3, np.float32)


def newest() -> list[Record]:
    return [read(path, time.perf_counter_ns()) for path in records(worlds()[0])]


# ---- programs of the last rank, while the others call allreduce


def other_collective(comm: Communicator) -> None:
    comm.barrier()


def other_size(comm: Communicator) -> None:
    comm.allreduce(np.ones(4, np.float32))


def other_dtype(comm: Communicator) -> None:
    comm.allreduce(np.ones(3, np.float64))


def other_op(comm: Communicator) -> None:
    comm.allreduce(X, "max")


def raises(comm: Communicator) -> None:
    try:
        raise ZeroDivisionError("in the user's program")
    except ZeroDivisionError as error:
        comm.abort(f"{error!r}")
        raise SystemExit(1) from error


def aborts(comm: Communicator) -> None:
    comm.abort("by hand")


def is_killed(comm: Communicator) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(comm: Communicator) -> None:
    comm.close(0.2)


def never_comes(comm: Communicator) -> None:
    await_failure(comm, 30)


class Case(NamedTuple):
    """A program of the last rank, and what is to be found."""

    program: Callable[[Communicator], None]
    kind: Failure
    timeout: float = 60.0


CASES = {
    case.program.__name__: case
    for case in (
        Case(other_collective, Failure.MISMATCH),
        Case(other_size, Failure.MISMATCH),
        Case(other_dtype, Failure.MISMATCH),
        Case(other_op, Failure.MISMATCH),
        Case(raises, Failure.ABORTED),
        Case(aborts, Failure.ABORTED),
        Case(is_killed, Failure.KILLED),
        Case(leaves, Failure.LEFT),
        Case(never_comes, Failure.ABSENT, 1.5),
    )
}


def plays(rank: int, size: int, url: str, name: str, transport: str, compiled: str) -> None:
    case = CASES[name]
    with (
        member(rank, size, url, transport=transport, compiled=compiled, patience=0.2) as comm,
        contextlib.suppress(RondeError, SystemExit),
    ):
        for _ in range(5):  # a rank may still be in the last one when another one has failed
            comm.allreduce(X)
        if rank == size - 1:
            case.program(comm)
        else:
            comm.allreduce(X, timeout=case.timeout)


def explained(size: int, name: str, transport: str, compiled: str) -> Explanation:
    if compiled == "on":
        pytest.importorskip("numba", reason="the compiled interpreter needs Numba")
    with meeting_place() as url:
        run_processes(plays, size, size, url, name, transport, compiled, timeout=120, dying=set(range(size)))
    return explain(newest())


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("size", "form"), [(2, 0), (3, 3), (4, 1)])
def test_a_failure_is_explained(name: str, size: int, form: int) -> None:
    found = explained(size, name, *FORMS[form])
    assert found.kind == CASES[name].kind
    last = size - 1
    if found.kind == Failure.MISMATCH:
        assert found.difference is not None
        assert found.difference.number == 6
        assert last in found.ranks
        ranks = {rank: side.description for side in found.difference.sides for rank in side.ranks}
        assert ranks[last] != ranks[0]
    else:
        assert found.ranks == (last,)
    if found.kind == Failure.ABSENT:
        assert found.call is not None
        assert (found.call.communicator, found.call.number) == ("world", 6)
        assert found.call.description.collective == "allreduce"
    text = "\n".join(why.lines(found))
    assert all(f"rank {rank}" in text for rank in range(size))


# ---- failures of two or more ranks


def crossed_communicators(comm: Communicator) -> None:
    one, two = comm.split(0), comm.split(0)
    assert one is not None
    assert two is not None
    for each in (one, two):
        each.barrier()
    for each in (one, two) if comm.rank else (two, one):
        each.allreduce(X)


def crossed_receives(comm: Communicator) -> None:
    comm.recv(np.zeros(3, np.float32), 1 - comm.rank, tag=5)


def swapped_order(comm: Communicator) -> None:
    for call in (comm.barrier, lambda: comm.allreduce(X))[:: 1 if comm.rank else -1]:
        call()


def other_root(comm: Communicator) -> None:
    comm.broadcast(X, comm.rank)


def waits_for_a_message(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.recv(np.zeros(3, np.float32), 1)
    else:
        await_failure(comm, 30)


TOGETHER = {
    case.program.__name__: case
    for case in (
        Case(crossed_communicators, Failure.DEADLOCK),
        Case(crossed_receives, Failure.DEADLOCK),
        Case(swapped_order, Failure.MISMATCH),
        Case(other_root, Failure.MISMATCH),
        Case(waits_for_a_message, Failure.ABSENT),
    )
}


def play_together(rank: int, url: str, name: str, transport: str) -> None:
    with member(rank, 2, url, transport=transport, patience=0.2, timeout=4.0) as comm:
        comm.barrier()
        with contextlib.suppress(RondeError):
            TOGETHER[name].program(comm)


@pytest.mark.parametrize("name", list(TOGETHER))
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_failure_of_several_ranks_is_explained(name: str, transport: str) -> None:
    with meeting_place() as url:
        run_processes(play_together, 2, url, name, transport, timeout=120)
    found = explain(newest())
    assert found.kind == TOGETHER[name].kind
    if found.kind == Failure.DEADLOCK:
        assert set(found.ranks) == {0, 1}
    elif found.kind == Failure.ABSENT:
        assert found.ranks == (1,)
        assert found.call is not None
        assert found.call.description.root == 1


def is_stopped(rank: int, url: str, pids: Path) -> tuple[Failure, tuple[int, ...], str]:
    with member(rank, 2, url, transport="shm", patience=0.2) as comm:
        comm.barrier()
        if rank == 1:
            pids.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            return Failure.NONE, (), ""
        with pytest.raises(RondeError):
            comm.allreduce(X)
        found = explain(newest(), {1: STOPPED})
        os.kill(int(pids.read_text()), signal.SIGKILL)
        return found.kind, found.ranks, "\n".join(why.lines(found))


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    with meeting_place() as url:
        found, _ = run_processes(is_stopped, 2, url, tmp_path / "pid", timeout=120, dying={1})
    assert found[:2] == (Failure.STOPPED, (1,))


# ---- all ranks at once


def all_are_killed(rank: int, url: str, transport: str) -> None:
    with member(rank, 2, url, transport=transport) as comm:
        for _ in range(20):
            comm.allreduce(X)
        os.kill(os.getpid(), signal.SIGKILL)


def kill_all(transport: str) -> None:
    with meeting_place() as url:
        run_processes(all_are_killed, 2, url, transport, timeout=120, dying={0, 1})
    found = explain(newest())
    assert found.snapshot.size == 2
    assert not found.snapshot.missing
    assert found.kind == Failure.KILLED
    for record in found.snapshot.charges.world.records:
        assert record.calls["0-0"].newest == 20
        assert [entry.number for entry in record.entries("0-0")] == list(range(1, 21))


def test_the_records_stay_after_all_ranks_were_killed() -> None:
    for transport in ("shm", "tcp", "shm"):
        kill_all(transport)


def test_the_records_stay_after_all_ranks_were_killed_fifty_times() -> None:
    for attempt in range(50):
        kill_all("shm" if attempt % 2 else "tcp")


# ---- the command, and copies of records


def saves(rank: int, url: str, folder: Path) -> tuple[str, bool]:
    with member(rank, 2, url, transport="shm") as comm:
        for _ in range(3000):
            comm.allreduce(X)
        path = comm.save_flight_record(folder)
        assert path is not None
        comm.barrier()
        return path.name, read(path, 0).runs


def test_a_record_is_saved_while_its_rank_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved" / "records"
    with meeting_place() as url:
        assert run_processes(saves, 2, url, folder, timeout=120) == [("rank-0.flight", True), ("rank-1.flight", True)]
    for record in (read(path, 0) for path in records(folder)):
        assert record.state == SAVED
        assert record.calls["0-0"].newest == 3000
        assert (np.diff(record.calls["0-0"].began) > 0).all()
    trace = tmp_path / "trace.json"
    assert main(["why", str(folder), "--trace", str(trace)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert trace.read_text().count('"name": "allreduce"') >= 4000


def test_the_command_explains_the_newest_world(capsys: pytest.CaptureFixture[str]) -> None:
    with meeting_place() as url:
        run_processes(plays, 2, 2, url, "is_killed", "shm", "off", timeout=120, dying={0, 1})
    assert main(["why"]) == 1
    printed = capsys.readouterr().out
    assert "rank 1 (" in printed
    assert "was killed" in printed
    assert "PeerLost" in printed
    assert "test_failures.py:" in printed


def test_the_command_refuses_what_is_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why"]) == 2
    assert main(["why", str(tmp_path)]) == 2
    (tmp_path / "rank-0.flight").write_bytes(b"no record")
    assert main(["why", str(tmp_path)]) == 2
    assert main(["why", str(tmp_path / "rank-7.flight")]) == 2
    assert "rank-7.flight" in capsys.readouterr().err


# ---- without processes


def test_the_command_goes_on_without_a_record_that_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = FlightRecord.create("w", 0, {"size": 2})
    assert record.path is not None
    folder = record.path.parent
    (folder / "rank-1.flight").write_bytes(record.path.read_bytes()[:9000])
    assert [one.rank for one in why.read([folder])] == [0]
    assert "rank-1.flight" in capsys.readouterr().err
    record.close()
    assert main(["why", str(folder / "rank-1.flight")]) == 2


def test_the_command_explains_the_job_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for world in ("h1-1-old", "h1-2-new"):
        FlightRecord.create(world, 0, {"size": 1, "program": "train.py"}).close()
    for given in (["--job", "h1-1-old"], ["--job", "h1-1"], []):
        assert main(["why", *given]) == 0
        assert capsys.readouterr().out.startswith("h1-1-old: " if given else "h1-2-new: ")
    for wrong in (["--job", "h2"], ["--job", "h1"], ["--job", ""], ["--job", "h1-1-old", "."]):
        assert main(["why", *wrong]) == 2
        assert wrong[1] in capsys.readouterr().err


def failure(error: str, rank: int | None, peer: int | None) -> dict[str, Any]:
    return {"error": error, "text": "made", "rank": rank, "peer": peer}


def hung() -> MadeWorld:
    world = MadeWorld(["a", "a", "b"], {"b": 10**9})
    for _ in range(10):
        world.compute(1)
        world.call()
    world.call(described("allreduce", 64), without=[2])
    return world


def test_a_world_that_runs_and_waits() -> None:
    found = explain(hung().records(read_after=9000))
    assert (found.kind, found.ranks) == (Failure.ABSENT, (2,))
    assert found.call is not None
    assert (found.call.number, found.call.waits_for) == (11, (2,))


def test_the_command_fails_only_for_a_wait_that_is_long() -> None:
    short, long = (explain(hung().records(read_after=after)) for after in (9000, 40_000))
    assert [found.kind for found in (short, long)] == [Failure.ABSENT] * 2
    assert [why.exit_code(found) for found in (short, long)] == [0, 1]


def test_a_world_in_which_nothing_is_wrong() -> None:
    world = MadeWorld(["a", "a"])
    world.call()
    assert explain(world.records()).kind == Failure.NONE
    closed = world.records(alive={0: False, 1: False}, state={0: CLOSED, 1: CLOSED})
    assert explain(closed).kind == Failure.NONE


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"alive": {2: False}}, Failure.KILLED),
        ({"alive": {2: False}, "state": {2: CLOSED}}, Failure.LEFT),
        ({"alive": dict.fromkeys(range(3), False)}, Failure.KILLED),
        ({"state": {0: FAILED}, "failure": {0: failure("PeerLost", 0, 2)}, "alive": {2: False}}, Failure.KILLED),
        ({"state": {0: FAILED}, "failure": {0: failure("PeerLost", 0, 2)}}, Failure.STOPPED),
        ({"state": {0: FAILED}, "failure": {0: failure("DeadlineExceeded", 0, 2)}}, Failure.ABSENT),
        ({"state": {2: FAILED}, "failure": {2: failure("AbortedError", 2, 2)}}, Failure.ABORTED),
        ({"state": {2: FAILED}, "failure": {2: failure("ConnectError", 2, None)}}, Failure.OTHER),
    ],
)
def test_the_fate_of_the_missing_rank(facts: dict[str, Any], kind: Failure) -> None:
    found = explain(hung().records(**facts))
    assert found.kind == kind
    assert 2 in found.ranks


def test_the_first_difference_in_time_is_told() -> None:
    world = MadeWorld(["a"] * 4)
    other = world.split(3, [0, 1])
    world.call(name=other)
    for rank in world.ranks:
        texts = described("allreduce", 64 if rank.rank != 3 else 128), described("barrier", 0)
        for number, text in enumerate(texts, 1):
            rank.calls.setdefault("0-0", []).append((number, rank.now + number, 0, text))
            rank.newest["0-0"] = number
    del world.ranks[2].calls["0-0"][:]
    world.ranks[2].newest["0-0"] = 0
    found = explain(world.records())
    assert found.kind == Failure.MISMATCH
    assert found.ranks == (3,)
    assert found.difference is not None
    assert (found.difference.number, found.difference.absent) == (1, (2,))
    assert [side.ranks for side in found.difference.sides] == [(0, 1), (3,)]


def test_many_ranks_share_lines() -> None:
    world = MadeWorld(["a"] * 100)
    world.call()
    world.call(without=[42])
    text = list(why.lines(explain(world.records(read_after=1000))))
    assert len(text) < 10
    assert any("ranks 0-41, 43-99" in line for line in text)
