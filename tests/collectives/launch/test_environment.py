"""The environment of ranks: what goes to other hosts, `-x`, and what the launcher adds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.launch import agent_commands, environment
from collectives.launch.agent_commands import BOOTSTRAP, Srun, Ssh
from transports import launchers
from transports.errors import ConfigError

HERE = {
    "PATH": "/bin",
    "PYTHONPATH": "/p",
    "LD_LIBRARY_PATH": "/l",
    "VIRTUAL_ENV": "/v",
    "CONDA_PREFIX": "/c",
    "RONDE_TIMEOUT": "30",
    "RONDE_RULES": "with spaces, 'quotes'\nand lines",
}
STAYS = {
    **dict.fromkeys(["HOSTNAME", "HOME", "SSH_AUTH_SOCK", "DISPLAY", "XDG_RUNTIME_DIR", "TMPDIR", "LANG"], "x"),
    **dict.fromkeys(["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "CUDA_VISIBLE_DEVICES"], "1"),
    **dict.fromkeys(["RONDE_RANK", "RONDE_SECRET", "RONDE_STORE", "RONDE_RANK_PROCESS", "RONDE_SECRET_FILE"], "x"),
    "BASH_FUNC_module%%": "() {  eval $(lmod)\n}",
    "XPATH": "x",
    "PATHS": "x",
}


def test_what_is_passed_on() -> None:
    extra = {"CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/given"}
    assert environment.passed_on({**HERE, **STAYS}, extra) == {**HERE, **extra}


def test_exported() -> None:
    assert environment.exported(["A", "B=b=c", "C="], {"A": "a", "B": "x"}) == {"A": "a", "B": "b=c", "C": ""}


@pytest.mark.parametrize(("word", "complaint"), [("A", "-x A: is not set here"), ("=x", "-x '=x': must be NAME")])
def test_bad_export(word: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        environment.exported([word], {})


def test_variables_of_a_rank() -> None:
    job = launchers.Job(5, 8, "tcp://h1:1", b"s" * 32, 1, 4, "job")
    base = {"RANK": "7", "MASTER_PORT": "1", "OMPI_COMM_WORLD_RANK": "7", "SLURM_PROCID": "7", "OMP_NUM_THREADS": "3"}
    found = environment.of_rank(job, base, ("10.0.0.1", 29500))
    assert launchers.job_from_environment(found) == job
    assert {name: found[name] for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")} == {
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert (found["RANK"], found["MASTER_PORT"]) == ("5", "29500")
    assert (found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"]) == ("3", "1")
    assert not {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID"} & found.keys()


def test_ssh_command() -> None:
    *options, address, remote = Ssh(2222, "key file").command("user@h1")
    assert options[0] == "ssh"
    assert options[-5:] == ["-p", "2222", "-i", "key file", "--"]
    assert "BatchMode=yes" in options
    assert address == "user@h1"
    assert remote == f"exec {sys.executable} -S -E -c '{BOOTSTRAP}'"
    assert not set(BOOTSTRAP) & set("'\\!$`\n")


def test_srun_command() -> None:
    words = Srun().command("n08")
    assert words[0] == "srun"
    assert {"--overlap", "--nodelist=n08", "--ntasks=1", "--mpi=none"} <= set(words)
    assert "--unbuffered" in words  # otherwise messages wait for the end of a line
    assert words[-5:] == [sys.executable, "-S", "-E", "-c", BOOTSTRAP]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "csh", "tcsh", "zsh", "fish"])
def test_no_shell_changes_the_bootstrap_text(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    told = Ssh().command("h1")[-1].replace(f"exec {sys.executable} -S -E -c", "printf %s")
    done = subprocess.run([shell, "-c", told], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == BOOTSTRAP


def test_an_interpreter_that_no_shell_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/it's/python")
    with pytest.raises(ConfigError, match="path of the Python interpreter"):
        Ssh().command("h1")


def test_bootstrap_takes_folder_and_variables_from_its_input(tmp_path: Path) -> None:
    package = tmp_path / "collectives" / "launch"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "agent.py").write_text("import os, sys; print(os.getcwd(), repr(os.environ['V']), sys.stdin.read())")
    value = 'it\'s "quoted"\n$HOME !x \udcff\\'
    header = json.dumps(agent_commands.header(str(tmp_path), {"V": value})) + "\n"
    command = f"exec {sys.executable} -S -E -c '{BOOTSTRAP}'"
    done = subprocess.run(
        ["sh", "-c", command], input=header + "rest", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{tmp_path} {value!r} rest\n"
