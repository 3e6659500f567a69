"""Stall reports: the calls of all ranks, the stacks of those elsewhere, and the times of the reports."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectives import DeadlineExceeded, run, world
from collectives.watchdog import stall_report as stall
from collectives.watchdog import watchdog as watch
from tests.collectives.launch.launcher import running

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the usual times."""
    monkeypatch.setattr(watch, "LISTEN_SECONDS", 0.05)
    monkeypatch.setattr(stall, "COLLECT_SECONDS", 0.2)
    monkeypatch.setenv("RONDE_STALL", "0.2")
    monkeypatch.setenv("RONDE_TIMEOUT", str(PATIENCE))


class Reports(logging.Handler):
    """Collects log records; `wait_for` waits for a number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.arrived = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.arrived:
            assert record.levelno == logging.WARNING
            self.texts.append(record.getMessage())
            self.arrived.notify_all()

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.texts) >= count, PATIENCE), f"{len(self.texts)} reports"


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler = Reports()
    logging.getLogger("ronde").addHandler(handler)
    yield handler
    logging.getLogger("ronde").removeHandler(handler)


def dawdle(reports: Reports, count: int = 1) -> None:
    """Keep the other ranks waiting until they have reported."""
    reports.wait_for(count)


def test_allreduce_late_rank_is_reported_once_with_its_stack(reports: Reports) -> None:
    def body() -> None:
        comm = world()
        assert comm.allreduce(1) == 3
        if comm.rank == 2:
            dawdle(reports)
        assert comm.allreduce(1) == 3

    run(body, np=3, transport="local")
    lasted = sorted(float(found.split(" for ")[1].split()[0]) for found in reports.texts)
    assert all(seconds >= 0.2 * 2**number for number, seconds in enumerate(lasted))  # each once, not once a rank
    text = reports.texts[0]
    head, same, late, *stack = text.splitlines()
    asker = int(head.split()[1])
    assert asker in (0, 1)
    assert f"rank {asker} (" in head
    assert " s in allreduce(int64, 1 elements, op=sum), call 2, " in head
    assert f"; rank {asker} waits " in head
    assert same.startswith(f"  in the same call: rank {1 - asker} (")
    assert ": allreduce(int64, 1 elements, op=sum), call 2, " in same
    assert late.startswith("  not there: rank 2 (")
    assert late.endswith("), in no call:")
    assert any(line.endswith(", in dawdle") for line in stack), text
    assert stack[-1].strip() != "reports.wait_for(count)"  # it is deeper
    assert len(stack) > 4


@pytest.mark.long
def test_barrier_reports_on_one_stall_come_at_growing_intervals(reports: Reports) -> None:
    times: list[float] = []

    def body() -> None:
        if world().rank == 1:
            for count in (1, 2, 3):
                dawdle(reports, count)
                times.append(time.monotonic())
        world().barrier()

    began = time.monotonic()
    run(body, np=2, transport="local")
    assert len(reports.texts) == 3
    # asked after 0.2, 0.4 and 0.8 s at the earliest
    assert [at - began >= least for at, least in zip(times, (0.2, 0.4, 0.8), strict=True)] == [True] * 3


@pytest.mark.long
def test_no_report_while_no_rank_waits_or_with_the_setting_zero(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        world().barrier()
        time.sleep(0.6)
        world().barrier()

    monkeypatch.setenv("RONDE_STALL", "0.5")
    run(body, np=2, transport="local")
    monkeypatch.setenv("RONDE_STALL", "0")

    def late() -> None:
        if world().rank == 1:
            time.sleep(0.6)
        world().barrier()

    run(late, np=2, transport="local")
    assert reports.texts == []


def test_barrier_of_a_split_and_recv_are_reported_with_each_other(reports: Reports) -> None:
    """In a split of ranks 0 and 2 of 3, rank 2 waits for a message of rank 0, and rank 0 for rank 2 in a barrier."""

    def body() -> None:
        comm = world()
        group = comm.split(comm.rank % 2)
        assert group is not None
        group.barrier()
        if comm.rank == 0:
            group.barrier()
            group.send(np.ones(2), 1)
        elif comm.rank == 2:
            message = group.recv_async(np.zeros(2), 0)
            while len(reports.texts) < 2:
                with pytest.raises(DeadlineExceeded):
                    message.wait(1.0)
            group.barrier()
            message.wait()
        else:
            dawdle(reports, 2)

    run(body, np=3, transport="local")
    texts = sorted(reports.texts[:2])
    assert texts[0].startswith("rank 0 (")
    assert " s in barrier(), call 2, " in texts[0]
    assert "\n  not there: rank 2 (" in texts[0]
    assert ", in a call to receive from rank 0:\n" in texts[0]
    assert texts[1].startswith("rank 2 (")
    assert " s in a call to receive from rank 0\n" in texts[1]
    assert "\n  not there: rank 0 (" in texts[1]
    assert ", in barrier(), call 2, " in texts[1]
    assert not any("rank 1 (" in text for text in texts)


@pytest.mark.long
def test_allreduce_that_times_out_carries_the_report_as_a_note(reports: Reports) -> None:
    def body() -> None:
        comm = world()
        if comm.rank == 1:
            dawdle(reports, 1000)
            return
        with pytest.raises(DeadlineExceeded) as caught:
            comm.allreduce(1, timeout=2.0)
        notes[:] = getattr(caught.value, "__notes__", [])
        with reports.arrived:
            reports.texts += [""] * 1000
            reports.arrived.notify_all()

    notes: list[str] = []
    run(body, np=2, transport="local")
    assert notes == [text for text in reports.texts if text][-1:]
    assert ", in dawdle" in notes[0]


LATE = """
import sys
import collectives as ronde
from collectives.watchdog import stall_report as stall, watchdog as watch

watch.LISTEN_SECONDS, stall.COLLECT_SECONDS = 0.1, 0.3

def dawdle():
    open(sys.argv[1]).close()

world = ronde.init()
if world.rank == 1:
    dawdle()
ronde.barrier()
ronde.shutdown()
"""


@pytest.mark.processes
def test_report_is_on_stderr_by_default(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    go = tmp_path / "go"
    os.mkfifo(go)
    with running("run", "-np", "2", "--set", "stall=0.3", str(script), str(go)) as job:
        assert job.process.stderr is not None
        text = ""
        while "open(sys.argv[1])" not in text:
            line = job.process.stderr.readline()
            assert line, text
            text += line.decode()
        go.write_bytes(b"")
        code, _, rest = job.finish()
    assert code == 0, rest
    assert "[rank 0] rank 0 (" in text
    assert " s in barrier(), call 1, " in text
    assert "  not there: rank 1 (" in text
    assert f'File "{script}", line 9, in dawdle\n' in text
