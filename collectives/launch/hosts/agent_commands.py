"""The commands that start an agent on another host.

The command line is the same for every job. What the agent needs to know goes through its stdin: first a line of JSON
with its variables and the arguments of its Python, which the bootstrap text reads, then messages. So no text of the
user meets a shell, and no process table shows more than the folder.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transports.errors import ConfigError

MODULE: Final = "collectives.launch.agent"

BOOTSTRAP: Final = (
    "import os,sys,json,signal;"
    "signal.alarm(60);"
    "header=json.loads(sys.stdin.buffer.raw.readline());"
    "signal.alarm(0);"
    "os.environ.update(header[0]);"
    "os.execv(sys.executable,[sys.executable]+header[1])"
)
"""Without single quotes, newlines, backslashes, dollar signs and exclamation marks, so that no shell changes it. It
waits a minute at most, in case that the launcher's host is cut off before it has sent anything."""

_RUN: Final = """\
import os, runpy, sys
folder, module = sys.argv[1:]
try:
    os.chdir(folder)
except OSError as error:
    sys.stderr.write(f"cannot enter the folder {folder!r}: {error.strerror}\\n")
    sys.exit(97 if isinstance(error, FileNotFoundError) else 98)
sys.path.append(folder)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module in a folder. The folder is the last place for modules: it may have folders of the names of Ronde's."""

NO_FOLDER: Final = {97: errno.ENOENT, 98: errno.EACCES}
"""The exit codes of that text if the folder cannot be entered. Shells have others for a Python that is missing."""

CONNECT_SECONDS: Final = 10
"""Time for ssh to reach a host's port."""


@dataclass(frozen=True)
class Ssh:
    """The command line of ssh. Its own configuration defines host keys, users and jump hosts."""

    port: int | None = None
    identity_file: str | None = None

    def command(self, address: str) -> list[str]:
        """The command that starts an agent at `address`, which may begin with 'user@'."""
        options = [
            "BatchMode=yes",  # never ask for passwords or host keys
            f"ConnectTimeout={CONNECT_SECONDS}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "ControlMaster=no",  # a shared connection of the user's is used, but none is left behind
        ]
        words = ["ssh", "-T", "-a", "-x", *(word for option in options for word in ("-o", option))]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", self.identity_file]
        return [*words, "--", address, f"exec {_python()} -S -E -c '{BOOTSTRAP}'"]


@dataclass(frozen=True)
class Srun:
    """The command line of srun in an allocation: each agent is a step of its own, beside other steps."""

    def command(self, address: str) -> list[str]:
        """The command that starts an agent on a node."""
        options = ["overlap", "nodes=1", "ntasks=1", "ntasks-per-node=1", f"nodelist={address}"]
        options += ["kill-on-bad-exit=0", "wait=0", "mpi=none", "cpu-bind=none", "quiet", "unbuffered"]
        words = ["srun", *(f"--{option}" for option in options)]
        return [*words, sys.executable, "-S", "-E", "-c", BOOTSTRAP]


def folder_here() -> str:
    """The working directory, in which agents begin too. Raises ConfigError if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory, in which the ranks begin, has been removed") from None


def agent_header(folder: str, variables: Mapping[str, str], module: str = MODULE) -> Sequence[Any]:
    """The input of the bootstrap text: the variables and the arguments of Python for the agent, or another module."""
    return [dict(variables), agent_arguments(folder, module)]


def agent_arguments(folder: str, module: str = MODULE) -> list[str]:
    """The arguments of Python for an agent that begins in `folder`."""
    return ["-P", "-c", _RUN, folder, module]


def _python() -> str:
    """This interpreter, for a shell of any kind. Raises ConfigError if its path cannot be written for all of them."""
    if any(character in sys.executable for character in "'\\!\n"):
        raise ConfigError(
            f"the path of the Python interpreter, {sys.executable!r}: must have no quote, backslash or '!'"
        )
    return shlex.quote(sys.executable)
