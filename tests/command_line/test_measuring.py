"""`ronde bench` and `ronde tune` on ranks that a launcher or `-H` starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectives.planning.rules import Rules
from tests.collectives.launch.fake_ssh import install
from tests.collectives.launch.launcher import RONDE, ronde

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawnp"), reason="ronde run is for POSIX systems")

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--max", "1K", "--factor", "16", "--seconds", "0.01")


@pytest.mark.processes
def test_bench_on_hosts(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("bench", *SHORT, "-H", "h1:2,h2:1", "--json", str(file), extra=variables)
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert out.count("# allreduce, 3 ranks over ") == 1
    assert "# wrong elements: 0" in out
    assert json.loads(file.read_text())["ranks"] == 3


@pytest.mark.processes
def test_bench_by_every_rank_of_a_launcher(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    words = [*RONDE, "bench", "allgather", *SHORT, "--transport", "tcp", "--json", str(file)]
    done = ronde("run", "-np", "3", "--no-prefix", *words, extra={"PYTHONPATH": str(ROOT)})
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert out.count("# allgather, 3 ranks over tcp, ") == 1
    report = json.loads(file.read_text())
    assert (report["ranks"], report["transport"]) == (3, "tcp")


@pytest.mark.processes
def test_tune_on_hosts(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    options = ["--min", "256", "--max", "256", "--seconds", "0.01"]
    done = ronde("tune", "broadcast", *options, "-H", "h1,h2", "-o", str(file), extra=variables)
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert out.count(f"in {file}; use them with") == 1
    assert Rules.read(str(file)).costs


@pytest.mark.processes
def test_another_number_than_that_of_the_launcher() -> None:
    words = [*RONDE, "bench", "-np", "3", *SHORT]
    done = ronde("run", "-np", "2", *words, extra={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert b"ronde bench: -np 3: " in done.stderr


@pytest.mark.processes
def test_an_error_on_every_rank_ends_the_launcher() -> None:
    words = [*RONDE, "bench", "--algorithm", "nosuch", *SHORT]
    done = ronde("run", "-np", "2", *words, extra={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert b"ronde bench: error: " in done.stderr
