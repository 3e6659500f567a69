"""Horovod's elastic programs, changed by their import alone: a host's slot is added and taken away while they train.
And torchrun, which starts all ranks again."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.launch.supervision.test_elastic import ROOT, elastic

pytestmark = [pytest.mark.processes, pytest.mark.frameworks, pytest.mark.cluster]


@pytest.mark.parametrize("framework", ["torch", "keras", "tensorflow", "jax"])
def test_a_rank_comes_and_leaves(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    hosts, script = tmp_path / "hosts", tmp_path / "discover.sh"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    program = str(Path(__file__).parent / "elastic" / f"{framework}_train.py")
    extra = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    options = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(script)]
    with elastic(*options, program, extra=extra) as job:
        for size, lines, then in (("size=2", 2, "localhost:3\n"), ("size=3", 3, "localhost:2\n")):
            for _ in range(lines):
                job.read("train", size)
            hosts.write_text(then)
        code, err = job.finish()
    assert code == 0, err
    ends = job.words("done")
    assert len(ends) == 2
    assert ends[0] == ends[1], "the ranks hold the same parameters"
    assert ends[0][1:4] == ["2", "3", "2"]
    assert "came: 2" in err
    assert "left: 2 (its host is not offered any more)" in err


@pytest.mark.parametrize(
    ("nodes", "meeting"),
    [
        ("1", "--master-port={}"),
        ("1:2", "--rdzv-backend=c10d --rdzv-conf=last_call_timeout=2 --rdzv-endpoint=127.0.0.1:{}"),
    ],
)
def test_torchrun_starts_all_ranks_again(nodes: str, meeting: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = str(Path(__file__).parent / "elastic" / "torchrun_train.py")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [f"--nnodes={nodes}", *meeting.format(port).split(), "--nproc-per-node=2", "--max-restarts=1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("start"))
    assert lines == [f"start 1 rank {rank}: [3.0, 3.0, 3.0]" for rank in range(2)]
