"""The flight record of ranks that run, of ranks that were killed, and of no rank."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.flight import (
    BATCHES,
    CALLS,
    CLOSED,
    FAILED,
    KEPT_MASK,
    MESSAGES,
    OPEN,
    SAVED,
    Description,
    FlightRecord,
    Record,
    UnreadableRecord,
    read,
    records,
    save,
    worlds,
)
from collectives.flight.layout import FACTS_AT, HEAD_BYTES, KEPT, LASTING, LOGS_AT, MOST_LOGS, OVERTAKEN, TEXTS
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes
from tests.transports.tcp_ranks import wait_until
from tests.worlds import world_of

pytestmark = pytest.mark.usefixtures("own_folder")

FORMS = [("shm", "off"), ("shm", "on"), ("tcp", "off"), ("tcp", "on")]


def found() -> list[Record]:
    """The records of the newest world."""
    (folder,) = worlds()
    return [read(path, time.perf_counter_ns()) for path in records(folder)]


def calls(rank: int, url: str, transport: str, compiled: str, death: bool) -> tuple[int, int, list[Record]]:
    with member(rank, 2, url, transport=transport, compiled=compiled) as comm:
        begin = time.perf_counter_ns()
        x = np.ones(4)
        for _ in range(30):
            comm.allreduce(x)
        comm.broadcast(x, 1)
        if rank == 1:
            while len(list(found()[0].entries("0-0"))) < 32:  # rank 0 has not come to the barrier
                time.sleep(0.01)
            time.sleep(0.1)
        comm.barrier()
        alive = found()
        comm.barrier()
        if death:
            os.kill(os.getpid(), signal.SIGKILL)
        return begin, time.perf_counter_ns(), alive


@pytest.mark.processes
@pytest.mark.parametrize(("transport", "compiled"), FORMS)
def test_a_record_has_the_calls_of_a_rank_and_their_times(transport: str, compiled: str) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="the compiled interpreter needs Numba")
    with meeting_place() as url:
        results = run_processes(calls, 2, url, transport, compiled, False, timeout=120)
    for begin, end, alive in results:
        assert [record.rank for record in alive] == [0, 1]
        assert all(record.alive and record.state == OPEN and not record.failure for record in alive)
        for record in alive:
            entries = list(record.entries("0-0"))
            assert [entry.number for entry in entries][:32] == list(range(1, 33))
            assert [entry.text.collective for entry in entries[:32]] == ["allreduce"] * 30 + ["broadcast", "barrier"]
            assert all(entry.ended is not None and entry.began <= entry.ended for entry in entries[:31])
            assert [entry.began for entry in entries] == sorted(entry.began for entry in entries)
            assert entries[0].text.nbytes == 32
            assert entries[30].text.root == 1
            assert entries[0].text.line.startswith("test_flight_record.py:")
        both = range(min(begin for begin, *_ in results), max(end for _, end, _ in results))
        late = {record.rank: list(record.entries("0-0"))[31].began for record in alive}
        assert all(moment in both for moment in late.values())
        assert late[1] - late[0] > 50_000_000  # the rank that slept comes later, by one clock
    assert all(not record.alive and record.state == CLOSED for record in found())


@pytest.mark.processes
@pytest.mark.parametrize(("transport", "compiled"), FORMS[::2])
def test_a_record_can_be_read_after_all_ranks_were_killed(transport: str, compiled: str) -> None:
    with meeting_place() as url:
        run_processes(calls, 2, url, transport, compiled, True, timeout=120, dying={0, 1})
    for record in found():
        assert not record.alive
        assert record.state == OPEN or record.failure["error"] == "PeerLost"
        assert record.calls["0-0"].newest == 33
        assert list(record.entries("0-0"))[31].text.collective == "barrier"


def dies(rank: int, url: str) -> Any:
    with member(rank, 2, url, transport="shm") as comm:
        comm.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(Exception, match=r".*"):
            comm.allreduce(np.ones(3))


@pytest.mark.processes
def test_a_record_has_the_failure_and_the_call_that_did_not_end() -> None:
    with meeting_place() as url:
        run_processes(dies, 2, url, timeout=120, dying={1})
    survivor, killed = found()
    assert survivor.state == FAILED
    assert (survivor.failure["error"], survivor.failure["rank"], survivor.failure["peer"]) == ("PeerLost", 0, 1)
    last = list(survivor.entries("0-0"))[-1]
    assert (last.text.collective, last.ended) == ("allreduce", None)
    assert (killed.state, killed.calls["0-0"].newest) == (OPEN, 1)


def many(rank: int, url: str, compiled: str) -> Any:
    with member(rank, 2, url, transport="shm", compiled=compiled) as comm:
        x = np.ones(2)
        for _ in range(KEPT + 100):
            comm.allreduce(x)
        splits = [comm.split(0) for _ in range(MOST_LOGS)]
        for one in splits:
            assert one is not None
            one.barrier()
        comm.barrier()
        records = found()
        comm.barrier()
        return records


@pytest.mark.processes
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_the_newest_calls_stay_and_the_file_does_not_grow(compiled: str) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="the compiled interpreter needs Numba")
    with meeting_place() as url:
        alive, _ = run_processes(many, 2, url, compiled, timeout=120)
    for record in alive:
        numbers = record.calls["0-0"].numbers
        assert len(numbers) >= KEPT - 40
        assert numbers.tolist() == list(range(int(numbers[0]), int(numbers[-1]) + 1))
        assert len(record.calls) == MOST_LOGS
        assert record.path.stat().st_size < 2 << 20


def silent(rank: int, url: str) -> list[Path]:
    with member(rank, 2, url, flight_record=False) as comm:
        comm.barrier()
        return worlds()


@pytest.mark.processes
def test_the_setting_turns_it_off() -> None:
    with meeting_place() as url:
        assert run_processes(silent, 2, url, timeout=60) == [[], []]


def record_of(world: str) -> FlightRecord:
    return FlightRecord.create(world, 0, {"size": 2})


def test_old_worlds_are_forgotten_and_those_that_live_stay(tmp_path: Path) -> None:
    alive = record_of("alive")
    for index in range(12):
        record_of(f"over-{index}").close()
    names = {folder.name for folder in worlds()}
    assert "alive" in names
    assert "over-11" in names
    assert "over-0" not in names
    assert len(names) <= 10
    alive.close()


def test_a_record_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run" / "ronde").write_text("no folder")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run" / "ronde"))
    record = record_of("refused")
    assert record.path is None
    log = record.call_log("0-0", 2, 0, "")
    log.close()
    record.describe(1, ["text"])
    record.fail({"error": "PeerLost"})
    record.close()


def test_other_users_cannot_enter_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "ronde").mkdir(mode=0o755)
    record = record_of("closed")
    assert record.path is not None
    for path, mode in ((record.path, 0o600), (record.path.parent, 0o700), (tmp_path / "run" / "ronde", 0o700)):
        assert path.stat().st_mode & 0o777 == mode
    record.close()


def test_other_files_are_refused(tmp_path: Path) -> None:
    short, other = tmp_path / "rank-0.flight", tmp_path / "rank-1.flight"
    short.write_bytes(b"x")
    other.write_bytes(bytes(1 << 20))
    for path in (short, other):
        with pytest.raises(UnreadableRecord):
            read(path, 0)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((kept, None) for kept in (LOGS_AT - 1, LOGS_AT, LOGS_AT + 8, LOGS_AT + 300, LOGS_AT + 5000)),
        (FACTS_AT + 8, b"\xc1"),
        (FACTS_AT, b"\x01"),
        (HEAD_BYTES + 16, b"\xc1"),
        (FACTS_AT, bytes(8)),  # it tells of no rank
        *((LOGS_AT + 8 * KEPT_MASK, struct.pack("q", kept)) for kept in (-1, 1 << 60)),
    ],
)
def test_a_record_that_is_cut_off_or_damaged_is_refused(tmp_path: Path, at: int, value: bytes | None) -> None:
    record = FlightRecord.create("w", 0, {"size": 1})
    record.describe(TEXTS, Description("barrier()", "barrier", 0, "", 0, -1, ""))
    record.call_log("0-0", 1, 0, "world")
    assert record.path is not None
    data = bytearray(record.path.read_bytes())
    record.close()
    if value is None:
        del data[at:]
    else:
        data[at : at + len(value)] = value
    damaged = tmp_path / "rank-0.flight"
    damaged.write_bytes(data)
    with pytest.raises(UnreadableRecord):
        read(damaged, 0)


@pytest.mark.parametrize(("rank", "size"), [(-10, 3), (3, 3), (0, 0)])
def test_a_record_of_a_rank_that_cannot_be_is_refused(rank: int, size: int) -> None:
    record = FlightRecord.create("w", rank, {"size": size})
    assert record.path is not None
    with pytest.raises(UnreadableRecord, match=f"rank {rank} of {size} in 'w'"):
        read(record.path, 0)
    record.close()


@pytest.mark.parametrize("name", ["", "0", "0-", "-0", "world", "x-0", "0-x", "0-0x", "0-batchWs"])
def test_a_record_with_a_wrong_name_of_a_communicator_is_refused(name: str) -> None:
    """Its ranks could not be told."""
    record = FlightRecord.create("w", 0, {"size": 1})
    record.call_log(name, 1, 0, "world")
    assert record.path is not None
    with pytest.raises(UnreadableRecord, match=f"'{name}' .*communicator"):
        read(record.path, 0)
    record.close()


@pytest.mark.parametrize("place", range(len(Description._fields)))
def test_a_description_has_fields_of_its_types(place: int) -> None:
    fields: list[Any] = list(Description("barrier()", "barrier", 0, "", 0, -1, ""))
    assert Description.of(fields) == tuple(fields)
    fields[place] = b"?"
    for wrong in (fields, fields[:-1], None, "barrier"):
        with pytest.raises(ValueError, match="no call"):
            Description.of(wrong)


def test_texts_that_utf_8_cannot_encode_are_kept_without_those_characters() -> None:
    """The name of a program or file that is not UTF-8, which Python gives as surrogates."""
    name = os.fsdecode(b"caf\xe9.py")
    record = FlightRecord.create("w", 0, {"size": 1, "program": name})
    number = record.passing_text(Description("barrier()", "barrier", 0, "", 0, -1, f"{name}:3"))
    record.fail({"error": "OSError", "text": name})
    (seen,) = found()
    assert (seen.facts["program"], seen.text(number).line) == ("caf?.py", "caf?.py:3")
    assert seen.failure == {"error": "OSError", "text": "caf?.py"}
    record.close()


def test_other_files_in_the_folder_are_passed_over(tmp_path: Path) -> None:
    for name in ("rank-10.flight", "rank-9.flight", "rank-9 (copy).flight", "rank-.flight"):
        (tmp_path / name).touch()
    assert [path.name for path in records(tmp_path)] == ["rank-9.flight", "rank-10.flight"]


def test_texts_that_pass_displace_none_that_last() -> None:
    record = record_of("texts")
    log = record.call_log("0-0", 2, 0, "")
    notes = record.note_log("0-0" + MESSAGES, 2, 0, "messages")
    lasting = [next(record.numbers) for _ in range(TEXTS)]
    for number in lasting:
        record.describe(number, Description(f"plan {number}", "allreduce", 8, "ring", 1, -1, ""))
    often = Description("often", "message", 0, "", 0, 1, "")
    for number in range(300):
        notes.end(notes.begin(Description(f"receive {number}", "message", 0, "", 0, 1, "")))
        notes.end(notes.begin(often, 5))
    (found_one,) = found()
    newest = [entry.text.call for entry in found_one.entries("0-0" + MESSAGES)][-40:]
    assert newest == [text for number in range(280, 300) for text in (f"receive {number}", "often")]
    kept = [found_one.text(number).call for number in lasting[-LASTING:]]
    assert kept == [f"plan {number}" for number in lasting[-LASTING:]]
    assert len(set(lasting)) == TEXTS
    assert not set(lasting) & set(found_one.calls["0-0" + MESSAGES].texts.tolist())
    log.close()
    notes.close()
    record.close()


@pytest.mark.parametrize("failed", [False, True])
def test_a_wait_has_ended_once_its_communicator_is_closed_but_not_after_a_failure(failed: bool) -> None:
    """The watchdog may note the end later than that."""
    record = record_of("ends")
    notes = record.note_log("0-0" + MESSAGES, 2, 0, "messages")
    entry = notes.begin(Description("receive", "message", 0, "", 0, 1, ""))
    if failed:
        record.fail({"error": "PeerLost", "text": "", "rank": 1, "peer": 1})
    notes.close()
    notes.end(entry)
    record.close()
    (found_one,) = found()
    (noted,) = found_one.entries("0-0" + MESSAGES)
    assert (noted.ended is None) == failed


def waits_for_a_message(rank: int, url: str) -> None:
    with member(rank, 2, url, transport="shm") as comm:
        if rank == 0:
            wait_until(lambda: noted() == [("message", 0, False)])
            comm.send(np.ones(2), 1)
        else:
            comm.recv(np.ones(2), 0)
            wait_until(lambda: noted() == [("message", 0, True)])
        comm.barrier()


def noted() -> list[tuple[str, int, bool]]:
    """The messages of rank 1 that its watchdog has noted: their roots, and if they have ended."""
    name, record = "0-0" + MESSAGES, found()[1]
    entries = record.entries(name) if name in record.calls else ()
    return [(entry.text.collective, entry.text.root, entry.ended is not None) for entry in entries]


@pytest.mark.processes
def test_a_wait_for_a_message_is_noted() -> None:
    with meeting_place() as url:
        run_processes(waits_for_a_message, 2, url, timeout=60)


def names(rank: int, url: str) -> Any:
    with member(rank, 2, url, transport="shm") as comm:
        x = np.ones(2)
        for _ in range(3):
            for work in [comm.allreduce_async(x, name=f"layer{number}") for number in range(2)]:
                work.wait()
        comm.barrier()
        entries = [list(record.entries("1-0" + BATCHES)) for record in found()]
        comm.barrier()
        return entries


@pytest.mark.processes
def test_batches_of_named_operations_are_noted() -> None:
    with meeting_place() as url:
        first, second = run_processes(names, 2, url, timeout=60)[0]
    assert [entry.text.call for entry in first] == [entry.text.call for entry in second]
    assert [entry.text.digest for entry in first] == [entry.text.digest for entry in second]
    assert all("'layer" in entry.text.call and entry.text.collective == "batch" for entry in first)
    assert all(entry.ended is not None and entry.began <= entry.ended for entry in first)


def test_a_copy_leaves_out_what_was_overwritten_meanwhile(tmp_path: Path) -> None:
    record = record_of("copied")
    log = record.call_log("0-0", 2, 0, "")
    log.words[CALLS] = 5000
    assert record.path is not None
    copy = save(record.path, tmp_path / "copies")
    (whole,) = (read(copy, 0),)
    assert (whole.alive, whole.state, whole.runs) == (False, SAVED, True)
    assert len(whole.calls["0-0"].numbers) == KEPT - 1
    data = bytearray(copy.read_bytes())
    struct.pack_into("q", data, LOGS_AT + 8 * OVERTAKEN, 100)
    copy.write_bytes(data)
    assert read(copy, 0).calls["0-0"].numbers.tolist() == list(range(5000 - KEPT + 102, 5001))
    record.close()
    assert read(save(record.path, tmp_path / "closed"), 0).state == CLOSED
    (tmp_path / "other.flight").write_bytes(bytes(1 << 20))
    with pytest.raises(UnreadableRecord):
        save(tmp_path / "other.flight", tmp_path)
    log.close()


def test_ranks_without_a_record_save_none(tmp_path: Path) -> None:
    with world_of("local", 2) as world:
        assert world.communicators[0].save_flight_record(tmp_path / "records") is None
        with pytest.raises(TypeError, match="folder=7: must be a path"):
            world.communicators[0].save_flight_record(7)  # type: ignore[arg-type]
    assert not (tmp_path / "records").exists()


def test_long_texts_are_cut() -> None:
    record = record_of("long")
    log = record.call_log("0-0" + "0" * 300, 2, 0, "label" * 100)
    record.describe(7, ["x" * 1000, "allreduce", 8, "ring", 1, -1, "é" * 1000])
    record.fail({"error": "PeerLost", "text": "t" * 5000})
    record.fail({"error": "Second"})
    (found_one,) = found()
    assert found_one.descriptions[7].collective == "allreduce"
    assert found_one.failure["error"] == "PeerLost"
    log.close()
    record.close()


def test_a_log_may_be_made_while_another_thread_closes_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog makes one so: it goes on until the transport is closed."""
    record, allocate = record_of("w"), getattr(os, "posix_fallocate", lambda *room: None)

    def close_meanwhile(descriptor: int, at: int, count: int) -> None:
        allocate(descriptor, at, count)
        closing.start()
        closing.join(0.1)

    closing = threading.Thread(target=record.close)
    monkeypatch.setattr(os, "posix_fallocate", close_meanwhile, raising=False)
    notes = record.note_log("0-messages", 2, 0, "messages")
    notes.end(notes.begin(Description("recv", "message", 0, "", 0, 1, "")))
    notes.close()
    closing.join(60.0)
    assert not closing.is_alive()
