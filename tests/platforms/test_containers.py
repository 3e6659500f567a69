"""Rows of the table of containers in docs/platforms.md, those that need no more than seconds."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from benchmarks import containers
from tests.platforms.starting import python
from transports import stacks

ROWS = {row.name: row for row in containers.rows()}
QUICK = ("`prlimit64` gives EPERM", "all of these give EPERM", "/dev/shm of 1 MB", "the same, without `-np`: 1 rank")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are of Linux")


def run(name: str) -> str:
    found = containers.outcome(ROWS[name])
    if found.startswith("not run"):
        pytest.skip(found)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("name", QUICK)
def test_it_is_right(name: str) -> None:
    assert run(name).startswith("right")


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(ROWS.keys() - {*QUICK, "no loopback"}))
def test_it_is_right_everywhere(name: str) -> None:
    assert run(name).startswith("right")


@pytest.mark.processes
def test_a_missing_network_is_one_sentence() -> None:
    found = run("no loopback")
    assert found.startswith("refused")
    assert "loopback" in found


@pytest.mark.processes
def test_a_filter_refuses_a_call() -> None:
    text = (
        "import errno, os\n"
        "from benchmarks.containers import refuse\n"
        "refuse(['pidfd_open'], errno.EPERM)()\n"
        "try:\n"
        "    os.pidfd_open(os.getpid())\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    assert python("-c", text).stdout == "refused\n"


def test_a_stack_is_had_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError("refused")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert "test_a_stack_is_had_without_files_in_memory" in stacks.stack_of(threading.get_ident())


@pytest.mark.processes
def test_shared_windows_of_mpi_need_no_files_in_memory() -> None:
    text = (
        "import errno\n"
        "from benchmarks.containers import refuse\n"
        "refuse(['memfd_create'], errno.EPERM)()\n"
        "from ronde.mpi import MPI\n"
        "window = MPI.Win.Allocate_shared(64, 1, comm=MPI.COMM_WORLD)\n"
        "memory, _ = window.Shared_query(1 - MPI.COMM_WORLD.rank)\n"
        "window.Fence()\n"
        "memory[0] = MPI.COMM_WORLD.rank + 1\n"
        "window.Fence()\n"
        "print(window.tomemory()[0] == 2 - MPI.COMM_WORLD.rank)\n"
        "window.Free()\n"
    )
    ended = python("-m", "ronde", "run", "-np", "2", sys.executable, "-c", text)
    assert ended.stdout.count("True") == 2, ended.stderr


def test_the_page_has_a_row_for_each_kind() -> None:
    shown = containers.PAGE.read_text("utf-8").split(containers.BEGIN)[1].split(containers.END)[0]
    assert [line.split("|")[1].strip() for line in shown.strip().splitlines()[2:]] == list(ROWS)
