"""The launcher's process on this host, in processes with the environment of ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.transports.launchers.real import ROOT
from transports.launchers import find_starter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ancestors are found by /proc")

FIND = """
import os
from transports.launchers import find_starter
starter = find_starter(os.environ)
print(None if starter is None else (starter.process.pid, starter.process.start > 0, starter.name))
"""
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "TORCHELASTIC_RUN_ID": "r"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
NOT_AT_ALL = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}
BY_HAND = {"RONDE_RANK": "1", "RONDE_SIZE": "2", **OPENMPI}


def found(variables: dict[str, str], wrapper: list[str]) -> str:
    """The starter that a rank finds, started through a wrapper by this process as its launcher."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RONDE_", "OMPI_", "TORCHEL"))}
    env = kept | {"PYTHONPATH": str(ROOT)} | variables
    command = [*wrapper, sys.executable, "-c", FIND]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.processes
@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$0" "$@"; true']], ids=["alone", "in a shell"])
@pytest.mark.parametrize("variables", [TORCHRUN, OPENMPI], ids=["torchrun", "openmpi"])
def test_who_has_started_a_rank(variables: dict[str, str], wrapper: list[str]) -> None:
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    assert found(variables, wrapper) == str((os.getpid(), True, name))


@pytest.mark.processes
@pytest.mark.parametrize("variables", [{}, NOT_AT_ALL, BY_HAND, {**OPENMPI, "RONDE_LAUNCHER": "none"}])
def test_processes_that_nobody_looks_after(variables: dict[str, str]) -> None:
    assert found(variables, []) == "None"


def test_a_bad_launcher_is_for_others_to_complain_of() -> None:
    assert find_starter({"RONDE_LAUNCHER": "nosuch"}) is None
