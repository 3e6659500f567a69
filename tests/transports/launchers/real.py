"""The real launchers that are installed, and a program for them whose ranks print what they find."""

from __future__ import annotations

import functools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

BOUND: Final = 240.0
"""Seconds after which a test fails; normal runs take a few."""
END_SECONDS: Final = 15.0
"""Seconds within which ranks end once their launcher has; mostly they end before it."""
ROOT: Final = Path(__file__).parents[3]
_TITLES: Final = {"openmpi": "Open MPI|prterun|OpenRTE", "mpich": "HYDRA|MPICH", "intel": r"Intel\(R\) MPI"}

RANK: Final = """
import os, sys, time
import numpy as np
import collectives as ronde

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once: ranks share a pipe

say(f"pid {os.getpid()}")
"""
"""The beginning of the programs of ranks."""

HELLO: Final = (
    RANK
    + """
for meeting in range(2):
    world = ronde.init(config={"calibrate": False})
    total = ronde.allreduce(np.full(3, world.rank + 1.0))
    place = f"rank {world.rank} of {world.size} local {ronde.local_rank()}"
    say(f"meeting {meeting} {place} sum {total[0]:g}")
    ronde.shutdown()
if "slow" in sys.argv and world.rank == 0:  # longer than the others: their end is no failure
    time.sleep(1)
    say("rank 0 ended last")
"""
)


def hello(size: int, meetings: int = 2) -> set[str]:
    """The output of the ranks of HELLO."""
    total = size * (size + 1) // 2
    return {
        f"meeting {meeting} rank {rank} of {size} local {rank} sum {total}"
        for meeting in range(meetings)
        for rank in range(size)
    }


@functools.cache
def mpiexec(kind: str) -> str | None:
    """The launcher of Open MPI, MPICH or Intel MPI: one that RONDE_TEST_MPIEXEC names (several, separated by colons),
    or beside this Python, or on the PATH."""
    named = filter(None, os.environ.get("RONDE_TEST_MPIEXEC", "").split(os.pathsep))
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    for path in [*named, beside, shutil.which("mpiexec"), shutil.which("mpirun")]:
        if path is not None and os.access(path, os.X_OK):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=BOUND, check=False)
            if re.search(_TITLES[kind], done.stdout + done.stderr):
                return path
    return None


def mpi_command(kind: str, size: int, *options: str) -> list[str]:
    """The words before a program. Skips the test where the launcher is not installed."""
    path = mpiexec(kind)
    if path is None:
        pytest.skip(f"{kind} is not installed: no mpiexec of it on the PATH or in RONDE_TEST_MPIEXEC")
    many = ["--oversubscribe"] if kind == "openmpi" and "--host" not in options else []  # with it, one host gets all
    return [path, *options, "-np", str(size), *many]


def environment(**extra: str) -> dict[str, str]:
    """The environment without what an outer launcher or this one's settings have left."""
    outer = r"RONDE_|OMPI_|PMI|PRTE|SLURM_|TORCHELASTIC|HYD|MPI_|(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_\w+)$"
    kept = {name: value for name, value in os.environ.items() if not re.match(outer, name)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    limits = {"OMP_NUM_THREADS": "1", "RONDE_CONNECT_TIMEOUT": f"{BOUND / 2:.0f}", "PYTHONPATH": str(ROOT)}
    return kept | root | limits | extra


@dataclass(frozen=True)
class Ended:
    """A launcher that has ended: its code, the lines of its ranks, their process ids, and the lines of stderr."""

    code: int
    lines: list[str]
    pids: list[int]
    errors: str


class Launched:
    """A running launcher. Leaving it kills what is left."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._came = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in ((self._process.stdout, self._lines), (self._process.stderr, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._came:
                lines.append(line.rstrip("\n"))
                self._came.notify_all()

    def wait_for(self, pattern: str, count: int) -> list[str]:
        """The first groups of `count` lines on stdout that match."""

        def matches() -> list[str]:
            return [match[1] for line in self._lines for match in re.finditer(pattern, line)]

        with self._came:
            assert self._came.wait_for(lambda: len(matches()) >= count, BOUND), (self._lines, self._errors)
            return matches()

    @property
    def lines(self) -> list[str]:
        """The stdout so far."""
        return list(self._lines)

    @property
    def errors(self) -> list[str]:
        """The stderr so far."""
        return list(self._errors)

    def interrupt(self) -> None:
        """Send SIGINT to the launcher's process group, as a terminal does at Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)

    @property
    def pid(self) -> int:
        """The launcher's process."""
        return self._process.pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def finish(self) -> Ended:
        code = self._process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        pids = [int(match[1]) for line in self._lines if (match := re.fullmatch(r"pid (\d+)", line))]
        return Ended(code, self._lines, pids, "\n".join(self._errors))

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def launch(command: list[str], program: str, *arguments: str, **extra: str) -> Launched:
    """Start a program on all ranks."""
    return Launched([*command, sys.executable, "-c", program, *arguments], environment(**extra))


def run(command: list[str], program: str, *arguments: str, **extra: str) -> Ended:
    """Start a program on all ranks, and wait for the end."""
    with launch(command, program, *arguments, **extra) as launched:
        return launched.finish()


def left(pids: list[int]) -> list[int]:
    """Those processes that do not end, within seconds after their launcher."""

    def stays(pid: int) -> bool:
        try:
            watch = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            return not select.select([watch], [], [], END_SECONDS)[0]
        finally:
            os.close(watch)

    return [pid for pid in pids if stays(pid)]
