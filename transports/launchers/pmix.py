"""PMIx, by which Open MPI, LSF's jsrun and Slurm (srun --mpi=pmix) hand small values from rank to rank.

The library that speaks it comes with the launcher. A process of its own uses it for the rank (pmix_client.py), so that
deadlines are kept, and the rank can use MPI as well.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from transports.errors import DeadlineExceeded, RendezvousError
from transports.launchers import pmix_client
from transports.launchers.keyvalue import KeyValue
from transports.launchers.variables import Env
from transports.moments import seconds_until

NAMESPACE: Final = "PMIX_NAMESPACE"
RANK: Final = "PMIX_RANK"
OF_SLURM: Final = r"slurm\.pmix\."
"""The beginning of the namespaces that Slurm makes: slurm.pmix.JOB.STEP."""
OF_OPEN_MPI: Final = "prterun-|prte-"
"""The beginning of those that Open MPI 5 makes: prterun-HOST-PID@JOB. Those of Open MPI 4 are numbers."""
OF_OTHERS: Final = f"(?!{OF_SLURM}|{OF_OPEN_MPI})"
"""The beginning of those that other launchers make."""
LIBRARY: Final = "libpmix.so.2"
_FOLDERS: Final = (
    "lib",
    "lib64",
    "lib/openmpi",
    "lib64/openmpi",
    f"lib/{getattr(sys.implementation, '_multiarch', '')}",
)
_PREFIXES: Final = ("PMIX_PREFIX", "PMIX_ROOT", "OPAL_PREFIX", "OMPI_HOME", "MPI_HOME", "MPI_ROOT")
_LAUNCHERS: Final = ("mpirun", "prterun", "orterun", "jsrun", "srun")
_END_SECONDS: Final = 5.0
"""Seconds for the client to finalise; then it is killed."""


def lacking(env: Env, namespaces: str = "") -> str | None:
    """The reason for which this process cannot use PMIx; None if it can. `namespaces`: a pattern with which those of
    the launcher begin; a process inherits others from an outer launcher, where it is another rank."""
    if NAMESPACE not in env or RANK not in env:
        return f"{NAMESPACE}, {RANK}: are not set, so the launcher does not speak PMIx"
    if not re.match(namespaces, env[NAMESPACE]):
        return f"{NAMESPACE}={env[NAMESPACE]} is not of this launcher, so it does not speak PMIx"
    if find_library(env) is None:
        return f"{LIBRARY} was not found, neither beside the launcher nor by LD_LIBRARY_PATH"
    return None


def find_library(env: Env) -> str | None:
    """The PMIx library of the launcher: below the folders that its variables name, or beside its program, or where the
    system has it."""
    for folder in _folders(env):
        path = os.path.join(folder, LIBRARY)
        if os.path.exists(path):
            return path
    return ctypes.util.find_library("pmix")


def _folders(env: Env) -> Iterator[str]:
    yield from filter(None, env.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    if "OMPI_LIBDIR_LOC" in env:
        yield env["OMPI_LIBDIR_LOC"]
        yield os.path.join(env["OMPI_LIBDIR_LOC"], "openmpi")
    prefixes = [env[name] for name in _PREFIXES if name in env]
    for program in _LAUNCHERS:
        found = shutil.which(program, path=env.get("PATH"))
        if found is not None:
            prefixes.append(os.path.dirname(os.path.dirname(os.path.realpath(found))))
    for prefix in prefixes:
        for folder in _FOLDERS:
            yield os.path.join(prefix, folder)


class Pmix(KeyValue):
    """A PMIx client of this rank, in a process of its own. A client that misses a deadline is killed."""

    def __init__(self, library: str, deadline: float) -> None:
        self._inbox = bytearray()
        self._sound = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", pmix_client.__file__, library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise RendezvousError(f"the PMIx client cannot be started: {error}") from error
        try:
            self._answer(deadline)
        except BaseException:
            self._close()
            raise
        self._sound = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def put(self, key: str, value: bytes, deadline: float) -> None:
        self._ask(f"put {key} {value.hex()}", deadline)

    def fence(self, deadline: float) -> None:
        self._ask("fence", deadline)

    def get(self, key: str, deadline: float) -> bytes:
        return bytes.fromhex(self._ask(f"get {key}", deadline))

    def _ask(self, request: str, deadline: float) -> str:
        assert self._process.stdin is not None
        self._sound = False
        try:
            self._process.stdin.write(request.encode() + b"\n")
        except OSError as error:
            raise RendezvousError(f"the PMIx client ended: {error}") from error
        answer = self._answer(deadline)
        self._sound = True
        return answer

    def _answer(self, deadline: float) -> str:
        """The rest of the next line, which begins with 'ok'."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._inbox:
            if not poll.poll(1000 * seconds_until(deadline)):
                raise DeadlineExceeded("not all ranks came to the launcher's PMIx fence in time, or it does not answer")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise RendezvousError("the PMIx client ended without an answer")
            self._inbox += piece
        line, _, rest = self._inbox.partition(b"\n")
        self._inbox = rest
        status, _, answer = line.decode("ascii", "replace").partition(" ")
        if status != "ok":
            raise RendezvousError(f"the launcher's PMIx failed: {answer}")
        return answer

    def _close(self) -> None:
        """Let the client finalise, if no request of it is open; else, or if it does not end, kill it."""
        with self._process as process:  # closes the pipes, and waits
            if self._sound:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
            else:
                process.kill()
