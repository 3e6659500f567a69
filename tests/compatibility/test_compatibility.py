"""The compatibility run: what counts as a difference, the table of it, and a few tests of torch on ronde."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compatibility import runs
from tests.compatibility.results import Bed, Difference, Results
from tests.compatibility.table import BEGIN, END, replaced, table

GLOO, SHM, TCP = Bed("torch", 2, "gloo"), Bed("torch", 2, "ronde", "shm"), Bed("torch", 2, "ronde", "tcp")
LOOP = "test_distributed_data_loop"


def some() -> Results:
    return Results(
        {
            GLOO: {
                "test_a": "passed",
                "test_b": "skipped",
                "test_monitored_barrier_gloo": "passed",
                "test_c": "failed",
            },
            SHM: {"test_a": "passed", "test_b": "passed", "test_monitored_barrier_gloo": "failed", "test_c": "passed"},
            TCP: {"test_a": "skipped"},
            Bed("accelerate", 2, "gloo"): {LOOP: "late"},
            Bed("accelerate", 2, "ronde", "shm"): {LOOP: "failed"},
        }
    )


def test_a_difference_is_what_passes_or_hangs_on_gloo_alone() -> None:
    loop, barrier, other = some().differences()
    assert (loop.name, loop.outcome) == (LOOP, "failed")
    assert loop.reason.startswith("hangs on gloo")
    assert (barrier.bed, barrier.name) == (SHM, "test_monitored_barrier_gloo")
    assert "accepts no backend but one named gloo" in barrier.reason
    assert other == Difference(TCP, "test_a", "skipped", "")


def test_results_are_kept_and_replaced_test_by_test(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.json"
    assert Results.load(path).outcomes == {}
    some().save(path)
    results = Results.load(path)
    assert results.outcomes == some().outcomes
    results.add(TCP, {"test_a": "passed", "test_d": "failed"})
    assert results.outcomes[TCP] == {"test_a": "passed", "test_d": "failed"}


def test_the_table_counts_and_tells_why() -> None:
    lines = table(some()).splitlines()
    assert lines[:4] == [
        "| tests of | ranks | gloo | ronde shm | ronde tcp | differ from gloo |",
        "|---|---|---|---|---|---|",
        "| accelerate | 2 | 0 pass | 0 pass |  | 1 |",
        "| torch | 2 | 2 pass | 3 pass | 0 pass | 2 |",
    ]
    assert lines[-1] == "| torch: `test_a` | not deliberate |"
    assert "differs" not in table(Results({GLOO: {"test_a": "passed"}}))


def test_only_the_text_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}old\n{END}\nafter\n"
    assert replaced(page, "new\n") == f"before\n{BEGIN}new\n{END}\nafter\n"
    with pytest.raises(ValueError, match="has no lines"):
        replaced("before\n", "new\n")


@pytest.mark.frameworks
@pytest.mark.long
def test_tests_of_torch_run_on_ronde(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
    pytest.importorskip("expecttest", reason="expecttest is not installed: pip install 'ronde[compatibility]'")
    names = ["test_all_reduce_sum", "test_monitored_barrier_gloo", "test_all_reduce_sum_cuda"]
    log = tmp_path / "log"
    outcomes = runs.torch_suite(SHM, names, log)
    assert outcomes == dict(zip(names, ("passed", "failed", "skipped"), strict=True)), log.read_text()
    assert "monitored_barrier is only implemented for GLOO backend" in log.read_text()


@pytest.mark.processes
def test_a_process_that_is_late_is_ended(tmp_path: Path) -> None:
    words = ["-c", "import time; print('here', flush=True); time.sleep(600)"]
    assert runs.run_python(words, GLOO, tmp_path / "log", 0.5) is None
    assert runs.run_python(["-c", "raise SystemExit(3)"], GLOO, tmp_path / "log", 60.0) == 3
