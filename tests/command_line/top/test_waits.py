"""`ronde top` on jobs in which one rank makes the others wait: the reason and the rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line.top.jobs import WAITS, running, top

LOOP = "while True: pass"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="records are locked and mapped as Linux does it"),
]


def look() -> Any:
    done = top("--once", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def verdict(figures: Any) -> list[tuple[str, list[int]]]:
    """The reasons and ranks."""
    return [(one["kind"], one["ranks"]["first"]) for one in figures["culprits"]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", ["sleeps", "late", "rooted", "chain", "named", "messages"])
def test_a_rank_that_comes_late_is_named(case: str, transport: str, tmp_path: Path) -> None:
    with running(case, 4, tmp_path / "job", program=WAITS, RONDE_TRANSPORT=transport):
        figures = look()
    assert verdict(figures) == [("late", [3])]
    assert figures["culprits"][0]["share"] > 0.3
    assert max(figures["ranks"], key=lambda row: row["caused"])["rank"] == 3


@contextlib.contextmanager
def busy(core: int) -> Iterator[None]:
    """A loop that uses a core."""
    loop = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", LOOP], start_new_session=True)
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


@pytest.mark.cluster
@pytest.mark.crowd
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_whose_core_is_shared_is_told_from_a_late_one(transport: str, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    options = {"RONDE_TRANSPORT": transport, "RONDE_TCP_AFFINITY": "off", "RONDE_SHM_AFFINITY": "off"}
    options["CORES"] = " ".join(map(str, cores))
    with running("computes", 2, tmp_path / "job", program=WAITS, **options), busy(cores[1]):
        time.sleep(2.0)  # the time of which the look tells
        figures = look()
    assert verdict(figures) == [("slow core", [1])]
    assert figures["ranks"][1]["run_delay"] > 0.5
