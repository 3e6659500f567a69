"""The environment of ranks: what goes to other hosts, `-x`, and what the launcher adds."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.launch.hosts import agent_commands
from collectives.launch.hosts.agent_commands import BOOTSTRAP, Srun, Ssh
from collectives.launch.processes import environment
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


ROOT = Path(__file__).resolve().parents[4]


def test_what_is_passed_on() -> None:
    extra = {"CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/given"}
    assert environment.passed_on({**HERE, **STAYS}, extra) == {**HERE, **extra}


def test_exported() -> None:
    assert environment.exported(["A", "B=b=c", "C="], {"A": "a", "B": "x"}) == {"A": "a", "B": "b=c", "C": ""}


@pytest.mark.parametrize(("word", "complaint"), [("A", "-x A: .*not set"), ("=x", "-x '=x': .*NAME")])
def test_bad_export(word: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        environment.exported([word], {})


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_SIZE", "RONDE_STORE", "SLURM_PROCID", "RONDE_LAUNCHER"])
def test_variables_that_the_launcher_sets_cannot_be_given(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^-x {name}: "):
        environment.check_free({"A": "a", name: "1"})


def test_the_address_for_torch_may_be_given() -> None:
    environment.check_free({"MASTER_ADDR": "h9", "MASTER_PORT": "29500"})
    assert environment.torch_address(("h1", 5), {}) == ("h1", 5)
    assert environment.torch_address(("h1", 5), {"MASTER_ADDR": "h9", "MASTER_PORT": "29500"}) == ("h9", 29500)
    for port in ("0", "65536", "many", ""):
        with pytest.raises(ConfigError, match=r"^-x MASTER_PORT="):
            environment.check_free({"MASTER_PORT": port})


def test_variables_of_a_rank() -> None:
    job = launchers.Job(5, 8, "tcp://h1:1", b"s" * 32, 1, 4, "job")
    base = {"RANK": "7", "MASTER_PORT": "1", "OMPI_COMM_WORLD_RANK": "7", "SLURM_PROCID": "7", "OMP_NUM_THREADS": "3"}
    found = environment.rank_environment(job, base, ("10.0.0.1", 29500))
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


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "csh", "tcsh", "zsh", "fish"])
def test_no_shell_changes_the_bootstrap_text(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    told = Ssh().command("h1")[-1].replace(f"exec {sys.executable} -S -E -c", "printf %s")
    done = subprocess.run([shell, "-c", told], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == BOOTSTRAP


def test_an_interpreter_that_no_shell_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/it's/python")
    with pytest.raises(ConfigError, match="Python interpreter"):
        Ssh().command("h1")


def bootstrapped(folder: Path, module: str, variables: dict[str, str], given: str) -> subprocess.CompletedProcess[str]:
    """Run a module as an agent is run."""
    header = json.dumps(agent_commands.agent_header(str(folder), variables, module)) + "\n"
    command = f"exec {sys.executable} -S -E -c '{BOOTSTRAP}'"
    return subprocess.run(
        ["sh", "-c", command], input=header + given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.processes
def test_bootstrap_takes_folder_and_variables_from_its_input(tmp_path: Path) -> None:
    (tmp_path / "an_agent.py").write_text("import os, sys; print(os.getcwd(), repr(os.environ['V']), sys.stdin.read())")
    value = 'it\'s "quoted"\n$HOME !x \udcff\\'
    done = bootstrapped(tmp_path, "an_agent", {"V": value}, "rest")
    assert done.stdout == f"{tmp_path} {value!r} rest\n"


@pytest.mark.processes
def test_l3_the_folder_of_an_agent_is_the_last_place_for_modules(tmp_path: Path) -> None:
    for name in ("collectives", "transports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a folder of the user was imported')")
    (tmp_path / "an_agent.py").write_text("import collectives.launch.hosts.agent_commands; print('imported')")
    done = bootstrapped(tmp_path, "an_agent", {"PYTHONPATH": str(ROOT)}, "")
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


@pytest.mark.processes
def test_a_folder_that_an_agent_cannot_enter_is_one_sentence(tmp_path: Path) -> None:
    done = bootstrapped(tmp_path / "nosuch", "an_agent", {}, "")
    assert agent_commands.NO_FOLDER[done.returncode] == errno.ENOENT
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "nosuch") in done.stderr
