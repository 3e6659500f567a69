"""`ronde run` in an allocation of Slurm, with a fake srun on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectives.launch.job.host_list import NamedHost, allocated, tasks_per_node
from tests.collectives.launch.launcher import ronde
from transports.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[08-09],gpu1", "SLURM_TASKS_PER_NODE": "2(x2),1"}
NODES = [NamedHost("n08", "n08", 2), NamedHost("n09", "n09", 2), NamedHost("gpu1", "gpu1", 1)]
SRUN = """#!/bin/sh
for word; do
    case $word in --nodelist=*) node=${word#*=};; esac
    case $word in --*) shift;; *) break;; esac
done
export SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=3 SLURMD_NODENAME=$node SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
exec setsid -w "$@"
"""


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0", "SLURM_NTASKS": "5"},
        {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_nodes_of_an_allocation(more: dict[str, str]) -> None:
    assert allocated(JOB | more) == NODES


def test_without_a_number_of_tasks_each_node_has_one() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "a,b"}
    assert allocated(job) == [NamedHost("a", "a", 1), NamedHost("b", "b", 1)]


@pytest.mark.parametrize(
    "environment",
    [{}, JOB | {"RONDE_LAUNCHER": "none"}, JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}],
)
def test_no_allocation(environment: dict[str, str]) -> None:
    assert allocated(environment) is None


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "srun has started 4 copies of this launcher"),
        ({"SLURM_TASKS_PER_NODE": "2(x2)"}, "describes 2 nodes, but SLURM_JOB_NODELIST has 3"),
        ({"SLURM_TASKS_PER_NODE": "two"}, "must be numbers of tasks"),
        ({"SLURM_HET_SIZE": "2"}, "SLURM_HET_SIZE=2: "),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST="),
    ],
)
def test_variables_that_make_no_sense(more: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        allocated(JOB | more)
    assert complaint in str(caught.value)


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1,4(x2)") == [2, 2, 2, 1, 4, 4]


@pytest.mark.processes
def test_a_job_in_an_allocation(tmp_path: Path) -> None:
    script = tmp_path / "srun"
    script.write_text(SRUN)
    script.chmod(0o755)
    extra = {**JOB, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = ronde("run", "--no-prefix", "sh", "-c", "echo $RONDE_RANK $RONDE_SIZE $SLURMD_NODENAME", extra=extra)
    assert done.returncode == 0, done.stderr.decode()
    lines = ["0 5 n08", "1 5 n08", "2 5 n09", "3 5 n09", "4 5 gpu1"]
    assert sorted(done.stdout.decode().splitlines()) == lines


@pytest.mark.processes
def test_the_doctor_in_an_allocation(tmp_path: Path) -> None:
    script = tmp_path / "srun"
    script.write_text(SRUN)
    script.chmod(0o755)
    extra = {**JOB, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    options = ["--start-timeout", "60", "--network-interface", "127.0.0.1"]  # these names resolve to no address
    done = ronde("doctor", "--json", *options, extra=extra)
    found = json.loads(done.stdout)
    assert [host["name"] for host in found["hosts"]] == ["n08", "n09", "gpu1"], done.stderr.decode()
    assert [link["state"] for link in found["links"]] == ["ok"] * 6
    done = ronde("doctor", "--json", extra=extra | {"RONDE_LAUNCHER": "none"})
    assert "transports" in json.loads(done.stdout)
