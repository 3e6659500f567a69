"""The script for a machine with a GPU, tried without one: its checks, its table, its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import fake_rig, run_one_gpu
from tests.gpu.one_gpu_checks import ALONE, Check, checks, two_on_one
from transports.testing import run_processes

ROOT = Path(__file__).resolve().parents[2]
QUICK = [check.name for check in checks(23000) if check.name.startswith(("nccl, 2", "auto")) or "mixed" in check.name]


@pytest.mark.parametrize("name", [name for name in QUICK if "movements" not in name])
def test_checks_with_a_gpu_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_one_gpu.main(["--fake", "--only", name]) == 0
    head, *said = capsys.readouterr().out.splitlines()
    assert "NO GPU WAS USED" in head
    (row,) = [line for line in said if f"{name}  " in line]
    assert row.startswith("ok")


@pytest.mark.parametrize(
    "name",
    ["shm, 2 ranks on the GPU: mixed", "tcp, 2 ranks on the GPU: groups", "nccl, 1 rank: split", "nccl, 1 rank: abort"],
)
def test_checks_in_processes(name: str, tmp_path: Path) -> None:
    (check,) = [check for check in checks(23000) if check.name == name]
    assert run_processes(fake_rig.on_rank, check.size, name, str(tmp_path), timeout=60) == [None] * check.size


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert run_one_gpu.main(["--fake", "--only", "1 rank: s", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert "NO GPU WAS USED" in report["about"]["fake"]
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert found == dict.fromkeys(("nccl, 1 rank: schedules", "nccl, 1 rank: streams", "nccl, 1 rank: split"), "ok")
    assert capsys.readouterr().out.splitlines()[-1] == "# 3 checks, 0 failed, 0 skipped"


def test_failures_and_time_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(comm: Any, cupy: Any, rig: Any) -> None:
        raise AssertionError("it is wrong\nin two lines")

    check = Check("a check", fail, 1, ALONE)
    row = run_one_gpu.attempt(fake_rig.FakeRunner(), check, float("inf"))
    assert (row.status, row.detail) == ("FAILED", "AssertionError: it is wrong")
    assert run_one_gpu.attempt(fake_rig.FakeRunner(), check, 0.0).status == "skipped"
    assert run_one_gpu.main(["--fake", "--only", "no such check"]) == 1
    capsys.readouterr()


def test_names_are_distinct_and_without_nccl_fewer() -> None:
    names = [check.name for check in checks(23000)]
    assert len(set(names)) == len(names) > 40
    assert not any(check.name.startswith("nccl") for check in checks(None))


def test_how_two_ranks_share_a_gpu() -> None:
    assert two_on_one(23003)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    older = two_on_one(22803)
    assert older["NCCL_HOSTID"].format(rank=1) == "ronde-1"
    for environment in (older, two_on_one(23003)):
        assert environment["NCCL_SOCKET_IFNAME"] == "lo"
        assert environment["NCCL_IB_DISABLE"] == environment["NCCL_MAX_CTAS"] == "1"


def test_it_runs_from_a_checkout_and_never_claims_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/gpu/run_one_gpu.py")]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [*command, "--fake", "--list"], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "nccl, 2 ranks on the GPU: one dies" in done.stdout.splitlines()
