"""A short campaign and a short soak, through the command that runs the long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.table import markers

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300.0


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """python -m tests.chaos, to its end."""
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, cwd=ROOT, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("bed", "cases"),
    [
        ("threads", ("--threads", "70", "--processes", "0", "--jobs", "4")),
        ("processes", ("--threads", "0", "--processes", "9", "--only", "auto")),
    ],
)
def test_a_short_campaign(tmp_path: Path, bed: str, cases: tuple[str, ...]) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(markers("campaign")))
    done = chaos("campaign", *cases, "--seed", "1", "--patience", "20", "--write", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no case failed" in done.stdout
    assert f"ranks as {bed}" in page.read_text()
    assert "--seed 1" in page.read_text()


def test_a_short_soak() -> None:
    done = chaos("soak", "--minutes", "0.15", "--seed", "1", "--patience", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures, no growth" in done.stdout


@pytest.mark.processes
def test_a_case_can_be_repeated() -> None:
    done = chaos("case", "threads/local/kill/3/1", "--times", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed threads/local/kill/3/1, noticed after") == 2


@pytest.mark.processes
@pytest.mark.parametrize("case", ["local/hang/4/678230", "shm/drop/5/680358", "local/kill/3/678561"])
def test_cases_that_failed_once(case: str) -> None:
    """A rank hung where all meet after an attempt in vain; ranks were missed while a window was made."""
    done = chaos("case", f"threads/{case}", "--times", "3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_unknown_arguments_are_refused() -> None:
    assert "must be among" in chaos("campaign", "--only", "earthquake").stderr
    assert "must be bed/transport/fault/ranks/seed" in chaos("case", "kill").stderr
